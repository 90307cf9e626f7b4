//! `Upload`: the request body on its way to the upstream, frame by frame. It limits the length and publishes the progress. It
//! buffers nothing.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::watch;

use crate::listen::ClientBody;

/// A request body of bounded length.
pub(super) struct Upload {
    body: ClientBody,
    bytes_left: u64,
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
    /// The body, and a receiver of its progress.
    pub(super) fn new(body: ClientBody, max_bytes: u64) -> (Self, watch::Receiver<UploadProgress>) {
        let stage = if body.is_end_stream() { UploadStage::Complete } else { UploadStage::WaitingForUpstream };
        let (sender, progress) = watch::channel(UploadProgress { stage, bytes: 0 });
        (Self { body, bytes_left: max_bytes, progress: sender }, progress)
    }

    /// Counts a frame and publishes the new stage.
    fn track(
        &mut self,
        frame: Option<Result<Frame<Bytes>, hyper::Error>>,
    ) -> Option<Result<Frame<Bytes>, UploadError>> {
        let mut length = 0;
        let (stage, frame) = match frame {
            None => (UploadStage::Complete, None),
            Some(Err(_)) => (UploadStage::Malformed, Some(Err(UploadError))),
            Some(Ok(frame)) => {
                length = frame.data_ref().map_or(0, |data| data.len() as u64);
                match self.bytes_left.checked_sub(length) {
                    None => (UploadStage::TooLong, Some(Err(UploadError))),
                    Some(bytes_left) => {
                        self.bytes_left = bytes_left;
                        (
                            if self.body.is_end_stream() {
                                UploadStage::Complete
                            } else {
                                UploadStage::WaitingForUpstream
                            },
                            Some(Ok(frame)),
                        )
                    }
                }
            }
        };
        self.progress.send_modify(|progress| {
            *progress = UploadProgress { stage, bytes: progress.bytes.saturating_add(length) };
        });
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
