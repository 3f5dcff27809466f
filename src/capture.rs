//! Reads a response into a record, within bounds of size and time.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header, response};
use http_body::{Body as HttpBody, Frame};
use tokio::time::{Sleep, sleep};

use crate::{Body, StoredResponse, config::Config, replay::unmark, response::Encoder};

/// What became of a response body.
pub(crate) enum Captured<B: HttpBody> {
    /// It is here to its end: the record to keep, and data and trailers for the client.
    Whole(StoredResponse, Bytes, Option<Box<HeaderMap>>),
    /// It is too large, takes too long or never ends: the body goes on as a stream.
    Unbounded(Body<B>),
    /// It broke off: the body gives the client the same.
    Broken(Body<B>),
}

/// Reads a response body to its end, if that comes within the limits.
// Not an async function, whose future would be larger; see `guard`.
pub(crate) fn capture<B>(config: &Config, head: &response::Parts, body: B) -> impl Future<Output = Captured<B>>
where
    B: HttpBody<Data = Bytes>,
{
    let mut body = Box::pin(body);
    async move {
        if never_ends(head) || body.size_hint().lower() > config.response_limit as u64 {
            return Captured::Unbounded(Body::resumed(Bytes::new(), body));
        }
        let keep = config.is_replayed(&head.headers);
        let mut encoder = Encoder::new(head.status, &head.headers, &keep, body.size_hint().lower() as usize);
        let mut only: Option<Bytes> = None;
        let mut trailers: Option<Box<HeaderMap>> = None;
        let mut time_limit = None;
        while !body.is_end_stream() {
            let frame = match next_frame(body.as_mut(), config, &mut time_limit).await {
                Next::Frame(Some(Ok(frame))) => frame,
                Next::Frame(Some(Err(error))) => return Captured::Broken(Body::broken(encoder.into_body(), error)),
                Next::Frame(None) => break,
                Next::TimeIsUp => return Captured::Unbounded(Body::resumed(encoder.into_body(), body)),
            };
            match frame.into_data() {
                Ok(data) => {
                    only = (encoder.body_len() == 0).then(|| data.clone());
                    encoder.push(&data);
                    if encoder.body_len() > config.response_limit {
                        return Captured::Unbounded(Body::resumed(encoder.into_body(), body));
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok().map(Box::new).or(trailers),
            }
        }
        if let Some(trailers) = &mut trailers {
            unmark(trailers);
        }
        let stored = encoder.finish(trailers.as_deref(), &keep);
        let data = only.unwrap_or_else(|| stored.body());
        Captured::Whole(stored, data, trailers)
    }
}

/// Makes the record of a response that is here already.
pub(crate) fn whole(config: &Config, response: &Response<Bytes>) -> StoredResponse {
    StoredResponse::filtered(response, config.is_replayed(response.headers()))
}

/// A switched protocol and the media types whose streams are open-ended by definition.
fn never_ends(head: &response::Parts) -> bool {
    head.status == StatusCode::SWITCHING_PROTOCOLS
        || head.headers.get(header::CONTENT_TYPE).is_some_and(|value| {
            ["text/event-stream", "multipart/x-mixed-replace"].iter().any(|endless| {
                value
                    .as_bytes()
                    .get(..endless.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(endless.as_bytes()))
            })
        })
}

enum Next<E> {
    Frame(Option<Result<Frame<Bytes>, E>>),
    TimeIsUp,
}

fn next_frame<B>(
    mut body: Pin<&mut B>,
    config: &Config,
    time_limit: &mut Option<Pin<Box<Sleep>>>,
) -> impl Future<Output = Next<B::Error>>
where
    B: HttpBody<Data = Bytes>,
{
    poll_fn(move |cx| match body.as_mut().poll_frame(cx) {
        Poll::Ready(frame) => Poll::Ready(Next::Frame(frame)),
        Poll::Pending => {
            // The time counts from the first pause of the body, so that a body that never pauses costs no timer.
            let limit = time_limit.get_or_insert_with(|| Box::pin(sleep(config.response_time)));
            limit.as_mut().poll(cx).map(|()| Next::TimeIsUp)
        }
    })
}
