//! Malformed and unusual protobuf messages.

use bytes::{Buf, BufMut};
use tidegate_server::envoy::EnvoyOptions;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::envoy::{serve, service};

const LIMITS: &str = "
domain: edge
descriptors:
  - { key: k, rate_limit: { unit: minute, requests_per_unit: 9 } }
";

/// A codec that sends bytes unchanged.
#[derive(Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = usize;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = usize;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<usize>, Status> {
        let length = buffer.remaining();
        buffer.advance(length);
        Ok(Some(length))
    }
}

async fn send(channel: &Channel, message: Vec<u8>) -> Result<usize, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    client.unary(Request::new(message), path, RawCodec).await.map(tonic::Response::into_inner)
}

/// A length-delimited protobuf field.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = value.len();
    while length > 0x7f {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    [bytes.as_slice(), value].concat()
}

fn request(domain: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let entry = [field(1, key), field(2, value)].concat();
    [field(1, domain), field(2, &field(1, &entry))].concat()
}

#[tokio::test]
async fn a_malformed_message_is_rejected_and_the_connection_stays_open() {
    let address = serve(service(LIMITS, &EnvoyOptions::default()));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let good = request(b"edge", b"k", b"v");
    let cases: [(&str, Vec<u8>); 7] = [
        ("a length past the end", vec![0x0a, 0xff]),
        ("a field that never ends", vec![0xff; 64]),
        ("a wrong wire type", vec![0x0f]),
        ("cut off in the middle", good[..good.len() - 1].to_vec()),
        ("a domain that is not UTF-8", request(b"\xff\xfe", b"k", b"v")),
        ("a key that is not UTF-8", request(b"edge", b"\xc3\x28", b"v")),
        ("a value that is not UTF-8", request(b"edge", b"k", b"\xf0\x28\x8c\x28")),
    ];
    for (what, bytes) in cases {
        assert_eq!(send(&channel, bytes).await.unwrap_err().code(), Code::Internal, "{what}");
        assert!(send(&channel, good.clone()).await.is_ok(), "{what}");
    }
}

#[tokio::test]
async fn unusual_but_valid_messages_are_accepted() {
    let address = serve(service(LIMITS, &EnvoyOptions::default()));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    // An empty message is one without a domain.
    assert_eq!(send(&channel, Vec::new()).await.unwrap_err().code(), Code::InvalidArgument);
    // Unknown fields are ignored.
    let unknown = [request(b"edge", b"k", b"v"), field(15, b"later")].concat();
    assert!(send(&channel, unknown).await.is_ok());
    // An empty key and value, control characters, and a large value.
    assert!(send(&channel, request(b"edge", b"", b"")).await.is_ok());
    assert!(send(&channel, request(b"edge", b"k", b"\0\x1b[2J\n")).await.is_ok());
    assert!(send(&channel, request(b"edge", b"k", &vec![b'v'; 64 * 1024])).await.is_ok());
    // As many empty descriptors as fit into a message.
    let empty = [field(1, b"edge"), field(2, b"").repeat(400_000)].concat();
    assert_eq!(send(&channel, empty).await.unwrap_err().code(), Code::InvalidArgument);
}
