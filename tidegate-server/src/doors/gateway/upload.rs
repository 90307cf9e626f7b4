//! `Upload`: the request body on its way to the upstream, frame by frame. It limits the length and publishes the progress. It
//! buffers nothing.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tidegate_tower::AssumedBodySize;
use tokio::sync::watch;

use super::request_body::RequestBody;

/// A request body of bounded length.
pub(super) struct Upload {
    body: RequestBody,
    bytes: u64,
    max_bytes: u64,
    /// Receives the size, if the rules assumed one.
    assumed_size: Option<AssumedBodySize>,
    progress: watch::Sender<UploadProgress>,
}

/// The progress of an upload.
#[derive(Clone, Copy, Debug)]
pub(super) struct UploadProgress {
    pub(super) stage: UploadStage,
    /// The bytes that the client has sent.
    pub(super) bytes: u64,
}

/// Who must act next in an upload, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadStage {
    /// The client must send the next frame.
    WaitingForClient,
    /// The upstream must accept the next frame.
    WaitingForUpstream,
    Complete,
    /// The body exceeds the length limit.
    TooLong,
    /// The body is malformed, or the client closed the connection.
    Malformed,
}

/// An upload that ended early. The reason is its [`UploadStage`].
#[derive(Debug)]
pub(super) struct UploadError;

impl Upload {
    /// The body, and a receiver of its progress. A body whose size the rules assumed may not be longer than that.
    pub(super) fn new(
        body: RequestBody,
        max_bytes: u64,
        assumed_size: Option<AssumedBodySize>,
    ) -> (Self, watch::Receiver<UploadProgress>) {
        let charged = assumed_size.as_ref().and_then(AssumedBodySize::max_bytes);
        let max_bytes = charged.map_or(max_bytes, |charged| max_bytes.min(charged));
        let stage = if body.is_end_stream() { UploadStage::Complete } else { UploadStage::WaitingForUpstream };
        let (sender, progress) = watch::channel(UploadProgress { stage, bytes: 0 });
        (Self { body, bytes: 0, max_bytes, assumed_size, progress: sender }, progress)
    }

    /// What is left of the body.
    pub(super) fn into_body(self) -> RequestBody {
        self.body
    }

    /// Counts a frame and publishes the new stage.
    fn track(
        &mut self,
        frame: Option<Result<Frame<Bytes>, hyper::Error>>,
    ) -> Option<Result<Frame<Bytes>, UploadError>> {
        let (stage, frame) = match frame {
            None => (UploadStage::Complete, None),
            Some(Err(_)) => (UploadStage::Malformed, Some(Err(UploadError))),
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                self.bytes = self.bytes.saturating_add(length);
                let is_complete = self.body.is_end_stream();
                match self.bytes > self.max_bytes {
                    true => (UploadStage::TooLong, Some(Err(UploadError))),
                    false if is_complete => (UploadStage::Complete, Some(Ok(frame))),
                    false => (UploadStage::WaitingForUpstream, Some(Ok(frame))),
                }
            }
        };
        if let Some(assumed_size) = self.assumed_size.as_ref().filter(|_| stage == UploadStage::Complete) {
            assumed_size.set_actual(self.bytes);
        }
        let bytes = self.bytes;
        self.progress.send_modify(|progress| *progress = UploadProgress { stage, bytes });
        frame
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_pending() {
            self.progress.send_if_modified(|progress| {
                std::mem::replace(&mut progress.stage, UploadStage::WaitingForClient) != UploadStage::WaitingForClient
            });
        }
        let frame = ready!(polled);
        Poll::Ready(self.track(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Display for UploadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body of the request ended early")
    }
}

impl Error for UploadError {}
