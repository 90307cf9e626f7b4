//! `Line`: a connection to a server, which is opened again when the server has closed it. It knows nothing of what is asked.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// How long an answer may take, unless somebody knows better.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    /// Without TLS; one connection carries all that is under way.
    Http2,
}

/// A connection.
pub(crate) struct Line {
    protocol: Protocol,
    authority: String,
    sender: Option<Sender>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// What was answered.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// Nobody listens.
    Unreachable,
    /// The connection ended, or what came is no HTTP.
    Broken,
    /// It took longer than there was patience.
    Late,
}

impl Line {
    /// As many lines as may be under way at a time, opened.
    pub(crate) async fn open(protocol: Protocol, authority: &str, number: u16) -> Result<Vec<Self>, NoAnswer> {
        let mut lines: Vec<Self> = Vec::with_capacity(usize::from(number));
        for _ in 0..number {
            let sender = match lines.first().and_then(|line| line.sender.as_ref()) {
                Some(Sender::Http2(shared)) => Sender::Http2(shared.clone()),
                _ => Sender::open(protocol, authority).await?,
            };
            lines.push(Self { protocol, authority: authority.to_owned(), sender: Some(sender) });
        }
        Ok(lines)
    }

    /// Sends a request, and reads all of the answer, which may take as long as there is patience.
    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>, patience: Duration) -> Result<Answer, NoAnswer> {
        let answered = tokio::time::timeout(patience, self.answer(request)).await.unwrap_or(Err(NoAnswer::Late));
        if answered.is_err() {
            // Whatever comes on it now would answer something else.
            self.sender = None;
        }
        answered
    }

    async fn answer(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, NoAnswer> {
        let usable = match &mut self.sender {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            self.sender = Some(Sender::open(self.protocol, &self.authority).await?);
        }
        let sent = match &mut self.sender {
            Some(Sender::Http1(sender)) => sender.send_request(request).await,
            Some(Sender::Http2(sender)) => sender.send_request(request).await,
            None => return Err(NoAnswer::Broken),
        };
        let (parts, body) = sent.map_err(|_| NoAnswer::Broken)?.into_parts();
        let body = body.collect().await.map_err(|_| NoAnswer::Broken)?.to_bytes();
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }
}

impl Sender {
    async fn open(protocol: Protocol, authority: &str) -> Result<Self, NoAnswer> {
        let stream = TcpStream::connect(authority).await.map_err(|_| NoAnswer::Unreachable)?;
        // Only speed is lost without it.
        let _ = stream.set_nodelay(true);
        let stream = TokioIo::new(stream);
        match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(stream).await.map_err(|_| NoAnswer::Broken)?;
                tokio::spawn(connection);
                Ok(Self::Http1(sender))
            }
            Protocol::Http2 => {
                let opened = http2::handshake(TokioExecutor::new(), stream).await;
                let (sender, connection) = opened.map_err(|_| NoAnswer::Broken)?;
                tokio::spawn(connection);
                Ok(Self::Http2(sender))
            }
        }
    }

    async fn ready(&mut self) -> hyper::Result<()> {
        match self {
            Self::Http1(sender) => sender.ready().await,
            Self::Http2(sender) => sender.ready().await,
        }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "nobody listens there",
            Self::Broken => "the connection ended before the answer did, or what came is no HTTP",
            Self::Late => "there was no answer in time",
        })
    }
}
