//! What each failure policy lets pass at each front end that answers requests, and how the front end says so. Each front end listens.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::AppendHeaders;
use conformance::http_client::{HttpClient, HttpResponse, json_request};
use conformance::suite::{serve, start_gateway};
use serde_json::Value;
use tidegate::spi::FailingStore;
use tidegate::{Limit, Limiter, ManualClock, OnFailure, Rate, Rule, RuleSet, StoreError, StoreErrorKind};
use tidegate_redis::{RedisOptions, RedisStore};
use tidegate_server::envoy::{EnvoyService, router};
use tidegate_server::{AnyStore, CheckApi};
use tidegate_tower::{DegradedMode, Handle, LimitLayer};

const POLICIES: [OnFailure; 6] =
    [OnFailure::Open, OnFailure::Degraded, OnFailure::Closed, OnFailure::Local, OnFailure::Share, OnFailure::Static];
const REQUESTS: usize = 10;
const INSTANCES: u32 = 3;
/// What a handler or an upstream adds to its response if it sees that the request is degraded.
const SEEN: &str = "x-seen-degraded";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The store does not answer.
    Unavailable,
    /// Too many plans wait in this instance.
    Overloaded,
    /// The subject has other plans waiting then.
    Crowded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Marked as degraded.
    Passes,
    Denied,
    /// Since it cannot be decided.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Layer,
    Gateway,
    Envoy,
    CheckApi,
    ForwardAuth,
}

/// How many requests pass of a limit of 6, and with a static limit of 3; the others are denied. `None` if all are refused.
fn documented(policy: OnFailure, failure: Failure) -> Option<usize> {
    match (policy, failure) {
        (OnFailure::Closed, _) | (_, Failure::Crowded) => None,
        (OnFailure::Open | OnFailure::Degraded, Failure::Unavailable) => Some(REQUESTS),
        (OnFailure::Share, _) => Some(2),
        (OnFailure::Static, _) => Some(3),
        // An overload opens no rule.
        _ => Some(6),
    }
}

fn rules(policy: OnFailure) -> RuleSet {
    let bucket = |capacity| Limit::token_bucket(capacity, Rate::per_hour(1).unwrap()).unwrap();
    let rule = Rule::new("api", bucket(6)).with_on_failure(policy).with_static_limit(bucket(3));
    RuleSet::new([rule]).unwrap()
}

impl Failure {
    fn error(self) -> StoreError {
        match self {
            Self::Unavailable => StoreError::new(StoreErrorKind::Unavailable, "10.0.0.7 went away"),
            Self::Overloaded => StoreError::new(StoreErrorKind::Overloaded, "4096 plans wait"),
            Self::Crowded => StoreError::new(StoreErrorKind::Overloaded, "4096 plans wait").with_crowded(),
        }
    }
}

