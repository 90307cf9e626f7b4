//! `ServerLink`: a stream to one server with the bytes that are not written and not parsed yet. It knows the protocol, and
//! neither time nor callers.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::resp::ReplyBuffer;
use crate::server_stream::ServerStream;

/// Bytes that one read takes at most.
const READ_BYTES: usize = 16 << 10;

/// Written bytes are dropped from the buffer once it is empty; a larger buffer is released then.
const MAX_IDLE_BUFFER_BYTES: usize = 256 << 10;

/// A stream to one server.
pub(crate) struct ServerLink {
    stream: ServerStream,
    unwritten: Vec<u8>,
    /// How much of `unwritten` has been written.
    written: usize,
    needs_flush: bool,
    received: ReplyBuffer,
    read_buffer: Box<[u8]>,
}

/// What a read found.
pub(crate) struct ReadOutcome {
    /// Whether any byte was read.
    pub(crate) any_byte: bool,
    /// Why nothing more can be read, if the stream ended.
    pub(crate) end: Option<RedisError>,
}

impl ServerLink {
    pub(crate) fn new(stream: ServerStream) -> Self {
        Self {
            stream,
            unwritten: Vec::new(),
            written: 0,
            needs_flush: false,
            received: ReplyBuffer::default(),
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
        }
    }

    /// Where commands are appended. [`poll_write`](Self::poll_write) sends them.
    pub(crate) const fn unwritten(&mut self) -> &mut Vec<u8> {
        &mut self.unwritten
    }

    /// Writes what the stream takes. Ready once everything is written.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.unwritten.len() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.unwritten[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
            self.needs_flush = true;
        }
        if !self.unwritten.is_empty() {
            self.unwritten.clear();
            self.unwritten.shrink_to(MAX_IDLE_BUFFER_BYTES);
            self.written = 0;
        }
        if self.needs_flush {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads everything that is readable and appends complete replies to `replies`.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, replies: &mut VecDeque<Value>) -> ReadOutcome {
        let mut outcome = ReadOutcome { any_byte: false, end: None };
        loop {
            let mut buffer = ReadBuf::new(&mut self.read_buffer);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return outcome,
                Poll::Ready(Err(error)) => {
                    outcome.end = Some(error.into());
                    return outcome;
                }
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                    outcome.end = Some(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                    return outcome;
                }
                Poll::Ready(Ok(())) => {
                    outcome.any_byte = true;
                    self.received.extend(buffer.filled());
                }
            }
            while let Some(reply) = self.received.next_reply() {
                match reply {
                    Ok(reply) => replies.push_back(reply),
                    Err(error) => {
                        outcome.end = Some(error);
                        return outcome;
                    }
                }
            }
        }
    }

    /// Sends `commands` and waits for a reply to each; for the first commands on a new connection.
    pub(crate) async fn query(&mut self, commands: &[Cmd]) -> RedisResult<Vec<Value>> {
        for command in commands {
            command.write_packed_command(&mut self.unwritten);
        }
        let mut replies = VecDeque::new();
        std::future::poll_fn(|cx| {
            if let Poll::Ready(Err(error)) = self.poll_write(cx) {
                return Poll::Ready(Err(error.into()));
            }
            let outcome = self.poll_read(cx, &mut replies);
            match outcome.end {
                _ if replies.len() >= commands.len() => Poll::Ready(Ok(())),
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            }
        })
        .await?;
        Ok(replies.into())
    }
}
