//! Refunds, charges, `forget` and `take_up_to`, on every limit and every store.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::{
    START, count_allowed, left, limits_with_window, long_timeout_options, on_every_store, one_limit_of_each_kind,
};
use tidegate::spi::{Adjustment, Store};
use tidegate::{Decision, Ending, Grant, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet};
use tokio::task::JoinSet;

const WINDOW: Duration = Duration::from_secs(10);

/// A receipt is consumed by its refund and cannot be copied. If it could, this would not compile.
const _: fn() = || {
    trait AmbiguousIfClone<A> {
        fn check() {}
    }
    struct IsClone;
    impl<T> AmbiguousIfClone<()> for T {}
    impl<T: Clone> AmbiguousIfClone<IsClone> for T {}
    let _ = <Grant as AmbiguousIfClone<_>>::check;
};

/// After a refund, every number is as if the request had not been made.
#[tokio::test]
async fn a_refund_undoes_its_request_exactly() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, WINDOW) {
            let limiter = fixture.limiter(limit);
            for (cost, later) in [(3, 1_234_567), (1, 777), (2, 2_000_001)] {
                assert_eq!(count_allowed(&limiter, cost, 1).await, 1);
                fixture.clock.advance(Duration::from_micros(later));
                let before = peek(&limiter, 5).await;
                let mut taken = limiter.check(&Request::new("").with_cost(4)).await.unwrap();
                assert!(taken.is_allowed(), "{limit:?}");
                limiter.end(&mut taken.take_grant(), &Ending::Refund).await.unwrap();
                let after = peek(&limiter, 5).await;
                assert_eq!(before.checks()[0].outcome(), after.checks()[0].outcome(), "{limit:?}");
            }
            fixture.clock.set(START);
        }
    })
    .await;
}

/// Trap 52: a refund after its window had ended went to the next one, whose count became negative.
#[tokio::test]
async fn a_refund_after_its_window_has_no_effect() {
    on_every_store(async |fixture| {
        let [_, _, fixed, log, sliding] = limits_with_window(10, WINDOW);
        let leaky = Limit::leaky_bucket(Rate::per_second(1).unwrap(), 9).unwrap();
        for limit in [leaky, fixed, log, sliding] {
            fixture.clock.set(START);
            let limiter = fixture.limiter(limit);
            let mut old = limiter.check(&Request::new("").with_cost(4)).await.unwrap();
            fixture.clock.advance(WINDOW + WINDOW);
            limiter.end(&mut old.take_grant(), &Ending::Refund).await.unwrap();
            assert_eq!(left(&limiter).await, 10, "{limit:?}");

            let mut old = limiter.check(&Request::new("").with_cost(4)).await.unwrap();
            fixture.clock.advance(WINDOW + WINDOW);
            assert_eq!(count_allowed(&limiter, 6, 1).await, 1, "{limit:?}");
            limiter.end(&mut old.take_grant(), &Ending::Refund).await.unwrap();
            assert_eq!(left(&limiter).await, 4, "{limit:?}");
            assert_eq!(count_allowed(&limiter, 1, 10).await, 4, "{limit:?}");
        }
    })
    .await;
}

/// Refunds never fill a limit above full.
#[tokio::test]
async fn refunds_never_fill_a_limit_above_full() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, WINDOW) {
            let limiter = fixture.limiter(limit);
            let mut decisions = Vec::new();
            for cost in [3, 2, 5] {
                decisions.push(limiter.check(&Request::new("").with_cost(cost)).await.unwrap());
            }
            fixture.clock.advance(WINDOW / 2);
            let mut late = decisions.remove(0);
            for mut decision in decisions.into_iter().rev() {
                limiter.end(&mut decision.take_grant(), &Ending::Refund).await.unwrap();
                assert!(left(&limiter).await <= 10, "{limit:?}");
            }
            fixture.clock.advance(WINDOW + WINDOW);
            limiter.end(&mut late.take_grant(), &Ending::Refund).await.unwrap();
            assert_eq!(left(&limiter).await, 10, "{limit:?}");
            assert_eq!(count_allowed(&limiter, 1, 20).await, 10, "{limit:?}");
        }
    })
    .await;
}

