//! `Calls`: the rate limit service for our own door. It says what the server of the messages' crate says, for less: buffers of
//! the size of its messages, which are read and written as slices. It decides nothing.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, BufMut};
use http_body::Body as HttpBody;
use prost::Message;
use tidegate::spi::Store;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};

use super::pb::RateLimitRequest;
use super::service::{LARGEST_MESSAGE, RateLimits};
use super::waits::waits;

/// What most messages fit in, and what an allocator has at hand.
const USUAL_MESSAGE: usize = 1024;

/// When more than one message would go out by itself; there is only one.
const ENOUGH: usize = 32 * 1024;

/// The service, whose calls are answered as they come.
pub(crate) struct Calls<S>(Arc<RateLimits<S>>);

/// An answer on its way.
pub(crate) type Call = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// The method of a call.
struct ShouldRateLimit<S>(Arc<RateLimits<S>>);

/// Requests are read here; answers are encoded already.
#[derive(Clone, Copy)]
struct Messages;

impl<S: Store + 'static> Calls<S> {
    /// The path of the method: there is only one.
    pub(crate) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

    pub(crate) fn new(limits: RateLimits<S>) -> Self {
        Self(Arc::new(limits))
    }

    /// Answers a call of the method.
    pub(crate) fn call<B>(&self, request: http::Request<B>) -> Call
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        let method = ShouldRateLimit(Arc::clone(&self.0));
        Box::pin(async move {
            let mut grpc = Grpc::new(Messages).max_decoding_message_size(LARGEST_MESSAGE);
            Ok(grpc.unary(method, request).await)
        })
    }
}

/// The answer to a call of what is not there.
pub(crate) fn unimplemented() -> Call {
    Box::pin(std::future::ready(Ok(Status::unimplemented("").into_http())))
}

impl<S: Store + 'static> UnaryService<RateLimitRequest> for ShouldRateLimit<S> {
    type Response = Vec<u8>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Vec<u8>>, Status>> + Send>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let (limits, waits) = (Arc::clone(&self.0), waits(request.metadata()));
        let request = request.into_inner();
        Box::pin(async move {
            let answer = limits.answer(&request, waits).await;
            answer.map(|answer| Response::new(answer.encode_to_vec())).map_err(|refusal| limits.status(&refusal))
        })
    }
}

impl Codec for Messages {
    type Encode = Vec<u8>;
    type Decode = RateLimitRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Messages {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(USUAL_MESSAGE, ENOUGH)
    }
}

impl Decoder for Messages {
    type Item = RateLimitRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<RateLimitRequest>, Status> {
        // The buffer is one piece, all of which is the message.
        let decoded = RateLimitRequest::decode(buffer.chunk());
        buffer.advance(buffer.remaining());
        decoded.map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(USUAL_MESSAGE, ENOUGH)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
    use tidegate_tower::LimitLayer;
    use tower_service::Service;

    use super::super::pb::{Entry, RateLimitDescriptor};
    use super::*;

    fn limits() -> RateLimits<MemoryStore> {
        let limit = Limit::token_bucket(2, Rate::per_minute(1).unwrap()).unwrap();
        let rules = RuleSet::new([Rule::new("edge", limit).action("edge")]).unwrap();
        RateLimits::of_rules(LimitLayer::new(Limiter::new(rules, MemoryStore::new())).handle())
    }

    fn framed(flag: u8, length: usize, message: &[u8]) -> Vec<u8> {
        [&[flag][..], &u32::try_from(length).unwrap().to_be_bytes(), message].concat()
    }

    fn request(domain: &str, values: usize) -> Vec<u8> {
        let entry = |value: usize| Entry { key: "k".to_owned(), value: value.to_string() };
        let descriptor = |value| RateLimitDescriptor { entries: vec![entry(value)], ..RateLimitDescriptor::default() };
        let descriptors = (0..values).map(descriptor).collect();
        let request = RateLimitRequest { domain: domain.to_owned(), descriptors, ..RateLimitRequest::default() };
        request.encode_to_vec()
    }

    fn call(body: &[u8], encoding: &str) -> http::Request<Full<Bytes>> {
        let call = http::Request::post(Calls::<MemoryStore>::PATH).header("content-type", "application/grpc");
        call.header("grpc-encoding", encoding).body(Full::new(Bytes::copy_from_slice(body))).unwrap()
    }

    /// All that is sent: the head, the message, and what comes after it.
    async fn sent(call: Call) -> String {
        let (head, body) = call.await.unwrap().into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        format!("{:?} {:?} {:?} {trailers:?}", head.status, head.headers, body.to_bytes())
    }

    #[tokio::test]
    async fn every_call_is_answered_as_the_server_of_the_messages_answers_it() {
        let (ours, mut theirs) = (Calls::new(limits()), limits().into_server());
        let (small, large) = (request("edge", 1), request("other", 100));
        let whole = |message: &[u8]| framed(0, message.len(), message);
        let cases = [
            (whole(&small), "identity", "an answer"),
            (whole(&request("edge", 2)), "identity", "a refusal"),
            (whole(&small), "identity", "the last one"),
            (whole(&large), "identity", "more than the buffer holds, both ways"),
            (whole(&request("edge", 101)), "identity", "too many descriptors"),
            (whole(&request("", 1)), "identity", "no domain"),
            (whole(b"\xff\xff\xff\xff"), "identity", "no message"),
            (whole(b""), "identity", "an empty one"),
            ([whole(&small), whole(&small)].concat(), "identity", "two messages"),
            (Vec::new(), "identity", "none at all"),
            (framed(0, small.len() + 1, &small), "identity", "a part of a message"),
            (framed(0, LARGEST_MESSAGE + 1, &small), "identity", "a message that is too long"),
            (framed(1, small.len(), &small), "identity", "one that says it is compressed"),
            (framed(7, small.len(), &small), "identity", "one that says what nobody knows"),
            (whole(&small), "gzip", "an encoding that is not spoken"),
        ];
        for (body, encoding, what) in cases {
            let expected = sent(theirs.call(call(&body, encoding))).await;
            assert_eq!(sent(ours.call(call(&body, encoding))).await, expected, "{what}");
        }
    }
}
