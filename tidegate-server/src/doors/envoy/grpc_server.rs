//! `GrpcServer`: the gRPC transport of [`EnvoyService`]. It answers like the server that tonic generates, at less cost: small
//! buffers, and messages decoded and encoded as slices.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut};
use http_body::Body as HttpBody;
use prost::Message;
use tidegate::spi::Store;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tower_service::Service;

use super::deadline::grpc_timeout;
use super::message_bounds::oversized;
use super::messages::RateLimitRequest;
use super::service::{EnvoyService, MAX_MESSAGE_BYTES};

/// The path of the only method of the service.
pub(crate) const SHOULD_RATE_LIMIT_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Initial size of encode and decode buffers: most messages fit.
const BUFFER_BYTES: usize = 1024;

/// tonic's threshold for sending a stream's messages early. A unary call has one message.
const YIELD_THRESHOLD_BYTES: usize = 32 * 1024;

/// The gRPC server of the rate limit service, for a `tonic::transport::Server` too. Clones share everything.
pub struct GrpcServer<S>(Arc<EnvoyService<S>>);

/// The response to a call.
pub type GrpcFuture = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// The only method of the service.
struct ShouldRateLimit<S>(Arc<EnvoyService<S>>);

/// Decodes requests; responses are encoded before they get here.
#[derive(Clone, Copy)]
struct RateLimitCodec;

impl<S: Store + 'static> GrpcServer<S> {
    pub(crate) fn new(service: EnvoyService<S>) -> Self {
        Self(Arc::new(service))
    }

    /// Handles a call of the method.
    pub(crate) fn decide<B>(&self, request: http::Request<B>) -> GrpcFuture
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        let method = ShouldRateLimit(Arc::clone(&self.0));
        Box::pin(async move {
            let mut grpc = Grpc::new(RateLimitCodec).max_decoding_message_size(MAX_MESSAGE_BYTES);
            Ok(grpc.unary(method, request).await)
        })
    }
}

impl<S> NamedService for GrpcServer<S> {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl<S, B> Service<http::Request<B>> for GrpcServer<S>
where
    S: Store + 'static,
    B: HttpBody + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = GrpcFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> GrpcFuture {
        if request.uri().path() == SHOULD_RATE_LIMIT_PATH { self.decide(request) } else { unimplemented() }
    }
}

impl<S> Clone for GrpcServer<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for GrpcServer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GrpcServer").field(&self.0).finish()
    }
}

/// The response to a call of an unknown method.
pub(crate) fn unimplemented() -> GrpcFuture {
    Box::pin(std::future::ready(Ok(Status::unimplemented("").into_http())))
}

impl<S: Store + 'static> UnaryService<RateLimitRequest> for ShouldRateLimit<S> {
    type Response = Vec<u8>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Vec<u8>>, Status>> + Send>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let (service, timeout) = (Arc::clone(&self.0), grpc_timeout(request.metadata()));
        let request = request.into_inner();
        Box::pin(async move {
            let response = service.decide(&request, timeout).await;
            response.map(|response| Response::new(response.encode_to_vec())).map_err(|error| service.status(&error))
        })
    }
}

impl Codec for RateLimitCodec {
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

impl Encoder for RateLimitCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_THRESHOLD_BYTES)
    }
}

impl Decoder for RateLimitCodec {
    type Item = RateLimitRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<RateLimitRequest>, Status> {
        // tonic passes the whole message as one contiguous buffer.
        let message = buffer.chunk();
        // A short message has few parts.
        let oversized = if message.len() > BUFFER_BYTES { oversized(message) } else { None };
        let decoded = oversized.map_or_else(|| RateLimitRequest::decode(message), Ok);
        buffer.advance(buffer.remaining());
        decoded.map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_THRESHOLD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Rule, RuleSet, Timestamp};
    use tidegate_tower::LimitLayer;
    use tonic_prost::ProstCodec;

