//! A tonic server behind the layer, and a tonic client. The service is written by hand, so that no `.proto` compiler is
//! needed.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use tidegate::spi::Store;
use tidegate::{OnFailure, Rule};
use tidegate_tower::LimitLayer;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Service, ServiceExt, service_fn};

use crate::layer::{burst, limiter};

/// The request and response message of the service.
#[derive(Clone, PartialEq, prost::Message)]
struct Word {
    #[prost(string, tag = "1")]
    text: String,
}

/// Returns the request message.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let echo = service_fn(async |word: Request<Word>| Ok::<_, Status>(Response::new(word.into_inner())));
            Ok(tonic::server::Grpc::new(ProstCodec::<Word, Word>::default()).unary(echo, request).await)
        })
    }
}

/// Starts a server behind `layer` and connects to it.
async fn connect<S: Store + 'static>(layer: LimitLayer<S>) -> Channel {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    tokio::spawn(Server::builder().layer(layer).add_service(Echo).serve_with_incoming(incoming));
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

async fn call_echo(channel: &Channel, text: &str) -> Result<Response<Word>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let word = Request::new(Word { text: text.to_owned() });
    client.unary(word, PathAndQuery::from_static("/test.Echo/Say"), ProstCodec::<Word, Word>::default()).await
}

fn metadata_value<'m>(metadata: &'m MetadataMap, name: &str) -> Option<&'m str> {
    metadata.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_denial_is_resource_exhausted_with_the_limits_as_metadata() {
    let rule = Rule::new("api", burst(1)).with_per(["ip", "path"]).with_message("Später wieder: 100 %");
    let layer = LimitLayer::new(limiter([rule]))
        .with_peer(|parts| Some(parts.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    let channel = connect(layer).await;

    let response = call_echo(&channel, "hello").await.unwrap();
    assert_eq!(response.get_ref().text, "hello");
    assert_eq!(metadata_value(response.metadata(), "x-ratelimit-remaining"), Some("0"));

    let denied = call_echo(&channel, "hello").await.unwrap_err();
    assert_eq!((denied.code(), denied.message()), (Code::ResourceExhausted, "Später wieder: 100 %"));
    assert_eq!(metadata_value(denied.metadata(), "retry-after"), Some("3600"));
    assert_eq!(metadata_value(denied.metadata(), "retry-after-ms"), Some("3600000"));
    assert_eq!(metadata_value(denied.metadata(), "grpc-retry-pushback-ms"), Some("3600000"));
    assert_eq!(metadata_value(denied.metadata(), "ratelimit"), Some(r#""api";r=0;t=3600"#));
}

/// gRPC clients expect HTTP 200 and their content type with every gRPC status.
#[tokio::test]
async fn a_rejection_has_the_protocol_of_the_client() {
    let denying = connect(LimitLayer::new(limiter([Rule::new("closed", burst(0))]))).await;
    let rule = Rule::new("pay", burst(9)).with_on_failure(OnFailure::Closed);
    let failing = connect(crate::layer::failures::failing_layer([rule], false).0).await;
    for (sent, received, denied, failed) in [
        ("application/grpc", "application/grpc", (200, Some("8")), (200, Some("14"))),
        ("application/grpc+proto", "application/grpc", (200, Some("8")), (200, Some("14"))),
        ("application/grpc-web+proto", "application/grpc-web+proto", (200, Some("8")), (200, Some("14"))),
        ("application/grpc-web-text", "application/grpc-web-text", (200, Some("8")), (200, Some("14"))),
        ("application/grpcfoo", "application/json", (429, None), (503, None)),
    ] {
        for (channel, expected) in [(&denying, denied), (&failing, failed)] {
            let request =
                http::Request::post("/test.Echo/Say").header("content-type", sent).body(Body::empty()).unwrap();
            let response = channel.clone().oneshot(request).await.unwrap();
            let field = |name| response.headers().get(name).map(|value: &http::HeaderValue| value.to_str().unwrap());
            assert_eq!((response.status().as_u16(), field("grpc-status")), expected, "{sent}");
            assert_eq!(field("content-type"), Some(received), "{sent}");
            assert_eq!(response.headers().get_all("content-type").iter().count(), 1, "{sent}");
        }
    }
}

#[tokio::test]
async fn rules_count_by_the_peer_address_of_tonic() {
    let layer = LimitLayer::new(limiter([Rule::new("api", burst(1)).with_per(["ip"])]))
        .with_peer(|parts| Some(parts.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    let handle = layer.handle();
    let channel = connect(layer).await;
    assert!(call_echo(&channel, "hello").await.is_ok());
    let local = tidegate::Request::new("").with_attribute("ip", "127.0.0.1");
    assert!(!handle.limiter().check_now(&local).is_allowed());
}

#[tokio::test]
async fn a_permanent_denial_forbids_grpc_retries() {
    let channel = connect(LimitLayer::new(limiter([Rule::new("closed", burst(0))]))).await;
    let denied = call_echo(&channel, "hello").await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(metadata_value(denied.metadata(), "retry-after"), None);
    assert_eq!(metadata_value(denied.metadata(), "grpc-retry-pushback-ms"), Some("-1"));
}

#[tokio::test]
async fn a_closed_rule_is_unavailable_while_the_store_fails() {
    let rule = Rule::new("pay", burst(9)).with_on_failure(OnFailure::Closed);
    let (layer, _) = crate::layer::failures::failing_layer([rule], false);
    let channel = connect(layer).await;
    let failed = call_echo(&channel, "hello").await.unwrap_err();
    assert_eq!((failed.code(), metadata_value(failed.metadata(), "retry-after")), (Code::Unavailable, Some("1")));
    assert_eq!(metadata_value(failed.metadata(), "cache-control"), None, "there is no body");
}