/// In a full store new subjects share an overflow bucket. A refund for a forgotten subject must not fill that bucket.
#[tokio::test]
async fn a_late_refund_gives_nothing_to_an_overflow_bucket() {
    let clock = ManualClock::starting_at(START);
    let limit = Limit::token_bucket(2, Rate::per_second(1).unwrap()).unwrap();
    let rules = RuleSet::new([Rule::new("api", limit).with_per(["user"])]).unwrap();
    let limiter = Limiter::new(rules, MemoryStore::new().with_max_keys(1).with_clock(clock.clone()));
    let check = |user| limiter.check_now(&Request::new("").with_attribute("user", user).with_cost(2));

    let mut early = check("ann");
    assert!(early.is_allowed());
    clock.advance(WINDOW);
    assert!(check("bob").is_allowed(), "the only place is free again");
    assert!(check("cat").is_allowed() && !check("dan").is_allowed(), "these share a bucket");
    limiter.end(&mut early.take_grant(), &Ending::Refund).await.unwrap();
    assert!(!check("dan").is_allowed());
}

/// Only the last slot can be refunded, since later ones have been assigned their delay. Then the one before is the last.
#[tokio::test]
async fn only_the_last_slot_of_a_queue_can_be_refunded() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(Limit::leaky_bucket(Rate::per_second(1).unwrap(), 9).unwrap());
        let decisions = [take(&limiter, 1).await, take(&limiter, 1).await, take(&limiter, 2).await];
        assert_eq!(decisions.each_ref().map(|decision| decision.delay().as_secs()), [0, 1, 2]);
        let [mut first, mut second, mut third] = decisions;
        limiter.end(&mut first.take_grant(), &Ending::Refund).await.unwrap();
        assert_eq!(left(&limiter).await, 6);
        limiter.end(&mut third.take_grant(), &Ending::Refund).await.unwrap();
        assert_eq!(left(&limiter).await, 8);
        limiter.end(&mut second.take_grant(), &Ending::Refund).await.unwrap();
        assert_eq!(left(&limiter).await, 9);
        assert_eq!(take(&limiter, 1).await.delay(), Duration::from_secs(1));
    })
    .await;
}

/// A refund of something that was not consumed must do nothing.
#[tokio::test]
async fn a_denied_or_free_request_has_nothing_to_refund() {
    on_every_store(async |fixture| {
        for limit in one_limit_of_each_kind(10) {
            let limiter = fixture.limiter(limit);
            assert_eq!(count_allowed(&limiter, 8, 1).await, 1);
            let mut denied = limiter.check(&Request::new("").with_cost(5)).await.unwrap();
            let mut nothing = denied.take_grant();
            assert!(nothing.is_empty(), "{limit:?}");
            limiter.end(&mut nothing, &Ending::Refund).await.unwrap();
            let mut free = limiter.check(&Request::new("").with_cost(0)).await.unwrap();
            limiter.end(&mut free.take_grant(), &Ending::Refund).await.unwrap();
            let mut peeked = limiter.peek(&Request::new("")).await.unwrap();
            assert!(peeked.take_grant().is_empty(), "{limit:?}");
            assert_eq!(left(&limiter).await, 2, "{limit:?}");
        }
    })
    .await;
}

