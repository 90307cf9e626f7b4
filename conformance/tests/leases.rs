//! Concurrency limits: slots are held by their owners alone, run out by themselves, and are released by whatever ends a request. The
//! tests move the clock; nothing really waits.

mod front_ends;
mod overflow;
mod waiting;
mod work;

use std::time::Duration;
use tidegate::spi::algorithm::AdjustmentOutcome;

use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{
    AnyStore, MAX_WAIT, count_allowed, decide_all, key_name, left, long_timeout_options, on_every_store,
};
use conformance::topology::Cluster;
use tidegate::grants::{GrantError, Retake};
use tidegate::spi::{Adjustment, Check, Gate, LeaseOwner, Plan, PlanMode, Store, Subject};
use tidegate::{Decision, Ending, Grant, Limit, Limiter, OnFailure, Rate, Request, Rule, RuleSet};
use tidegate_redis::{RedisOptions, RedisStore};

const MICROSECOND: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

fn slots(max: u64) -> Limit {
    Limit::concurrency(max, LEASE).unwrap()
}

/// For tests on the time of the server: a lease that does not run out, however busy the machine is.
fn long_slots(max: u64) -> Limit {
    Limit::concurrency(max, 120 * LEASE).unwrap()
}

async fn take<S: Store>(limiter: &Limiter<S>) -> Decision {
    limiter.check(&Request::new("")).await.unwrap()
}

async fn hold<S: Store>(limiter: &Limiter<S>) -> Grant {
    take(limiter).await.take_grant()
}

#[tokio::test]
async fn a_stranger_frees_no_slot_and_a_refund_of_a_released_one_nothing() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(slots(2));
        let (mut first, mut second) = (hold(&limiter).await, hold(&limiter).await);
        let plan = limiter.plan(&Request::new(""));
        let stranger = Adjustment::release(&plan.checks()[0], LeaseOwner::random());
        limiter.plans().adjust(&[stranger]).await.unwrap();
        assert_eq!(left(&limiter).await, 0);
        limiter.end(&mut first, &Ending::Release).await.unwrap();
        limiter.end(&mut second, &Ending::Refund).await.unwrap();
        limiter.end(&mut first, &Ending::Refund).await.unwrap();
        assert_eq!((left(&limiter).await, count_allowed(&limiter, 1, 5).await), (2, 2));
    })
    .await;
}

/// A slot is not a price: a response that says that it cost nothing still runs.
#[tokio::test]
async fn settling_the_cost_of_a_request_leaves_its_slot_held() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(slots(2));
        let mut decision = limiter.check(&Request::new("").with_cost(2)).await.unwrap();
        let mut lease = decision.take_grant();
        limiter.end(&mut decision.take_grant(), &Ending::Settle(0.into())).await.unwrap();
        assert_eq!(left(&limiter).await, 0);
        limiter.end(&mut lease, &Ending::Release).await.unwrap();
        assert_eq!(left(&limiter).await, 2);
    })
    .await;
}

/// The release is sent again until the server answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_released_while_the_server_hangs_is_free_when_it_answers_again() {
    for kind in KINDS {
        let server = Server::start(kind);
        let options = RedisOptions::new().with_timeout(Duration::from_millis(100)).with_heartbeats(false);
        let store = server.store_with(options).await;
        let rule = Rule::new("r", long_slots(2)).with_on_failure(OnFailure::Closed);
        let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store);
        let lease = loop {
            // A busy machine may be late.
            if let Ok(mut decision) = limiter.check(&Request::new("")).await
                && decision.is_allowed()
            {
                break decision.take_grant();
            }
        };
        server.hang();
        // Executed when the server goes on, long after its caller has the error.
        assert!(limiter.check(&Request::new("")).await.is_err());
        limiter.spawn_end(lease, &Ending::Release);
        server.resume();
        let is_free = async {
            loop {
                match limiter.peek(&Request::new("")).await {
                    Ok(peeked) if peeked.remaining() == Some(2) => return,
                    _ => conformance::poll::pause_task().await,
                }
            }
        };
        tokio::time::timeout(MAX_WAIT, is_free).await.expect("both slots are free again");
    }
}

