//! `Ask`: the requests that a server is loaded with, and what a right answer is. Everything is encoded once, so that the load
//! spends its time on asking.

use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, TE};
use http::{Method, Request, Uri};
use http_body_util::Full;
use prost::Message;

use super::upstream;
use crate::traffic::{Answer, Protocol};

/// How many clients there are to be counted.
const CLIENTS: u16 = 1024;

/// The length of what precedes a message in gRPC: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// What to ask a server, again and again.
pub(crate) struct Ask {
    pub(crate) protocol: Protocol,
    /// `host:port`.
    pub(crate) authority: String,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    /// One after the other, each of them at least once.
    bodies: Vec<Bytes>,
    right: Right,
}

/// What a right answer is.
#[derive(Clone, Copy)]
enum Right {
    Any,
    /// From the rate limit service: it is within the limits.
    WithinLimits,
    /// From the check API: it is allowed.
    Allowed,
    /// From the upstream, with the fields of a limit or without.
    Passed {
        limited: bool,
    },
}

/// Constructors
impl Ask {
    /// Two descriptors, the address and the endpoint.
    pub(crate) fn rate_limits(server: SocketAddr) -> Self {
        const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        let bodies = (0..CLIENTS).map(|client| message(&descriptors(client))).collect();
        Self {
            protocol: Protocol::Http2,
            // HTTP/2 has the authority in the target, and an address always is one.
            uri: format!("http://{server}{PATH}").parse().unwrap_or_default(),
            headers,
            bodies,
            right: Right::WithinLimits,
            ..Self::post(server, PATH)
        }
    }

    /// The same two to count by, through the check API.
    pub(crate) fn check(server: SocketAddr) -> Self {
        let body = |client| {
            let endpoint = endpoint(client);
            let attributes = serde_json::json!({ "endpoint": endpoint });
            let asked = serde_json::json!({
                "action": "bench", "method": "GET", "path": endpoint, "ip": address(client), "attributes": attributes,
            });
            asked.to_string().into()
        };
        Self { bodies: (0..CLIENTS).map(body).collect(), right: Right::Allowed, ..Self::post(server, "/v1/check") }
    }

    /// A request that a gateway passes on.
    pub(crate) fn gateway(server: SocketAddr, limited: bool) -> Self {
        Self { method: Method::GET, right: Right::Passed { limited }, ..Self::post(server, "/api/items?page=2") }
    }

    /// Anything, and any answer is right.
    pub(crate) fn any(authority: String, uri: Uri, method: Method, headers: HeaderMap, body: Bytes) -> Self {
        Self { protocol: Protocol::Http1, authority, method, uri, headers, bodies: vec![body], right: Right::Any }
    }

    fn post(server: SocketAddr, path: &'static str) -> Self {
        let authority = server.to_string();
        let mut headers = HeaderMap::new();
        // An address is always a value of a header.
        headers.extend(HeaderValue::from_str(&authority).ok().map(|host| (HOST, host)));
        Self::any(authority, Uri::from_static(path), Method::POST, headers, Bytes::new())
    }
}

/// Asking
impl Ask {
    /// The request of this number.
    pub(crate) fn request(&self, number: u64) -> Request<Full<Bytes>> {
        let body = &self.bodies[(number % self.bodies.len() as u64) as usize];
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }

    /// Says what is wrong with an answer, if anything is.
    pub(crate) fn wrong(&self, answer: &Answer) -> Option<String> {
        if matches!(self.right, Right::Any) {
            return None;
        }
        if answer.status != 200 {
            return Some(format!("it answered with status {}", answer.status.as_u16()));
        }
        match self.right {
            Right::Any => None,
            Right::WithinLimits => {
                let decoded = answer.body.get(PREFIX..).and_then(|body| RateLimitResponse::decode(body).ok());
                let within = decoded.is_some_and(|response| response.overall_code == i32::from(Code::Ok));
                (!within).then(|| "a call was not answered with OK".to_owned())
            }
            Right::Allowed => {
                let allowed = answer.body.starts_with(br#"{"allowed":true"#);
                (!allowed).then(|| "a check was not allowed".to_owned())
            }
            Right::Passed { .. } if answer.body != upstream::ANSWER => {
                Some("its body is not the upstream's".to_owned())
            }
            Right::Passed { limited } => {
                let fields = answer.headers.contains_key("ratelimit");
                (fields != limited)
                    .then(|| format!("an answer has {} fields of a limit", if fields { "the" } else { "not the" }))
            }
        }
    }
}

fn address(client: u16) -> String {
    let [high, low] = client.to_be_bytes();
    format!("198.18.{high}.{low}")
}

fn endpoint(client: u16) -> String {
    format!("/api/items/{}", client % 32)
}

fn descriptors(client: u16) -> RateLimitRequest {
    let entry = |key: &str, value: String| Entry { key: key.to_owned(), value };
    let descriptor = |entries| RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    let by_client = vec![entry(":method", "GET".to_owned()), entry("remote_address", address(client))];
    let by_endpoint = vec![entry(":path", endpoint(client)), entry("endpoint", endpoint(client))];
    let descriptors = vec![descriptor(by_client), descriptor(by_endpoint)];
    RateLimitRequest { domain: "bench".to_owned(), descriptors, ..RateLimitRequest::default() }
}

/// A message as gRPC sends it.
fn message(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    bytes.put_slice(&message.encode_to_vec());
    bytes.freeze()
}
