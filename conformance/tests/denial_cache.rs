//! The denial cache on real servers: what it answers is what the store would answer, changes elsewhere are seen within a second,
//! and a known offender stays denied when the store fails.

use std::cell::Cell;
use std::time::Duration;

use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{START, limits_with_window, long_timeout_options};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate::limits::Algorithm;
use tidegate::spi::{Check, CheckVerdict, Gate, Plan, Store, Subject};
use tidegate::{Ending, Limit, Limiter, ManualClock, OnFailure, Rate, Request, Rule, RuleSet};
use tidegate_redis::RedisStore;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Requests in each random history.
const HISTORY_LENGTH: usize = 60;

/// One request of a random history: how much later it comes, its cost, and the longest delay it accepts.
type Step = (u64, u64, Option<u64>);

fn histories() -> impl Strategy<Value = Vec<Step>> {
    let later = prop_oneof![Just(0), 0..2_000_u64, 0..400_000_u64, 0..3_000_000_u64];
    let delay = prop_oneof![Just(None), (0..2_000_000_u64).prop_map(Some)];
    prop::collection::vec((later, 0..12_u64, delay), HISTORY_LENGTH)
}

async fn connect(server: &Server, clock: &ManualClock) -> RedisStore {
    server.store_with(long_timeout_options().with_clock(clock.clone())).await
}

/// Every answer of the cache is compared with a peek at the same instant.
#[test]
fn the_cache_answers_exactly_what_the_store_would() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (index, limit) in
        limits_with_window(10, SECOND).into_iter().chain(limits_with_window(10, 10 * SECOND)).enumerate()
    {
        let server = Server::start(KINDS[index % 2]);
        let clock = ManualClock::starting_at(START);
        let store = runtime.block_on(connect(&server, &clock));
        let (gate, subject, answered) = (Gate::for_rule("api", limit), Cell::new(0), Cell::new(0));
        let mut runner = TestRunner::new(Config { cases: 20, failure_persistence: None, ..Config::default() });
        let result = runner.run(&histories(), |history| {
            subject.set(subject.get() + 1);
            for (later, cost, delay) in history {
                clock.advance(Duration::from_micros(later));
                let plan = Plan::new([Check::new(&gate, Subject::from_hash(subject.get()), cost)]).unwrap();
                let plan = delay.map_or(plan.clone(), |micros| plan.with_max_delay(Duration::from_micros(micros)));
                let Some(known) = store.known_denial(&plan) else {
                    runtime.block_on(store.decide(&plan)).unwrap();
                    continue;
                };
                answered.set(answered.get() + 1);
                let peek = runtime.block_on(store.decide(&plan.with_peek())).unwrap();
                prop_assert_eq!((peek.granted(), peek.decided_at()), (0, known.decided_at));
                prop_assert_eq!(comparable(&limit, cost, peek.checks()[0]), comparable(&limit, cost, known.verdict));
                prop_assert!(known.verdict.outcome.remaining <= peek.checks()[0].outcome.remaining);
            }
            Ok(())
        });
        assert_eq!(result, Ok(()), "{limit:?}");
        assert!(answered.get() > 20, "{limit:?}: {}", answered.get());
    }
}

/// The summary of a log does not say when units below the denied cost leave the window: for up to a second, `remaining` may be too
/// small for a cost above 1.
fn comparable(limit: &Limit, cost: u64, mut verdict: CheckVerdict) -> CheckVerdict {
    if limit.algorithm() == Algorithm::SlidingLog && cost > 1 {
        verdict.outcome.remaining = 0;
    }
    verdict
}

/// Two instances on one server and one clock, with one rule of 5 an hour for each user.
struct TwoInstances {
    server: Server,
    clock: ManualClock,
    here: Limiter<RedisStore>,
    elsewhere: Limiter<RedisStore>,
}

impl TwoInstances {
    async fn start(kind: Kind) -> Self {
        let (server, clock) = (Server::start(kind), ManualClock::starting_at(START));
        let limiter = async || Limiter::new(rules(5), connect(&server, &clock).await);
        let (here, elsewhere) = (limiter().await, limiter().await);
        Self { server, clock, here, elsewhere }
    }
}

fn rules(amount: u64) -> RuleSet {
    let rule = Rule::new("api", Limit::fixed_window(amount, HOUR).unwrap()).with_per(["user"]);
    RuleSet::new([rule.with_on_failure(OnFailure::Open)]).unwrap()
}

fn ann<'r>() -> Request<'r> {
    Request::new("").with_attribute("user", "ann")
}

async fn is_allowed(limiter: &Limiter<RedisStore>) -> bool {
    limiter.check(&ann()).await.unwrap().is_allowed()
}