/// A request that holds a slot for a millisecond must not cost the server a call for its release alone.
#[tokio::test]
async fn releases_in_the_background_share_calls() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options()).await;
        let limiter = Limiter::new(RuleSet::new([Rule::new("r", long_slots(1_000))]).unwrap(), store);
        let mut leases = Vec::new();
        for _ in 0..1_000 {
            leases.push(hold(&limiter).await);
        }
        assert_eq!(left(&limiter).await, 0);
        let before = server.calls("evalsha");
        for lease in leases {
            limiter.spawn_end(lease, &Ending::Release);
        }
        // Peeks are other commands.
        while left(&limiter).await < 1_000 {}
        assert_eq!(server.calls("evalsha") - before, 8, "{kind:?}: at most 128 releases in each call");
    }
}

/// Whatever the clock does, nobody is admitted above the limit, and nobody is locked out for longer than a lease.
#[tokio::test]
async fn a_clock_that_jumps_back_neither_frees_slots_nor_locks_them_for_longer_than_a_lease() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(Limit::concurrency(2, SECOND).unwrap());
        let start = tidegate::Clock::now(&fixture.clock);
        let (_first, second) = (hold(&limiter).await, hold(&limiter).await);
        fixture.clock.set(tidegate::Timestamp::from_micros(start.as_micros() - 3_600_000_000));
        assert_eq!(count_allowed(&limiter, 1, 3).await, 0);
        limiter.renew(&second, Retake::No).await.unwrap();
        fixture.clock.advance(SECOND.saturating_sub(MICROSECOND));
        assert_eq!(count_allowed(&limiter, 1, 3).await, 0);
        fixture.clock.advance(MICROSECOND);
        assert_eq!(count_allowed(&limiter, 1, 3).await, 2);
    })
    .await;
}

/// The store is emptied: holders are told, new ones are judged by what is known, and a lease later no more than the limit is held.
#[tokio::test]
async fn holders_whose_slots_the_store_has_forgotten_are_told_so() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(slots(2));
        let (first, mut second) = (hold(&limiter).await, hold(&limiter).await);
        limiter.forget(&Request::new("")).await.unwrap();
        assert!(matches!(limiter.renew(&first, Retake::No).await, Err(GrantError::NotHeld)));
        let _third = hold(&limiter).await;
        assert!(matches!(limiter.renew(&second, Retake::No).await, Err(GrantError::NotHeld)));
        assert!(matches!(limiter.end(&mut second, &Ending::Release).await, Err(GrantError::NotHeld)));
        assert_eq!(left(&limiter).await, 1);
    })
    .await;
}

/// The same owner takes again, as after a call whose reply was lost.
#[tokio::test]
async fn a_take_that_is_repeated_by_its_owner_holds_one_slot() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(slots(2));
        let plan = limiter.plan(&Request::new(""));
        for _ in 0..3 {
            assert!(limiter.plans().check(&plan).await.unwrap().is_allowed());
        }
        assert_eq!(left(&limiter).await, 1);
    })
    .await;
}

