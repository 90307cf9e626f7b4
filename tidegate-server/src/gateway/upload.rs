//! `Upload`: the body of a request on its way to the upstream, frame by frame. It measures and remembers how it ended, and
//! keeps nothing.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::watch;

/// A body that may be so long and no longer.
pub(super) struct Upload {
    body: Incoming,
    left: u64,
    stage: watch::Sender<Stage>,
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client has to send the next part.
    Awaited,
    /// The upstream has to take it.
    Moving,
    /// It is there.
    Done,
    /// It is longer than it may be.
    TooLong,
    /// What the client sent makes no sense, or it stopped sending.
    Broken,
}

/// Why an upload ended early; who asks looks at the stage.
#[derive(Debug)]
pub(super) struct CutShort;

impl Upload {
    /// The body, and the place where its progress is seen.
    pub(super) fn new(body: Incoming, longest: u64) -> (Self, watch::Receiver<Stage>) {
        let stage = if body.is_end_stream() { Stage::Done } else { Stage::Moving };
        let (stage, progress) = watch::channel(stage);
        (Self { body, left: longest, stage }, progress)
    }

    /// What a frame means for the rest.
    fn measured(
        &mut self,
        frame: Option<Result<Frame<Bytes>, hyper::Error>>,
    ) -> Option<Result<Frame<Bytes>, CutShort>> {
        let (stage, frame) = match frame {
            None => (Stage::Done, None),
            Some(Err(_)) => (Stage::Broken, Some(Err(CutShort))),
            Some(Ok(frame)) => match self.left.checked_sub(frame.data_ref().map_or(0, |data| data.len() as u64)) {
                None => (Stage::TooLong, Some(Err(CutShort))),
                Some(left) => {
                    self.left = left;
                    (if self.body.is_end_stream() { Stage::Done } else { Stage::Moving }, Some(Ok(frame)))
                }
            },
        };
        self.stage.send_replace(stage);
        frame
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = CutShort;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutShort>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_pending() {
            self.stage.send_if_modified(|stage| std::mem::replace(stage, Stage::Awaited) != Stage::Awaited);
        }
        let frame = ready!(polled);
        Poll::Ready(self.measured(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Display for CutShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body of the request ended early")
    }
}

impl Error for CutShort {}
