//! A decision that was possibly applied is not sent again. The proxy counts what is sent.

use std::ops::RangeInclusive;
use std::time::Duration;

use conformance::proxy::{NetworkFault, Proxy};
use conformance::server::{KINDS, Server};
use conformance::suite::{key_name, long_timeout_options, one_limit_of_each_kind};
use tidegate::{Limit, Limiter, MemoryStore, OnFailure, Request, Rule, RuleSet, StoreErrorKind};
use tidegate_redis::{RedisOptions, RedisStore};

const TIMEOUT: Duration = Duration::from_millis(200);
const RECOVERY_TIMEOUT: Duration = Duration::from_mins(1);

/// How the reply gets lost, and how often the server may have counted the decision.
const REPLY_LOSSES: [(NetworkFault, RangeInclusive<u64>); 4] = [
    (NetworkFault::Blackhole, 0..=0),
    (NetworkFault::DelayReplies(RECOVERY_TIMEOUT), 1..=1),
    (NetworkFault::DelayRequests(RECOVERY_TIMEOUT), 0..=1),
    (NetworkFault::CutReplies(2), 1..=1),
];

/// However the reply gets lost, the decision is sent once, counts at most once, and is reported as possibly applied.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_whose_reply_is_lost_is_sent_once() {
    for kind in KINDS {
        let server = Server::start(kind);
        let direct = server.store_with(long_timeout_options()).await;
        for (number, (fault, counted)) in REPLY_LOSSES.into_iter().enumerate() {
            for limit in one_limit_of_each_kind(10) {
                let (rules, pay) = (rules(number, limit), Request::new("pay"));
                let mark = key_name(Limiter::new(rules.clone(), MemoryStore::new()).plan(&pay).checks()[0].key());
                let proxy = Proxy::start(server.port(), &mark).await;
                let url = format!("redis://127.0.0.1:{}", proxy.port());
                let store =
                    RedisStore::connect_with(&url, RedisOptions::new().with_timeout(TIMEOUT).with_heartbeats(false))
                        .await
                        .unwrap();
                let through = Limiter::new(rules.clone(), store);
                proxy.inject(fault).await;
                let error = through.check(&pay).await.unwrap_err();
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{kind:?} {limit:?} {fault:?}: {error}");
                assert!(error.is_possibly_applied(), "{kind:?} {limit:?} {fault:?}: {error:?}");
                proxy.inject(NetworkFault::None).await;
                // After the fault, a client that resends would have done so.
                let back = async { while through.check(&Request::new("look")).await.is_err() {} };
                tokio::time::timeout(RECOVERY_TIMEOUT, back).await.expect("the store recovers");
                assert_eq!(proxy.forwarded_counts().decisions, 1, "{kind:?} {limit:?} {fault:?}");
                let left = Limiter::new(rules, direct.clone()).peek(&pay).await.unwrap().remaining().unwrap();
                assert!(counted.contains(&(10 - left)), "{kind:?} {limit:?} {fault:?}: {left} left");
            }
        }
    }
}

/// One rule for the counted decision, and one to probe the store.
fn rules(number: usize, limit: Limit) -> RuleSet {
    let pay = Rule::new(format!("pay{number}"), limit).with_action("pay");
    let look = Rule::new("look", one_limit_of_each_kind(60_000)[0]).with_action("look");
    RuleSet::new([pay, look].map(|rule| rule.with_on_failure(OnFailure::Closed))).unwrap()
}