#[tokio::test]
async fn denied_requests_hold_no_slot_even_if_each_check_counts() {
    on_every_store(async |fixture| {
        let hour = Limit::fixed_window(1, Duration::from_secs(3600)).unwrap();
        let limiter = fixture.limiter_of([Rule::new("slots", slots(5)), Rule::new("hour", hour)]);
        for mode in [PlanMode::AllOrNothing, PlanMode::CountEach] {
            let plan = limiter.plan(&Request::new("")).with_mode(mode);
            let mut decision = limiter.plans().check(&plan).await.unwrap();
            limiter.end(&mut decision.take_grant(), &Ending::Release).await.unwrap();
            for _ in 0..3 {
                let plan = limiter.plan(&Request::new("")).with_mode(mode);
                assert!(!limiter.plans().check(&plan).await.unwrap().is_allowed());
            }
            let peek = limiter.peek(&Request::new("")).await.unwrap();
            assert_eq!(peek.checks()[0].outcome().remaining, 5, "{mode:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn refunding_a_request_releases_its_slot_even_if_its_place_in_a_queue_is_stuck() {
    on_every_store(async |fixture| {
        let queue = Limit::leaky_bucket(Rate::per_second(1).unwrap(), 9).unwrap();
        let limiter = fixture.limiter_of([Rule::new("slots", slots(9)), Rule::new("queue", queue)]);
        let mut first = take(&limiter).await;
        let _second = take(&limiter).await;
        limiter.end(&mut first.take_grant(), &Ending::Refund).await.unwrap();
        let peek = limiter.peek(&Request::new("")).await.unwrap();
        assert_eq!(peek.checks()[0].outcome().remaining, 8);
    })
    .await;
}

/// A denial must not outlive the release of a slot, on this instance or another.
#[tokio::test]
async fn a_denial_is_never_repeated_after_a_release() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (one, other) =
            (server.store_with(long_timeout_options()).await, server.store_with(long_timeout_options()).await);
        let limiter =
            |store: &RedisStore| Limiter::new(RuleSet::new([Rule::new("r", long_slots(1))]).unwrap(), store.clone());
        let (one, other) = (limiter(&one), limiter(&other));
        for _ in 0..20 {
            let mut lease = hold(&one).await;
            assert_eq!(count_allowed(&other, 1, 2).await, 0);
            one.end(&mut lease, &Ending::Release).await.unwrap();
            other.end(&mut hold(&other).await, &Ending::Release).await.unwrap();
        }
        assert_eq!(other.store().denial_cache_entries(), 0);
    }
}

/// Many takes and releases at the same time, which the store combines.
#[tokio::test]
async fn no_more_than_the_limit_is_ever_held_under_concurrent_takes() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options()).await;
        let gate = Gate::for_rule("r", long_slots(7));
        let plans: Vec<Plan<'_>> = (0..200)
            .map(|number| Plan::new([Check::new(&gate, Subject::from_hash(1), number % 3 + 1)]).unwrap())
            .collect();
        for _ in 0..5 {
            let verdicts = decide_all(&store, &plans).await;
            let admitted = plans.iter().zip(verdicts).filter(|(_, verdict)| verdict.as_ref().unwrap().granted() > 0);
            let admitted: Vec<&Plan<'_>> = admitted.map(|(plan, _)| plan).collect();
            let weight: u64 = admitted.iter().map(|plan| plan.checks()[0].cost()).sum();
            assert!((5..=7).contains(&weight), "{weight}");
            let (mut renewals, mut releases) = (Vec::new(), Vec::new());
            for plan in &admitted {
                let (check, owner) = (&plan.checks()[0], plan.lease_owner().unwrap());
                renewals.push(Adjustment::renewal(check, owner));
                releases.push(Adjustment::release(check, owner));
            }
            let is_held = |outcome: &AdjustmentOutcome| *outcome == AdjustmentOutcome::Applied;
            assert!(store.apply(&renewals).await.outcomes().unwrap().iter().all(is_held));
            assert!(store.apply(&releases).await.outcomes().unwrap().iter().all(is_held));
            assert!(!store.apply(&releases).await.outcomes().unwrap().iter().any(is_held));
            assert!(!store.apply(&renewals).await.outcomes().unwrap().iter().any(is_held));
        }
    }
}

