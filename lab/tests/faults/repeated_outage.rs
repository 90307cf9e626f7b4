//! Repeated outages, and the proxy's own faults.

use std::time::Duration;

use conformance::proxy::{ForwardedCounts, NetworkFault, Proxy};
use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{count_allowed, one_limit_of_each_kind};
use tidegate::{Limiter, OnFailure, Request, Rule, RuleSet, StoreErrorKind};
use tidegate_redis::{RedisOptions, RedisStore};

/// A repeated outage does not grant the share again, so a client gains nothing by making the store flap.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_outage_gives_no_second_share() {
    for kind in KINDS {
        let server = Server::start(kind);
        let proxy = Proxy::start(server.port(), b"EVALSHA\r\n").await;
        let limiter = through(&proxy, OnFailure::Share, 20).await.with_instances(4);
        let (mut by_store, mut without) = (0, 0);
        for _ in 0..5 {
            for fault in [NetworkFault::Refuse, NetworkFault::None] {
                proxy.inject(fault).await;
                until_decided(&limiter, fault == NetworkFault::None, &mut by_store, &mut without).await;
            }
        }
        assert_eq!((by_store, without), (20, 5), "{kind:?}: the limit, and one share of four");
    }
}

/// Each network fault has an effect on the store; otherwise the fault suite would prove nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_injects_each_network_fault() {
    let server = Server::start(Kind::Redis);
    let proxy = Proxy::start(server.port(), b"EVALSHA\r\n").await;
    let limiter = through(&proxy, OnFailure::Closed, 10_000).await;
    let long = Duration::from_mins(1);
    for fault in [
        NetworkFault::Refuse,
        NetworkFault::Blackhole,
        NetworkFault::CutReplies(1),
        NetworkFault::DelayReplies(long),
        NetworkFault::DelayRequests(long),
        NetworkFault::Trickle(long),
    ] {
        proxy.inject(fault).await;
        let error = limiter.check(&Request::new("")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{fault:?}: {error}");
        let refused = proxy.forwarded_counts();
        proxy.inject(NetworkFault::None).await;
        let (mut by_store, mut without) = (0, 0);
        until_decided(&limiter, true, &mut by_store, &mut without).await;
        assert!(by_store > 0 && without == 0, "{fault:?}");
        let ForwardedCounts { decisions, up, down, .. } = proxy.forwarded_counts();
        assert!(decisions > refused.decisions && up > refused.up && down > refused.down, "{fault:?}");
    }
    // Byte by byte without a pause is harmless with a generous timeout.
    proxy.inject(NetworkFault::Trickle(Duration::ZERO)).await;
    assert_eq!(count_allowed(&limiter, 1, 50).await, 50);
    proxy.inject(NetworkFault::DelayReplies(Duration::from_millis(1))).await;
    assert_eq!(count_allowed(&limiter, 1, 50).await, 50);
}

async fn through(proxy: &Proxy, policy: OnFailure, amount: u64) -> Limiter<RedisStore> {
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let options = RedisOptions::new().with_timeout(Duration::from_millis(200)).with_heartbeats(false);
    let store = RedisStore::connect_with(&url, options).await.unwrap();
    Limiter::new(
        RuleSet::new([Rule::new("api", one_limit_of_each_kind(amount)[0]).with_on_failure(policy)]).unwrap(),
        store,
    )
}

/// Sends requests until the store decides (or does not) for a while, and counts what passes.
async fn until_decided(limiter: &Limiter<RedisStore>, by_it: bool, by_store: &mut u64, without: &mut u64) {
    let asking = async {
        let mut consecutive_by_store = 0;
        while consecutive_by_store < 30 {
            let decided = limiter.check(&Request::new("")).await;
            let is_its = decided.as_ref().is_ok_and(|decision| decision.degraded().is_none());
            consecutive_by_store = if is_its == by_it { consecutive_by_store + 1 } else { 0 };
            let passed = u64::from(decided.is_ok_and(|decision| decision.is_allowed()));
            *if is_its { &mut *by_store } else { &mut *without } += passed;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), asking).await.expect("the store fails and recovers");
}