    use super::super::messages::{Entry, RateLimitDescriptor, RateLimitResponse};
    use super::*;

    /// The method as tonic generates it.
    struct GeneratedMethod(EnvoyService<MemoryStore>);

    impl UnaryService<RateLimitRequest> for GeneratedMethod {
        type Response = RateLimitResponse;
        type Future = Pin<Box<dyn Future<Output = Result<Response<RateLimitResponse>, Status>> + Send>>;

        fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
            let service = self.0.clone();
            Box::pin(async move {
                let response = service.decide(request.get_ref(), grpc_timeout(request.metadata())).await;
                response.map(Response::new).map_err(|error| service.status(&error))
            })
        }
    }

    fn call_generated_server(service: &EnvoyService<MemoryStore>, call: http::Request<Full<Bytes>>) -> GrpcFuture {
        let method = GeneratedMethod(service.clone());
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_MESSAGE_BYTES);
            Ok(grpc.unary(method, call).await)
        })
    }

    fn service() -> EnvoyService<MemoryStore> {
        let limit = Limit::token_bucket(2, Rate::per_minute(1).unwrap()).unwrap();
        let rules = RuleSet::new([Rule::new("edge", limit).with_action("edge")]).unwrap();
        // A manual clock, so that both servers decide at the same time.
        let clock = ManualClock::starting_at(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::new().with_clock(clock);
        EnvoyService::from_rules(LimitLayer::new(Limiter::new(rules, store)).handle())
    }

    fn grpc_frame(flag: u8, length: usize, message: &[u8]) -> Vec<u8> {
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
        let call = http::Request::post(SHOULD_RATE_LIMIT_PATH).header("content-type", "application/grpc");
        call.header("grpc-encoding", encoding).body(Full::new(Bytes::copy_from_slice(body))).unwrap()
    }

    /// The whole response as text: status, headers, message and trailers.
    async fn response_text(call: GrpcFuture) -> String {
        let (head, body) = call.await.unwrap().into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        format!("{:?} {:?} {:?} {trailers:?}", head.status, head.headers, body.to_bytes())
    }

    #[tokio::test]
    async fn every_call_gets_the_same_response_as_from_the_generated_server() {
        let (mut our_server, generated_server) = (service().into_server(), service());
        let (small_request, large_request) = (request("edge", 1), request("other", 100));
        let complete_frame = |message: &[u8]| grpc_frame(0, message.len(), message);
        let cases = [
            (complete_frame(&small_request), "identity", "allowed"),
            (complete_frame(&request("edge", 2)), "identity", "denied"),
            (complete_frame(&small_request), "identity", "the last hit"),
            (complete_frame(&large_request), "identity", "larger than the buffers"),
            (complete_frame(&request("edge", 101)), "identity", "too many descriptors"),
            (complete_frame(&request("edge", 10_000)), "identity", "far too many descriptors"),
            (complete_frame(&request("", 1)), "identity", "no domain"),
            (complete_frame(b"\xff\xff\xff\xff"), "identity", "not a protobuf message"),
            (complete_frame(b""), "identity", "an empty message"),
            ([complete_frame(&small_request), complete_frame(&small_request)].concat(), "identity", "two messages"),
            (Vec::new(), "identity", "no message"),
            (grpc_frame(0, small_request.len() + 1, &small_request), "identity", "a truncated message"),
            (grpc_frame(0, MAX_MESSAGE_BYTES + 1, &small_request), "identity", "a message over the maximum"),
            (grpc_frame(1, small_request.len(), &small_request), "identity", "an unsupported compression flag"),
            (grpc_frame(7, small_request.len(), &small_request), "identity", "an invalid compression flag"),
            (complete_frame(&small_request), "gzip", "an unsupported encoding"),
        ];
        for (body, encoding, case) in cases {
            let expected = response_text(call_generated_server(&generated_server, call(&body, encoding))).await;
            assert_eq!(response_text(our_server.call(call(&body, encoding))).await, expected, "{case}");
        }
    }
}