/// The keys of one plan are in several slots, so the limits are decided one after the other.
#[tokio::test]
async fn a_plan_that_is_denied_across_slots_gives_its_slots_back() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
    let hour = Limit::fixed_window(1, Duration::from_secs(50 * 31_557_600)).unwrap();
    for mode in [PlanMode::AllOrNothing, PlanMode::CountEach] {
        let rules = [
            Rule::new(format!("user-{mode:?}"), long_slots(2)).with_per(["user"]),
            Rule::new(format!("host-{mode:?}"), long_slots(5)).with_per(["host"]),
            Rule::new(format!("hour-{mode:?}"), hour).with_per(["tenant"]),
        ];
        let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store.clone());
        let request = || {
            Request::new("").with_attribute("user", "ann").with_attribute("host", "a7").with_attribute("tenant", "acme")
        };
        let remaining = async || {
            let peek = limiter.peek(&request()).await.unwrap();
            peek.checks().iter().map(|check| check.outcome().remaining).collect::<Vec<_>>()
        };
        let mut first = limiter.plans().check(&limiter.plan(&request()).with_mode(mode)).await.unwrap();
        assert!(first.is_allowed());
        for _ in 0..4 {
            let mut denied = limiter.plans().check(&limiter.plan(&request()).with_mode(mode)).await.unwrap();
            assert!(!denied.is_allowed() && denied.take_grant().split_slots().is_empty(), "{mode:?}");
            assert_eq!(remaining().await, [1, 4, 0], "{mode:?}");
        }
        let mut lease = first.take_grant();
        limiter.renew(&lease, Retake::No).await.unwrap();
        limiter.end(&mut lease, &Ending::Release).await.unwrap();
        assert_eq!(remaining().await, [2, 5, 0], "{mode:?}");
    }
}

/// While a slot of the cluster moves, a call with several of its keys may find only some of them. Slots are renewed and released one by
/// one then.
#[tokio::test]
async fn slots_are_renewed_and_released_while_their_keys_move_to_another_server() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
    let rules = (0..4).map(|number| Rule::new(format!("r{number}"), long_slots(2)).with_per(["user"]));
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store);
    let request = Request::new("").with_attribute("user", "ann");
    let [first, second] = [limiter.check(&request).await, limiter.check(&request).await];
    let [mut first, second] = [first, second].map(|decision| decision.unwrap().take_grant());
    let names: Vec<_> = limiter.plan(&request).checks().iter().map(|check| key_name(check.key())).collect();
    let mut slot_of_key = redis::cmd("CLUSTER");
    slot_of_key.arg("KEYSLOT").arg(&names[0]);
    let slot: u16 = slot_of_key.query(&mut cluster.servers[0].connection()).unwrap();
    let (source, target) = (cluster.first_owner(slot), (cluster.first_owner(slot) + 1) % 3);
    cluster.start_slot_move(slot, source, target);
    cluster.migrate(source, target, &names[..2]);
    limiter.renew(&first, Retake::No).await.unwrap();
    limiter.renew(&second, Retake::IfLost).await.unwrap();
    assert!(!limiter.check(&request).await.unwrap().is_allowed());
    limiter.end(&mut first, &Ending::Release).await.unwrap();
    let third = limiter.check(&request).await.unwrap().take_grant();
    cluster.move_keys(slot, source, target);
    cluster.finish_slot_move(slot, target);
    assert!(!limiter.check(&request).await.unwrap().is_allowed());
    for mut lease in [second, third] {
        limiter.renew(&lease, Retake::No).await.unwrap();
        limiter.end(&mut lease, &Ending::Release).await.unwrap();
    }
    let peek = limiter.peek(&request).await.unwrap();
    assert!(peek.checks().iter().all(|check| check.outcome().remaining == 2));
}

/// Waits for a release in the background.
async fn wait_for_left(limiter: &Limiter<AnyStore>, expected: u64) {
    for _ in 0..1_000_000 {
        if left(limiter).await == expected {
            return;
        }
        conformance::poll::pause_task().await;
    }
    panic!("the slot was not released");
}