/// All rules that consumed are refunded, except rules removed in between.
#[tokio::test]
async fn a_receipt_refunds_every_rule_that_still_exists() {
    on_every_store(async |fixture| {
        let [bucket, _, fixed, log, _] = one_limit_of_each_kind(10);
        let rules = || [Rule::new("a", bucket), Rule::new("b", fixed), Rule::new("c", log)];
        let (limiter, fewer) = (fixture.limiter_of(rules()), fixture.limiter_of(rules().into_iter().skip(1)));
        let remaining = async || -> Vec<u64> {
            let peeked = limiter.peek(&Request::new("")).await.unwrap();
            peeked.checks().iter().map(|check| check.outcome().remaining).collect()
        };
        let (mut first, mut second) = (take(&limiter, 2).await, take(&limiter, 3).await);
        assert_eq!(remaining().await, [5, 5, 5]);
        limiter.end(&mut second.take_grant(), &Ending::Refund).await.unwrap();
        assert_eq!(remaining().await, [8, 8, 8]);
        fewer.end(&mut first.take_grant(), &Ending::Refund).await.unwrap();
        assert_eq!(remaining().await, [8, 10, 10]);
    })
    .await;
}

/// Two corrections of one key in one call both apply.
#[tokio::test]
async fn corrections_of_one_key_add_up() {
    on_every_store(async |fixture| {
        for limit in one_limit_of_each_kind(10) {
            let limiter = fixture.limiter(limit);
            let plan = limiter.plan(&Request::new("").with_cost(2));
            let charge = Adjustment::charge(&plan.checks()[0]);
            fixture.store.apply(&[charge, charge]).await.outcomes().unwrap();
            assert_eq!(left(&limiter).await, 6, "{limit:?}");
            fixture.store.apply(&[]).await.outcomes().unwrap();
        }
    })
    .await;
}

/// A later charge empties a limit at most; it leaves no debt.
#[tokio::test]
async fn a_charge_empties_a_limit_at_most() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, WINDOW) {
            fixture.clock.set(START);
            let limiter = fixture.limiter(limit);
            limiter.charge(&Request::new("").with_cost(3)).await.unwrap();
            assert_eq!(left(&limiter).await, 7, "a charge may come first: {limit:?}");
            assert_eq!(count_allowed(&limiter, 2, 1).await, 1, "{limit:?}");
            limiter.charge(&Request::new("").with_cost(4)).await.unwrap();
            assert_eq!(left(&limiter).await, 1, "{limit:?}");
            for _ in 0..3 {
                limiter.charge(&Request::new("").with_cost(1_000)).await.unwrap();
                assert_eq!(left(&limiter).await, 0, "{limit:?}");
            }
            let full = limiter.check(&Request::new("").with_cost(10)).await.unwrap().retry_after().unwrap();
            assert!(full <= WINDOW + WINDOW / 5, "{limit:?}: {full:?}");
            fixture.clock.advance(full);
            assert_eq!(count_allowed(&limiter, 10, 1).await, 1, "{limit:?}");
        }
    })
    .await;
}

/// `forget` resets one subject and no other.
#[tokio::test]
async fn forget_resets_one_subject_and_no_other() {
    on_every_store(async |fixture| {
        for limit in one_limit_of_each_kind(10) {
            let limiter = fixture.limiter_of([Rule::new("api", limit).with_per(["user"])]);
            let request_of = |user| Request::new("").with_attribute("user", user).with_cost(10);
            assert!(limiter.check(&request_of("ann")).await.unwrap().is_allowed());
            assert!(limiter.check(&request_of("bob")).await.unwrap().is_allowed());
            for user in ["ann", "ann", "nobody"] {
                limiter.forget(&request_of(user)).await.unwrap();
            }
            assert!(limiter.check(&request_of("ann")).await.unwrap().is_allowed(), "{limit:?}");
            assert!(!limiter.check(&request_of("bob")).await.unwrap().is_allowed(), "{limit:?}");
        }
    })
    .await;
}

