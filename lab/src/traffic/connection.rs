//! `Connection`: a client connection that reconnects after the server has closed it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue};
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// Time for a response, where the caller has no reason for another.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    /// Without TLS; one TCP connection carries all requests in flight.
    Http2,
}

/// A connection that carries one request at a time.
pub(crate) struct Connection {
    protocol: Protocol,
    authority: Authority,
    host: HeaderValue,
    /// `None` after an error: the next request connects again.
    sender: Option<Sender>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Why a request has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// The TCP connection was refused.
    Unreachable,
    /// The connection closed early, or the response is not HTTP.
    Broken,
    /// No complete response within the timeout.
    TimedOut,
}

impl Connection {
    /// Opens `count` connections to `host:port`. Over HTTP/2 they share one TCP connection.
    pub(crate) async fn open_many(protocol: Protocol, address: &str, count: u16) -> Result<Vec<Self>, RequestError> {
        let authority: Authority = address.parse().map_err(|_| RequestError::Unreachable)?;
        let host = HeaderValue::from_str(address).map_err(|_| RequestError::Unreachable)?;
        let mut connections: Vec<Self> = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let sender = match connections.first().and_then(|connection| connection.sender.as_ref()) {
                Some(Sender::Http2(shared)) => Sender::Http2(shared.clone()),
                _ => Sender::connect(protocol, address).await?,
            };
            let (authority, host) = (authority.clone(), host.clone());
            connections.push(Self { protocol, authority, host, sender: Some(sender) });
        }
        Ok(connections)
    }

    /// Sends a request and reads the whole response, within `timeout`. The request has a path; its host is that of the connection, unless it
    /// has a header for it.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        timeout: Duration,
    ) -> Result<Response<Bytes>, RequestError> {
        let response = tokio::time::timeout(timeout, self.exchange(request)).await;
        let response = response.unwrap_or(Err(RequestError::TimedOut));
        if response.is_err() {
            // A late response would be taken for that of the next request.
            self.sender = None;
        }
        response
    }

    async fn exchange(&mut self, mut request: Request<Full<Bytes>>) -> Result<Response<Bytes>, RequestError> {
        let usable = match &mut self.sender {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            self.sender = Some(Sender::connect(self.protocol, self.authority.as_str()).await?);
        }
        match self.protocol {
            Protocol::Http1 => _ = request.headers_mut().entry(HOST).or_insert_with(|| self.host.clone()),
            Protocol::Http2 => {
                let mut parts = std::mem::take(request.uri_mut()).into_parts();
                (parts.scheme, parts.authority) = (Some(Scheme::HTTP), Some(self.authority.clone()));
                *request.uri_mut() = Uri::from_parts(parts).map_err(|_| RequestError::Broken)?;
            }
        }
        let response = match &mut self.sender {
            Some(Sender::Http1(sender)) => sender.send_request(request).await,
            Some(Sender::Http2(sender)) => sender.send_request(request).await,
            None => return Err(RequestError::Broken),
        };
        let (parts, body) = response.map_err(|_| RequestError::Broken)?.into_parts();
        let body = body.collect().await.map_err(|_| RequestError::Broken)?.to_bytes();
        Ok(Response::from_parts(parts, body))
    }
}

impl Sender {
    async fn connect(protocol: Protocol, authority: &str) -> Result<Self, RequestError> {
        let stream = TcpStream::connect(authority).await.map_err(|_| RequestError::Unreachable)?;
        // Failing to set it costs speed only.
        let _ = stream.set_nodelay(true);
        let stream = TokioIo::new(stream);
        match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(stream).await.map_err(|_| RequestError::Broken)?;
                tokio::spawn(connection);
                Ok(Self::Http1(sender))
            }
            Protocol::Http2 => {
                let handshake = http2::handshake(TokioExecutor::new(), stream).await;
                let (sender, connection) = handshake.map_err(|_| RequestError::Broken)?;
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

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "cannot connect: nothing listens at this address",
            Self::Broken => "the connection closed before the end of the response, or the response is not HTTP",
            Self::TimedOut => "no response within the timeout",
        })
    }
}
