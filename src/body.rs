//! The body type of this crate, in both directions: passed through, buffered, or a buffered start with the rest behind.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use pin_project_lite::pin_project;

use crate::replay::unmark;

pin_project! {
    /// The body that a guarded service receives and the body that this crate answers with.
    ///
    /// A request or response that was not touched keeps its own body of type `B` inside; everything else is data in
    /// memory. Errors are those of `B`.
    pub struct Body<B: HttpBody> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<B: HttpBody> {
        Passed { #[pin] body: B, unmark: bool },
        Buffered { data: Bytes, trailers: Option<Box<HeaderMap>> },
        Resumed { start: Bytes, rest: Pin<Box<B>> },
        Broken { start: Bytes, paused: bool, error: Option<B::Error> },
    }
}

impl<B: HttpBody<Data = Bytes>> Body<B> {
    /// Passes a body through untouched.
    pub(crate) fn passed(body: B) -> Self {
        Self { kind: Kind::Passed { body, unmark: false } }
    }

    /// Passes the body of a first answer through, without the marker of a replay among its trailers.
    pub(crate) fn unmarked(body: B) -> Self {
        Self { kind: Kind::Passed { body, unmark: true } }
    }

    /// Holds all data and the trailers.
    pub(crate) fn buffered(data: Bytes, trailers: Option<Box<HeaderMap>>) -> Self {
        Self { kind: Kind::Buffered { data, trailers } }
    }

    /// Holds a request body that was read to its end.
    pub(crate) fn collected(body: Collected) -> Self {
        Self::buffered(body.data, body.trailers)
    }

    /// Gives out what was buffered already, then goes on with the rest.
    pub(crate) fn resumed(start: Bytes, rest: Pin<Box<B>>) -> Self {
        Self { kind: Kind::Resumed { start, rest } }
    }

    /// Gives out what was buffered already, then the error that ended it. Pauses in between, because a server that
    /// meets the error at once sends nothing of what came before, not even the head.
    pub(crate) fn broken(start: Bytes, error: B::Error) -> Self {
        Self { kind: Kind::Broken { start, paused: false, error: Some(error) } }
    }
}

impl<B: HttpBody<Data = Bytes>> HttpBody for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Passed { body, unmark: false } => body.poll_frame(cx),
            KindProjection::Passed { body, unmark: true } => body.poll_frame(cx).map_ok(without_marker),
            KindProjection::Buffered { data, .. } if !data.is_empty() => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(data)))))
            }
            KindProjection::Buffered { trailers, .. } => {
                Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(*trailers))))
            }
            KindProjection::Resumed { start, .. } | KindProjection::Broken { start, .. } if !start.is_empty() => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(start)))))
            }
            KindProjection::Resumed { rest, .. } => rest.as_mut().poll_frame(cx).map_ok(without_marker),
            KindProjection::Broken { paused, .. } if !*paused => {
                *paused = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            KindProjection::Broken { error, .. } => Poll::Ready(error.take().map(Err)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Passed { body, .. } => body.is_end_stream(),
            Kind::Buffered { data, trailers } => data.is_empty() && trailers.is_none(),
            Kind::Resumed { start, rest } => start.is_empty() && rest.is_end_stream(),
            Kind::Broken { start, error, .. } => start.is_empty() && error.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Passed { body, .. } => body.size_hint(),
            Kind::Buffered { data, trailers: None } => SizeHint::with_exact(data.len() as u64),
            // No upper bound: with an exact size, a server of HTTP/1.1 would send `Content-Length` and no trailers.
            Kind::Buffered { data, trailers: Some(_) } => {
                let mut hint = SizeHint::new();
                hint.set_lower(data.len() as u64);
                hint
            }
            Kind::Resumed { start, rest } => {
                let start = start.len() as u64;
                let rest = rest.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(start.saturating_add(rest.lower()));
                if let Some(upper) = rest.upper() {
                    hint.set_upper(start.saturating_add(upper));
                }
                hint
            }
            // No upper bound: with an exact size a server would take the data for a whole body.
            Kind::Broken { .. } => SizeHint::new(),
        }
    }
}

fn without_marker(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        unmark(trailers);
    }
    frame
}

impl<B: HttpBody> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Passed { .. } => "Body::Passed",
            Kind::Buffered { .. } => "Body::Buffered",
            Kind::Resumed { .. } => "Body::Resumed",
            Kind::Broken { .. } => "Body::Broken",
        })
    }
}

/// A request body, read to its end.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<Box<HeaderMap>>,
}

/// Why a request body could not be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    TooLarge,
    Broken,
}

/// Reads a body of at most `limit` bytes, showing each piece to `see`; never holds more than `limit` bytes plus one frame.
pub(crate) async fn collect<B: HttpBody<Data = Bytes>>(
    body: B,
    limit: usize,
    mut see: impl FnMut(&[u8]),
) -> Result<Collected, Unreadable> {
    if body.size_hint().lower() > limit as u64 {
        return Err(Unreadable::TooLarge);
    }
    let mut body = std::pin::pin!(body);
    let mut data = Pieces::default();
    let mut trailers = None;
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        match frame.map_err(|_| Unreadable::Broken)?.into_data() {
            Ok(piece) if piece.len() > limit - data.len() => return Err(Unreadable::TooLarge),
            Ok(piece) => {
                see(&piece);
                data.push(piece);
            }
            Err(frame) => trailers = frame.into_trailers().ok().map(Box::new).or(trailers),
        }
    }
    Ok(Collected { data: data.join(), trailers })
}

/// Pieces of data that are copied only when there is more than one.
#[derive(Debug, Default)]
struct Pieces {
    first: Bytes,
    all: BytesMut,
}

impl Pieces {
    fn len(&self) -> usize {
        if self.all.is_empty() { self.first.len() } else { self.all.len() }
    }

    fn push(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.first = piece;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
        self.all.extend_from_slice(&piece);
    }

    fn join(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}
