//! Differential fuzzing of the gateway: what was judged is what the upstream gets.
//!
//! ```text
//! random bytes of a request ──▶ gateway ──▶ nginx │ Flask │ Node │ axum ──▶ what it read from the request
//!                                 └── rules that deny some values              └── must be none of these values
//! ```
//!
//! The rules deny one path, method, host, key, account, session and user each. Requests spell these in every way that the
//! [generator](generator) knows. A request that reaches an upstream is judged again, naively, by what the upstream says it read: if that is
//! a denied value, the request escaped its rule.
//!
//! Requests come from fixed seeds. `TIDEGATE_STEPS=100000` sends that many to each upstream, and `TIDEGATE_PATHS=hostile` or `plain`
//! chooses the spellings of paths and methods.

mod generator;
mod judge;
mod rules;
mod upstream;

use std::net::SocketAddr;
use std::sync::Arc;

use conformance::dose;
use conformance::http_client::{HttpClient, HttpResponse, NoResponse};
use conformance::suite::start_gateway;
use tidegate::{Limiter, MemoryStore};
use tidegate_tower::LimitLayer;

use generator::{PathAlphabet, request};
use judge::Report;
use rules::RuleCase;
use upstream::Upstream;

/// Requests to each upstream in `make test`.
const DEFAULT_REQUESTS: u64 = 1_000;

/// The spellings of paths and methods in `make test`.
const DEFAULT_PATHS: PathAlphabet = PathAlphabet::Hostile;

/// Requests in flight at once.
const CONCURRENCY: u64 = 8;

/// What became of the requests.
#[derive(Debug, Default)]
struct Tally {
    /// Reached the upstream.
    reached: u64,
    /// Denied by a rule.
    denied: u64,
    /// Refused as ambiguous or malformed.
    refused: u64,
}

/// Starts a gateway with these rules in front of an upstream.
async fn gateway(case: &RuleCase, upstream: SocketAddr) -> SocketAddr {
    let limiter = Limiter::new(case.rules(), Arc::new(MemoryStore::new()));
    RuleCase::use_up(&limiter);
    start_gateway(upstream, LimitLayer::new(limiter)).await.0
}

/// Sends random requests, and checks what the upstream read from each that reached it.
async fn fuzz(case: RuleCase, upstream: Upstream) {
    let address = gateway(&case, upstream.address).await;
    let (paths, requests) = (PathAlphabet::from_environment().unwrap_or(DEFAULT_PATHS), dose::steps(DEFAULT_REQUESTS));
    let (case, format) = (Arc::new(case), upstream.format);
    let sender = move |first: u64| {
        let case = Arc::clone(&case);
        async move {
            let mut tally = Tally::default();
            for seed in (first..requests).step_by(CONCURRENCY as usize) {
                let bytes = request(seed, paths);
                let shown = || format!("seed {seed}: {}", bytes.escape_ascii());
                let response = send(address, &bytes).await.unwrap_or_else(|error| panic!("{error:?}, {}", shown()));
                match response.status {
                    200 => {
                        let report = Report::read(format, &response.body);
                        let escaped = case.escaped(&report);
                        assert!(escaped.is_empty(), "escaped {escaped:?}\n{report:?}\n{}", shown());
                        tally.reached += 1;
                    }
                    429 => tally.denied += 1,
                    500 | 502..=599 => panic!("{response:?}\n{}", shown()),
                    _ => tally.refused += 1,
                }
            }
            tally
        }
    };
    let senders: Vec<_> = (0..CONCURRENCY).map(|first| tokio::spawn(sender(first))).collect();
    let mut total = Tally::default();
    for sender in senders {
        let tally = sender.await.unwrap();
        total.reached += tally.reached;
        total.denied += tally.denied;
        total.refused += tally.refused;
    }
    // Otherwise the requests are of one kind, and the test shows little.
    for count in [total.reached, total.denied, total.refused] {
        assert!(count * 50 > requests, "{total:?} of {requests}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_escapes_a_rule_in_front_of_nginx() {
    fuzz(RuleCase::denied_values(), Upstream::nginx()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_escapes_a_rule_in_front_of_axum() {
    fuzz(RuleCase::denied_values(), Upstream::axum().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_passes_as_exempt_that_an_upstream_reads_otherwise() {
    for upstream in [Upstream::nginx(), Upstream::axum().await] {
        fuzz(RuleCase::one_exempt_path(), upstream).await;
    }
}

/// Without this, a denied value that no request contains would never escape.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plain_spelling_of_each_denied_value_is_denied() {
    let upstream = Upstream::axum().await;
    let address = gateway(&RuleCase::denied_values(), upstream.address).await;
    let status = async |bytes: &str| send(address, bytes.as_bytes()).await.unwrap().status;
    let fields = "host: shop.example\r\n";
    assert_eq!(
        status(&format!("GET /a?account=b HTTP/1.1\r\n{fields}x-api-key: k\r\ncookie: sid=c\r\n\r\n")).await,
        200
    );
    for text in [
        format!("GET {} HTTP/1.1\r\n{fields}\r\n", rules::PATH),
        format!("{} /a HTTP/1.1\r\n{fields}\r\n", rules::METHOD),
        format!("GET /a HTTP/1.1\r\nhost: {}\r\n\r\n", rules::HOST),
        format!("GET /a HTTP/1.1\r\n{fields}x-api-key: {}\r\n\r\n", rules::MATCHED_KEY),
        format!("GET /a HTTP/1.1\r\n{fields}x-api-key: {}\r\n\r\n", rules::COUNTED_KEY),
        format!("GET /a?account={} HTTP/1.1\r\n{fields}\r\n", rules::ACCOUNT),
        format!("GET /a HTTP/1.1\r\n{fields}cookie: sid={}\r\n\r\n", rules::SESSION),
        format!("GET /a HTTP/1.1\r\n{fields}authorization: Bearer {}\r\n\r\n", rules::token(rules::USER)),
    ] {
        assert_eq!(status(&text).await, 429, "{text}");
    }
}

/// Sends the bytes of a request on a connection of its own.
async fn send(address: SocketAddr, request: &[u8]) -> Result<HttpResponse, NoResponse> {
    HttpClient::default().send(address, request).await
}

/// Upstreams in other languages; `make prove` runs them.
mod prove {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_request_escapes_a_rule_in_front_of_flask() {
        fuzz(RuleCase::denied_values(), Upstream::flask()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_request_escapes_a_rule_in_front_of_node() {
        fuzz(RuleCase::denied_values(), Upstream::node()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_request_passes_as_exempt_that_flask_or_node_reads_otherwise() {
        for upstream in [Upstream::flask(), Upstream::node()] {
            fuzz(RuleCase::one_exempt_path(), upstream).await;
        }
    }
}
