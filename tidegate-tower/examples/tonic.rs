//! Limits in tonic: a server that greets two clients and rejects the third, with the time until a retry.
//!
//! `cargo run -p tidegate-tower --example tonic`

use std::error::Error;

use greeter::{Greeter, Word};
use http::uri::PathAndQuery;
use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
use tidegate_tower::LimitLayer;
use tonic::metadata::MetadataMap;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server};
use tonic_prost::ProstCodec;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let rules = RuleSet::new([Rule::new("greetings", Limit::token_bucket(2, Rate::per_minute(1)?)?)
        .with_per(["ip", "path"]) // the path of a gRPC request is its method
        .with_message("Two greetings at once, then one a minute.")])?;
    let limits = LimitLayer::new(Limiter::new(rules, MemoryStore::new()))
        .with_peer(|parts| Some(parts.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));

    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let address = incoming.local_addr()?;
    tokio::spawn(Server::builder().layer(limits).add_service(Greeter).serve_with_incoming(incoming));

    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    for name in ["Ann", "Ben", "Cleo"] {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await?;
        let request = tonic::Request::new(Word { text: name.to_owned() });
        let method = PathAndQuery::from_static("/hello.Greeter/Greet");
        match client.unary(request, method, ProstCodec::<Word, Word>::default()).await {
            Ok(greeting) => {
                println!("{} ({})", greeting.get_ref().text, metadata_value(greeting.metadata(), "ratelimit"));
            }
            Err(status) => {
                let seconds = metadata_value(status.metadata(), "retry-after");
                println!("{:?}: {} Retry in {seconds} seconds.", status.code(), status.message());
            }
        }
    }
    Ok(())
}

fn metadata_value<'m>(metadata: &'m MetadataMap, name: &str) -> &'m str {
    metadata.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// What `tonic-prost-build` generates from a `.proto` file, written by hand, so that the example needs no compiler.
mod greeter {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tonic::body::Body;
    use tonic::{Request, Response, Status};
    use tonic_prost::ProstCodec;
    use tower::{Service, service_fn};

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Word {
        #[prost(string, tag = "1")]
        pub(crate) text: String,
    }

    #[derive(Clone)]
    pub(crate) struct Greeter;

    impl tonic::server::NamedService for Greeter {
        const NAME: &'static str = "hello.Greeter";
    }

    impl Service<http::Request<Body>> for Greeter {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let greet = service_fn(async |name: Request<Word>| {
                Ok::<_, Status>(Response::new(Word { text: format!("Hello {}", name.into_inner().text) }))
            });
            Box::pin(async move { Ok(tonic::server::Grpc::new(ProstCodec::default()).unary(greet, request).await) })
        }
    }
}
