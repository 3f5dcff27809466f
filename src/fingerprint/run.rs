//! One fingerprint in the making.

use bytes::Bytes;
use http::{Uri, header, request::Parts};

use super::{
    Fingerprint, Fingerprinter,
    frames::{Frames, Layout},
    json, media, multipart,
};

/// One fingerprint in the making: started with the head, fed with the body, finished with both.
#[derive(Debug)]
pub(crate) struct Run {
    frames: Frames,
    layout: Layout,
}

impl Run {
    pub(super) fn new(policy: &Fingerprinter, head: &Parts, scoped: bool) -> Self {
        let mut frames = Frames::new();
        let layout = policy.layout(&head.headers);
        if layout != Layout::Custom {
            frames.field(head.method.as_str().as_bytes());
            let uri = sent_uri(head);
            frames.field(uri.path().as_bytes());
            frames.optional(uri.query().map(str::as_bytes));
        }
        frames.flag(scoped);
        if !scoped {
            frames.lines(&head.headers, &header::AUTHORIZATION);
        }
        for name in &policy.headers {
            frames.optional(Some(name.as_str().as_bytes()));
            frames.lines(&head.headers, name);
        }
        frames.optional(None);
        if layout == Layout::Raw {
            frames.lines(&head.headers, &header::CONTENT_TYPE);
        }
        Self { frames, layout }
    }

    /// Takes the next piece of the body.
    pub(crate) fn update(&mut self, piece: &[u8]) {
        if self.layout == Layout::Raw {
            self.frames.body(piece);
        }
    }

    /// Ends the fingerprint. Policy and head are those it was started with; `body` is all pieces put together.
    pub(crate) fn finish(self, policy: &Fingerprinter, head: &Parts, body: &Bytes) -> Fingerprint {
        let Self { mut frames, layout } = self;
        let finished = match layout {
            Layout::Raw => return frames.finish(Layout::Raw),
            Layout::CanonicalJson => canonical_json(&mut frames, head, body),
            Layout::Multipart => parts(&mut frames, head, body),
            Layout::Custom => custom(&mut frames, policy, head, body),
        };
        if finished {
            return frames.finish(layout);
        }
        frames.lines(&head.headers, &header::CONTENT_TYPE);
        frames.body(body);
        frames.finish(Layout::Raw)
    }
}

/// Adds nothing and returns `false` if the body is unfit.
fn canonical_json(frames: &mut Frames, head: &Parts, body: &[u8]) -> bool {
    let Some(canonical) = json::canonical(body) else { return false };
    frames.lines(&head.headers, &header::CONTENT_TYPE);
    frames.body(canonical.as_bytes());
    true
}

/// Adds nothing and returns `false` if the body is unfit.
fn parts(frames: &mut Frames, head: &Parts, body: &[u8]) -> bool {
    let Some(boundary) = media::boundary(&head.headers) else { return false };
    let Some(split) = multipart::Split::new(body, &boundary.value) else { return false };
    frames.field(boundary.before.as_bytes());
    frames.field(boundary.after.as_bytes());
    frames.optional(split.preamble);
    frames.number(split.parts.len());
    for part in split.parts {
        frames.field(part);
    }
    frames.optional(split.epilogue);
    true
}

/// Adds nothing and returns `false` if the policy has no function.
fn custom(frames: &mut Frames, policy: &Fingerprinter, head: &Parts, body: &Bytes) -> bool {
    let Some(function) = &policy.custom else { return false };
    frames.field(function(head, body).as_bytes());
    true
}

/// Returns the URI that the client sent: a nested axum router hands down a shortened one.
#[cfg(feature = "axum")]
fn sent_uri(head: &Parts) -> &Uri {
    head.extensions.get::<axum::extract::OriginalUri>().map_or(&head.uri, |original| &original.0)
}

/// Returns the URI that the client sent.
#[cfg(not(feature = "axum"))]
fn sent_uri(head: &Parts) -> &Uri {
    &head.uri
}
