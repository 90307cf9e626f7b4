//! `RequestTemplate`: the requests that a server gets, and the response that is expected. Bodies are encoded once, so that the
//! load spends its time on sending.

use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use http::{Method, Request, Response, Uri};
use http_body_util::Full;
use prost::Message;
use tidegate_server::envoy::messages::{Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

use crate::traffic::{Connection, Protocol, RESPONSE_BODY};

/// Number of different clients in the requests.
const CLIENT_COUNT: u16 = 1024;

/// Length of the gRPC message prefix: a compression flag and the length of the message.
const GRPC_PREFIX_BYTES: usize = 5;

/// The requests for one server.
pub(crate) struct RequestTemplate {
    protocol: Protocol,
    /// `host:port`.
    address: String,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    /// Used in turn; at least one.
    bodies: Vec<Bytes>,
    check: ResponseCheck,
}

/// Whether a response is correct; the error says how it differs.
type ResponseCheck = fn(&Response<Bytes>) -> Result<(), String>;

/// Constructors
impl RequestTemplate {
    /// Rate limit service: two descriptors, by client address and by endpoint.
    pub(crate) fn rate_limits(server: SocketAddr) -> Self {
        const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let mut template = Self::post(server, PATH);
        template.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        template.headers.insert(TE, HeaderValue::from_static("trailers"));
        let bodies = (0..CLIENT_COUNT).map(|client| grpc_frame(&descriptors(client))).collect();
        Self { protocol: Protocol::Http2, bodies, check: check_rate_limits, ..template }
    }

    /// Check API: the same client address and endpoint.
    pub(crate) fn check(server: SocketAddr) -> Self {
        let body = |client| {
            let endpoint = endpoint(client);
            let attributes = serde_json::json!({ "endpoint": endpoint });
            let body = serde_json::json!({
                "action": "bench", "method": "GET", "path": endpoint, "ip": address(client), "attributes": attributes,
            });
            body.to_string().into()
        };
        let mut template = Self::post(server, "/v1/check");
        template.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Self { bodies: (0..CLIENT_COUNT).map(body).collect(), check: check_allowed, ..template }
    }

    /// A request that a gateway forwards.
    pub(crate) fn gateway(server: SocketAddr, limited: bool) -> Self {
        let check: ResponseCheck =
            if limited { |response| check_passed(response, true) } else { |response| check_passed(response, false) };
        Self { method: Method::GET, check, ..Self::post(server, "/api/items?page=2") }
    }

    /// A request of a client that has used up its limit; any response counts as correct.
    pub(crate) fn over_limit(server: SocketAddr) -> Self {
        Self { method: Method::GET, ..Self::post(server, "/flood/items") }
    }

    /// The same, which must be denied.
    pub(crate) fn denied(server: SocketAddr) -> Self {
        Self { check: |response| check_status(response, 429), ..Self::over_limit(server) }
    }

    /// A request that a gateway forwards for another client; any response counts as correct.
    pub(crate) fn bystander(server: SocketAddr) -> Self {
        Self { check: |_| Ok(()), ..Self::gateway(server, true) }
    }

    /// Any request; every response counts as correct.
    pub(crate) fn any(address: String, uri: Uri, method: Method, headers: HeaderMap, body: Bytes) -> Self {
        let (bodies, check): (_, ResponseCheck) = (vec![body], |_| Ok(()));
        Self { protocol: Protocol::Http1, address, method, uri, headers, bodies, check }
    }

    fn post(server: SocketAddr, path: &'static str) -> Self {
        Self::any(server.to_string(), Uri::from_static(path), Method::POST, HeaderMap::new(), Bytes::new())
    }
}

/// Sending and checking
impl RequestTemplate {
    /// Opens connections for these requests.
    pub(crate) async fn connect(&self, count: u16) -> Result<Vec<Connection>, String> {
        Connection::open_many(self.protocol, &self.address, count).await.map_err(|error| error.to_string())
    }

    /// The request with this number.
    pub(crate) fn request(&self, number: u64) -> Request<Full<Bytes>> {
        let body = &self.bodies[(number % self.bodies.len() as u64) as usize];
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }

    /// Checks a response to one of these requests.
    pub(crate) fn check_response(&self, response: &Response<Bytes>) -> Result<(), String> {
        (self.check)(response)
    }
}

fn check_status(response: &Response<Bytes>, expected: u16) -> Result<(), String> {
    let status = response.status().as_u16();
    if status == expected { Ok(()) } else { Err(format!("a response has status {status}")) }
}

/// The rate limit service answers OK.
fn check_rate_limits(response: &Response<Bytes>) -> Result<(), String> {
    check_status(response, 200)?;
    let decoded = response.body().get(GRPC_PREFIX_BYTES..).and_then(|body| RateLimitResponse::decode(body).ok());
    if decoded.is_some_and(|response| response.overall_code == i32::from(Code::Ok)) {
        return Ok(());
    }
    let message = response.headers().get("grpc-message").and_then(|message| message.to_str().ok());
    Err(format!("a gRPC response is not OK: {}", message.unwrap_or("over a limit")))
}

/// The check API allows the request.
fn check_allowed(response: &Response<Bytes>) -> Result<(), String> {
    check_status(response, 200)?;
    let allowed = response.body().starts_with(br#"{"allowed":true"#);
    if allowed { Ok(()) } else { Err("a check was denied".to_owned()) }
}

/// The response is that of the upstream, with rate-limit headers or without.
fn check_passed(response: &Response<Bytes>, limited: bool) -> Result<(), String> {
    check_status(response, 200)?;
    if response.body() != RESPONSE_BODY {
        return Err("a response body is not that of the upstream".to_owned());
    }
    match (response.headers().contains_key("ratelimit"), limited) {
        (true, false) => Err("a response has an unexpected RateLimit header".to_owned()),
        (false, true) => Err("a response has no RateLimit header".to_owned()),
        _ => Ok(()),
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

/// A message with its gRPC prefix.
fn grpc_frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(GRPC_PREFIX_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    bytes.put_slice(&message.encode_to_vec());
    bytes.freeze()
}