impl Door {
    /// The front ends whose store can fail like this in a test.
    fn all(failure: Failure) -> &'static [Self] {
        match failure {
            Failure::Unavailable => &[Self::Layer, Self::Gateway, Self::Envoy, Self::CheckApi, Self::ForwardAuth],
            _ => &[Self::Layer, Self::Gateway, Self::Envoy],
        }
    }

    /// Starts it with a rule of this policy.
    async fn start(self, policy: OnFailure, failure: Failure) -> SocketAddr {
        let limiter =
            || Limiter::new(rules(policy), FailingStore::failing_with(failure.error())).with_instances(INSTANCES);
        match self {
            Self::Layer => {
                let page = async |request: Request| {
                    (request.extensions().get::<DegradedMode>().map(|_| [(SEEN, "true")]), "hello")
                };
                serve(Router::new().fallback(page).layer(LimitLayer::new(limiter()))).await
            }
            Self::Gateway => {
                let upstream = async |headers: HeaderMap| {
                    let seen = headers.get_all("x-tidegate-degraded").iter().cloned();
                    (AppendHeaders(seen.map(|value| (SEEN, value)).collect::<Vec<_>>()), "hello")
                };
                let upstream = serve(Router::new().fallback(upstream)).await;
                start_gateway(upstream, LimitLayer::new(limiter())).await.0
            }
            Self::Envoy => serve(router(EnvoyService::from_rules(Handle::new(limiter())))).await,
            Self::CheckApi | Self::ForwardAuth => {
                let store = AnyStore::Redis(RedisStore::open("redis://127.0.0.1:1", RedisOptions::new()).unwrap());
                let line = format!("serve --secret s1 --instances {INSTANCES}");
                let api = CheckApi::start(&line, store, Arc::new(ManualClock::default())).unwrap();
                api.set_rules(rules(policy));
                serve(api.router()).await
            }
        }
    }

    async fn ask(self, client: &mut HttpClient, address: SocketAddr) -> HttpResponse {
        let request = match self {
            // A client that says that it is not degraded.
            Self::Layer | Self::Gateway => "GET / HTTP/1.1\r\nhost: a\r\nx-tidegate-degraded: no\r\n\r\n".to_owned(),
            Self::Envoy => {
                let body = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
                json_request("POST", "/json", body)
            }
            Self::CheckApi => json_request("POST", "/v1/check", "{}"),
            Self::ForwardAuth => {
                "GET /v1/forward-auth HTTP/1.1\r\nhost: localhost\r\nx-forwarded-uri: /\r\n\r\n".to_owned()
            }
        };
        client.send(address, request.as_bytes()).await.unwrap()
    }

    /// Reads the outcome. Whatever it is, the response names no numbers, which the instance does not know, and no address.
    fn outcome(self, response: &HttpResponse, failure: Failure) -> Outcome {
        assert!(response.field("ratelimit").is_none() && response.field("x-ratelimit-limit").is_none(), "{response:?}");
        assert!(!response.text().contains("10.0.0.7"), "{response:?}");
        let json: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        match (self, response.status) {
            (Self::Envoy, 200) => {
                let degraded = serde_json::json!({ "key": "x-tidegate-degraded", "value": "true" });
                assert_eq!(json["requestHeadersToAdd"][0], degraded);
                Outcome::Passes
            }
            (Self::CheckApi, 200) => {
                assert!(json["degraded"] == true && json["remaining"].is_null(), "{json}");
                if json["allowed"] == true { Outcome::Passes } else { Outcome::Denied }
            }
            (_, 200) => {
                let mark = if self == Self::ForwardAuth { "x-tidegate-degraded" } else { SEEN };
                assert_eq!(response.field(mark), Some("true"), "{response:?}");
                Outcome::Passes
            }
            (Self::Envoy, 429) => {
                assert!(json["statuses"][0]["currentLimit"].is_null(), "{json}");
                Outcome::Denied
            }
            (_, 429) => {
                assert!(response.retry_after().is_some() && json["error"] == "rate_limit_exceeded", "{response:?}");
                Outcome::Denied
            }
            (_, 503) => {
                let error = if failure == Failure::Unavailable { "temporarily_unavailable" } else { "overloaded" };
                assert_eq!(response.retry_after(), Some(1), "{response:?}");
                if self != Self::Envoy {
                    let fields = ["retry-after-ms", "content-type", "cache-control"].map(|name| response.field(name));
                    assert_eq!(fields, [Some("1000"), Some("application/json"), Some("no-store")], "{response:?}");
                    assert_eq!(json["error"], error, "{response:?}");
                }
                Outcome::Refused
            }
            _ => panic!("{response:?}"),
        }
    }
}

#[tokio::test]
async fn every_front_end_lets_pass_what_the_failure_policy_says() {
    for failure in [Failure::Unavailable, Failure::Overloaded, Failure::Crowded] {
        let doors = |policy: OnFailure| Door::all(failure).iter().map(move |door| (policy, *door));
        for (policy, door) in POLICIES.into_iter().flat_map(doors) {
            println!("{door:?}, {policy:?}, {failure:?}");
            let (address, mut client) = (door.start(policy, failure).await, HttpClient::default());
            let mut outcomes = Vec::new();
            for _ in 0..REQUESTS {
                outcomes.push(door.outcome(&door.ask(&mut client, address).await, failure));
            }
            let (passing, others) = match documented(policy, failure) {
                Some(passing) => (passing, Outcome::Denied),
                // Envoy lets a request pass after an error, so that a client who overloads the server would pass without a limit.
                None if door == Door::Envoy && failure != Failure::Unavailable => (0, Outcome::Denied),
                None => (0, Outcome::Refused),
            };
            assert_eq!(outcomes, [vec![Outcome::Passes; passing], vec![others; REQUESTS - passing]].concat());
        }
    }
}
