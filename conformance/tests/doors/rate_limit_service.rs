//! Envoy's rate limit service, called like Envoy calls it: over gRPC, with a deadline.

use std::time::Duration;

use conformance::proxy::{NetworkFault, Proxy};
use conformance::server::{KINDS, Server};
use tempfile::TempDir;
use tidegate_server::envoy::RateLimitClient;
use tidegate_server::envoy::messages::{Code, Entry, RateLimitDescriptor, RateLimitRequest};
use tonic::Request;
use tonic::transport::Channel;

use crate::doors::setup::{deployed, start_tidegate};

/// The distance of the store: more than the 15 ms that a decision has by default.
const DISTANCE: Duration = Duration::from_millis(20);

/// What `deploy/envoy/envoy.yaml` sends for a ride.
fn ride() -> RateLimitRequest {
    let entries = [(":method", "GET"), (":path", "/api/rides"), (":authority", "a"), ("remote_address", "192.0.2.7")];
    let entries = entries.map(|(key, value)| Entry { key: key.to_owned(), value: value.to_owned() }).to_vec();
    let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "edge".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// The store budget is so large that only the store's distance matters, even if this machine is busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_distant_store_decides_every_call_whose_deadline_and_budget_allow_it() {
    for kind in KINDS {
        let (store, directory) = (Server::start(kind), TempDir::new().unwrap());
        let proxy = Proxy::start(store.port(), b"EVALSHA").await;
        proxy.inject(NetworkFault::DelayReplies(DISTANCE)).await;
        let (folder, url) = (deployed("envoy/ratelimit"), format!("redis://127.0.0.1:{}", proxy.port()));
        let flags = ["--envoy-config", folder.to_str().unwrap()];
        let tidegate = start_tidegate(directory.path(), &url, &flags);
        let channel = Channel::from_shared(format!("http://{}", tidegate.grpc())).unwrap();
        let mut client = RateLimitClient::new(channel.connect().await.unwrap());
        let mut codes = Vec::new();
        for _ in 0..8 {
            let mut call = Request::new(ride());
            call.set_timeout(Duration::from_secs(5));
            let response = client.should_rate_limit(call).await;
            let response = response.unwrap_or_else(|status| panic!("{status}; {}", tidegate.output())).into_inner();
            codes.push(Code::try_from(response.overall_code).unwrap());
        }
        assert_eq!(codes, [[Code::Ok; 5].as_slice(), &[Code::OverLimit; 3]].concat(), "the limit is 5 an hour");
    }
}