/// `take_up_to` grants as many units as every limit has room for, consumes all or none, and one receipt refunds them.
#[tokio::test]
async fn take_up_to_grants_what_every_limit_has_left() {
    on_every_store(async |fixture| {
        for (wide, narrow) in one_limit_of_each_kind(100).into_iter().zip(one_limit_of_each_kind(10).into_iter().rev())
        {
            let limiter = fixture.limiter_of([
                Rule::new("wide", wide).with_cost(3),
                Rule::new("narrow", narrow).with_cost(1),
                Rule::new("third", one_limit_of_each_kind(1_000)[2]).with_cost(7),
            ]);
            let request = Request::new("");
            // Requested, granted, and the remaining units of the three.
            for (most, granted, remaining) in [(4, 4, [88, 6, 972]), (50, 6, [70, 0, 930]), (50, 0, [70, 0, 930])] {
                let mut decision = limiter.take_up_to(&request, most).await.unwrap();
                assert_eq!(decision.granted(), granted, "{wide:?} {narrow:?}");
                assert_eq!(decision.is_allowed(), granted > 0);
                assert_eq!(decision.retry_after().is_some(), granted == 0, "{wide:?} {narrow:?}");
                let actual: Vec<_> = decision.checks().iter().map(|check| check.outcome().remaining).collect();
                assert_eq!(actual, remaining, "{wide:?} {narrow:?}");
                let actual: Vec<_> = peek(&limiter, 1).await.checks().iter().map(|c| c.outcome().remaining).collect();
                assert_eq!(actual, remaining, "{wide:?} {narrow:?}");
                if most == 50 && granted > 0 {
                    limiter.end(&mut decision.take_grant(), &Ending::Refund).await.unwrap();
                    let again = limiter.take_up_to(&request, most).await.unwrap();
                    assert_eq!(again.granted(), granted, "{wide:?} {narrow:?}");
                }
            }
            limiter.forget(&request).await.unwrap();
        }
    })
    .await;
}

/// Several instances take up to n; together they get exactly the limit.
#[tokio::test(flavor = "multi_thread")]
async fn instances_with_take_up_to_get_exactly_the_limit_together() {
    for kind in KINDS {
        let server = Server::start(kind);
        for limit in one_limit_of_each_kind(500) {
            let rules = RuleSet::new([Rule::new("api", limit)]).unwrap();
            let mut running = JoinSet::new();
            for most in 1..=8 {
                let limiter = Limiter::new(rules.clone(), server.store_with(long_timeout_options()).await);
                running.spawn(async move {
                    let mut granted = 0;
                    for _ in 0..40 {
                        granted += limiter.take_up_to(&Request::new(""), most).await.unwrap().granted();
                    }
                    granted
                });
            }
            let granted: u64 = running.join_all().await.into_iter().sum();
            assert_eq!(granted, 500, "{kind:?} {limit:?}");
        }
    }
}

/// Threads that refund at once what they took leave the limit unchanged. (A slot of a queue cannot always be refunded.)
#[test]
fn threads_that_refund_everything_leave_the_limit_unchanged() {
    let [bucket, _, fixed, log, sliding] = one_limit_of_each_kind(8);
    for limit in [bucket, fixed, log, sliding] {
        let store = MemoryStore::new().with_clock(ManualClock::starting_at(START));
        let limiter = Arc::new(Limiter::new(RuleSet::new([Rule::new("api", limit)]).unwrap(), store));
        let request = Request::new("");
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let limiter = Arc::clone(&limiter);
                thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    for _ in 0..500 {
                        let mut decision = limiter.check_now(&Request::new(""));
                        assert!(decision.is_allowed(), "eight threads hold at most eight");
                        runtime.block_on(limiter.end(&mut decision.take_grant(), &Ending::Refund)).unwrap();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(
            limiter.store().decide_now(&limiter.plan(&request).with_peek()).checks()[0].outcome.remaining,
            8,
            "{limit:?}"
        );
    }
}

// === Helpers ===

async fn take<S: Store>(limiter: &Limiter<S>, cost: u64) -> Decision {
    let decision = limiter.check(&Request::new("").with_cost(cost)).await.unwrap();
    assert!(decision.is_allowed());
    decision
}

async fn peek<S: Store>(limiter: &Limiter<S>, cost: u64) -> Decision {
    limiter.peek(&Request::new("").with_cost(cost)).await.unwrap()
}