/// The number of scripts that a server has run.
fn scripts_run(server: &Server) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn an_exhausted_subject_does_not_reach_the_server() {
    for kind in KINDS {
        let two = TwoInstances::start(kind).await;
        for expected in [true, true, true, true, true, false] {
            assert_eq!(is_allowed(&two.here).await, expected);
        }
        let before = scripts_run(&two.server);
        for _ in 0..1000 {
            let decision = two.here.check(&ann()).await.unwrap();
            assert_eq!((decision.is_allowed(), decision.rule(), decision.degraded()), (false, Some("api"), None));
            assert_eq!((decision.limit(), decision.remaining()), (Some(5), Some(0)));
            assert_eq!((decision.retry_after(), decision.reset_after()), (Some(HOUR), Some(HOUR)));
        }
        assert_eq!(scripts_run(&two.server), before);
        two.clock.advance(SECOND);
        assert!(!is_allowed(&two.here).await);
        assert_eq!(scripts_run(&two.server), before + 1, "once a second");
        let bob = Request::new("").with_attribute("user", "bob");
        assert!(two.here.check(&bob).await.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn a_refund_settlement_or_deletion_here_counts_at_once() {
    for kind in KINDS {
        let two = TwoInstances::start(kind).await;
        let exhaust = async || {
            let mut receipts = Vec::new();
            loop {
                let mut decision = two.here.check(&ann()).await.unwrap();
                if !decision.is_allowed() {
                    return receipts;
                }
                receipts.push(decision.take_grant());
            }
        };
        let mut receipts = exhaust().await;
        two.here.end(&mut receipts.pop().unwrap(), &Ending::Refund).await.unwrap();
        assert!(is_allowed(&two.here).await && !is_allowed(&two.here).await);
        two.here.end(&mut receipts.pop().unwrap(), &Ending::Settle(0.into())).await.unwrap();
        assert!(is_allowed(&two.here).await && !is_allowed(&two.here).await);
        two.here.forget(&ann()).await.unwrap();
        assert_eq!(exhaust().await.len(), 5);
        two.here.store().forget_namespace().await.unwrap();
        assert_eq!(exhaust().await.len(), 5);
    }
}

#[tokio::test]
async fn a_refund_or_deletion_elsewhere_counts_within_a_second() {
    for kind in KINDS {
        let two = TwoInstances::start(kind).await;
        let mut last = None;
        for _ in 0..5 {
            last = Some(two.elsewhere.check(&ann()).await.unwrap());
        }
        assert!(!is_allowed(&two.here).await);
        two.elsewhere.end(&mut last.unwrap().take_grant(), &Ending::Refund).await.unwrap();
        assert!(!is_allowed(&two.here).await, "not seen yet");
        two.clock.advance(Duration::from_micros(999_999));
        assert!(!is_allowed(&two.here).await, "not seen yet");
        two.clock.advance(Duration::from_micros(1));
        assert!(is_allowed(&two.here).await);

        assert!(!is_allowed(&two.here).await);
        two.elsewhere.forget(&ann()).await.unwrap();
        two.clock.advance(SECOND);
        assert!(is_allowed(&two.here).await);
    }
}

#[tokio::test]
async fn a_raised_limit_counts_at_once() {
    let two = TwoInstances::start(Kind::Redis).await;
    while is_allowed(&two.here).await {}
    let raised = two.here.with_rules(rules(6));
    assert!(is_allowed(&raised).await && !is_allowed(&raised).await);
    assert!(!is_allowed(&two.here.with_rules(rules(5))).await);
}

/// The cache is asked before the failure policy, which lets everybody else pass here.
#[tokio::test]
async fn a_known_offender_stays_denied_for_the_second_when_the_store_dies() {
    let mut two = TwoInstances::start(Kind::Redis).await;
    while is_allowed(&two.here).await {}
    two.server.kill();
    let bob = two.here.check(&Request::new("").with_attribute("user", "bob")).await.unwrap();
    assert!(bob.is_allowed() && bob.degraded().is_some());
    let decision = two.here.check(&ann()).await.unwrap();
    assert_eq!((decision.is_allowed(), decision.degraded(), decision.rule()), (false, None, Some("api")));
    two.clock.advance(SECOND);
    let decision = two.here.check(&ann()).await.unwrap();
    assert!(decision.is_allowed() && decision.degraded().is_some(), "the failure policy decides now");
}

/// A cached check denies the whole plan, and the other checks consume nothing.
#[tokio::test]
async fn a_known_denial_consumes_nothing_of_the_other_rules() {
    let (server, clock) = (Server::start(Kind::Redis), ManualClock::starting_at(START));
    let by_user = Rule::new("user", Limit::fixed_window(2, HOUR).unwrap()).with_per(["user"]);
    let all = Rule::new("all", Limit::token_bucket(10, Rate::per_hour(1).unwrap()).unwrap());
    let limiter = Limiter::new(RuleSet::new([by_user, all]).unwrap(), connect(&server, &clock).await);
    for _ in 0..10 {
        let decision = limiter.check(&ann()).await.unwrap();
        assert!(decision.is_allowed() || decision.rule() == Some("user"));
    }
    let bob = limiter.check(&Request::new("").with_attribute("user", "bob")).await.unwrap();
    assert_eq!(bob.checks().last().unwrap().outcome().remaining, 7);
}
