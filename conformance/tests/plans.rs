//! Plans of several checks, on every store: roles, modes, budgets, and which check the decision shows.

use std::time::Duration;

use conformance::suite::{StoreFixture, limits_with_window, on_every_store, one_limit_of_each_kind};
use tidegate::spi::{Check, Gate, Plan, PlanMode, Role, Store, Subject};
use tidegate::{Decision, Ending, Limit, Limiter, Rate, Request, Rule, RuleMode};

const SECOND: Duration = Duration::from_secs(1);

/// Traps 46 and 47b: a shadow rule that was over its limit kept enforced rules from counting, and showed its 0
/// remaining to clients. Here the decision and its numbers are those of the enforced rule alone.
#[tokio::test]
async fn a_shadow_rule_does_not_change_the_decision() {
    on_every_store(async |fixture| {
        for (enforced, shadow) in one_limit_of_each_kind(5).into_iter().zip(one_limit_of_each_kind(2).into_iter().rev())
        {
            // A known denial would skip the shadow rules.
            let enforced = |name| Rule::new(name, enforced).with_denial_cache(false);
            let alone = fixture.limiter_of([enforced("alone")]);
            let both = fixture.limiter_of([
                Rule::new("before", shadow).with_mode(RuleMode::Shadow),
                enforced("enforced"),
                Rule::new("after", shadow).with_mode(RuleMode::Shadow),
            ]);
            for request in 1..=7 {
                let (one, other) = (check(&alone).await, check(&both).await);
                assert_eq!(other.rule(), Some("enforced"), "{shadow:?}");
                assert_eq!(
                    one.most_restrictive().unwrap().outcome(),
                    other.most_restrictive().unwrap().outcome(),
                    "{shadow:?}"
                );
                assert_eq!((one.granted(), one.delay()), (other.granted(), other.delay()), "{shadow:?}");
                let rejected: Vec<_> = other.shadow_would_reject().collect();
                let expected: &[&str] = if request > 2 { &["before", "after"] } else { &[] };
                assert_eq!(rejected, expected, "{shadow:?} at request {request}");
            }
            alone.forget(&Request::new("")).await.unwrap();
            both.forget(&Request::new("")).await.unwrap();
        }
    })
    .await;
}

/// A shadow rule counts requests that pass and that it would have admitted.
#[tokio::test]
async fn a_shadow_rule_counts_requests_that_pass_and_that_it_would_admit() {
    on_every_store(async |fixture| {
        // The limits of the enforced and the shadow rule, and the shadow rule's remaining after ten requests.
        for (enforced, shadow, left) in [(3, 5, 2), (5, 3, 0), (3, 3, 0)] {
            for (one, other) in
                one_limit_of_each_kind(enforced).into_iter().zip(one_limit_of_each_kind(shadow).into_iter().rev())
            {
                for mode in [PlanMode::AllOrNothing, PlanMode::CountEach] {
                    let rules = [Rule::new("e", one), Rule::new("s", other).with_mode(RuleMode::Shadow)];
                    let limiter = fixture.limiter_of(rules);
                    for _ in 0..10 {
                        let _ = limiter.plans().check(&limiter.plan(&Request::new("")).with_mode(mode)).await.unwrap();
                    }
                    assert_eq!(remaining(&limiter).await, [0, left], "{mode:?} {one:?} {other:?}");
                    limiter.forget(&Request::new("")).await.unwrap();
                }
            }
        }
    })
    .await;
}

/// A shadow rule alone admits everything, shows nothing, and reports what it would have rejected.
#[tokio::test]
async fn a_shadow_rule_alone_lets_everything_pass() {
    on_every_store(async |fixture| {
        for limit in one_limit_of_each_kind(2) {
            let limiter = fixture.limiter_of([Rule::new("s", limit).with_mode(RuleMode::Shadow)]);
            for request in 1..=5 {
                let decision = check(&limiter).await;
                assert!(decision.is_allowed() && decision.most_restrictive().is_none(), "{limit:?}");
                assert_eq!((decision.delay(), decision.retry_after()), (Duration::ZERO, None), "{limit:?}");
                assert_eq!(decision.shadow_would_reject().count(), usize::from(request > 2), "{limit:?}");
            }
            assert_eq!(limiter.take_up_to(&Request::new(""), 9).await.unwrap().granted(), 9, "{limit:?}");
        }
    })
    .await;
}

/// A disabled rule neither counts nor shows.
#[tokio::test]
async fn a_disabled_rule_has_no_effect() {
    on_every_store(async |fixture| {
        let limiter =
            fixture.limiter_of([Rule::new("off", one_limit_of_each_kind(1)[0]).with_mode(RuleMode::Disabled)]);
        for _ in 0..3 {
            let decision = check(&limiter).await;
            assert!(decision.is_allowed() && decision.checks().is_empty());
        }
        assert_eq!(fixture.keys(), 0);
    })
    .await;
}

/// A group denies only if all its members do; each member that has room is charged, and none if the request is denied.
#[tokio::test]
async fn an_any_of_group_allows_what_any_member_allows() {
    on_every_store(async |fixture| {
        for (small, large) in one_limit_of_each_kind(2).into_iter().zip(one_limit_of_each_kind(4).into_iter().rev()) {
            let gates = [
                gate("small", small, Role::AnyOf(7)),
                gate("large", large, Role::AnyOf(7)),
                gate("other", one_limit_of_each_kind(9)[2], Role::AnyOf(8)),
                gate("all", one_limit_of_each_kind(9)[3], Role::Enforced),
            ];
            let limiter = fixture.limiter_of([]);
            let steps = [[1, 3, 8, 8], [0, 2, 7, 7], [0, 1, 6, 6], [0, 0, 5, 5], [0, 0, 5, 5], [0, 0, 5, 5]];
            for (step, left) in steps.into_iter().enumerate() {
                let decision = limiter.plans().check(&plan(&gates)).await.unwrap();
                assert_eq!(decision.is_allowed(), step < 4, "{small:?} {large:?} at step {step}");
                let in_decision: Vec<_> = decision.checks().iter().map(|check| check.outcome().remaining).collect();
                assert_eq!(in_decision, left, "{small:?} {large:?} at step {step}");
            }
            let forgotten: Vec<_> = plan(&gates).checks().iter().map(|check| *check.key()).collect();
            fixture.store.forget(&forgotten).await.unwrap();
        }
    })
    .await;
}

/// A denied group names the member that opens first; an enforced rule that denies leaves the group uncharged.
#[tokio::test]
async fn an_any_of_group_reports_its_most_permissive_member() {
    on_every_store(async |fixture| {
        let window = |limit, seconds| Limit::fixed_window(limit, seconds * SECOND).unwrap();
        let gates = [
            gate("minute", window(1, 60), Role::AnyOf(0)),
            gate("ten", window(1, 10), Role::AnyOf(0)),
            gate("all", window(2, 5), Role::Enforced),
        ];
        let limiter = fixture.limiter_of([]);
        let first = limiter.plans().check(&plan(&gates)).await.unwrap();
        assert_eq!(
            (first.is_allowed(), first.rule()),
            (true, Some("minute")),
            "no member has room: the first is shown"
        );
        let denied = limiter.plans().check(&plan(&gates)).await.unwrap();
        assert_eq!((denied.rule(), denied.retry_after()), (Some("ten"), Some(10 * SECOND)));
        assert_eq!(denied.checks()[2].outcome().remaining, 1, "the group denied, so nobody is charged");

        fixture.clock.advance(10 * SECOND);
        let blocked = [gate("minute", window(1, 60), Role::AnyOf(0)), gate("none", window(0, 1), Role::Enforced)];
        let denied = limiter.plans().check(&plan(&blocked)).await.unwrap();
        assert_eq!((denied.rule(), denied.is_permanent()), (Some("none"), true));
        let open = limiter.plans().check(&plan(&gates)).await.unwrap();
        assert_eq!((open.is_allowed(), open.checks()[1].is_consumed()), (true, true));
        assert!(!open.checks()[0].is_consumed(), "this member had no room");
    })
    .await;
}

/// In count-each mode denied requests count too, up to the limit.
#[tokio::test]
async fn in_count_each_mode_every_rule_counts_independently() {
    on_every_store(async |fixture| {
        for (tight, wide) in one_limit_of_each_kind(2).into_iter().zip(one_limit_of_each_kind(5).into_iter().rev()) {
            let limiter = fixture.limiter_of([Rule::new("tight", tight), Rule::new("wide", wide)]);
            for left in [[1, 4], [0, 3], [0, 2], [0, 1], [0, 0], [0, 0]] {
                let decision = limiter
                    .plans()
                    .check(&limiter.plan(&Request::new("")).with_mode(PlanMode::CountEach))
                    .await
                    .unwrap();
                assert_eq!(decision.is_allowed(), left[1] >= 3, "{tight:?} {wide:?} {left:?}");
                let in_decision: Vec<_> = decision.checks().iter().map(|check| check.outcome().remaining).collect();
                assert_eq!(in_decision, left, "{tight:?} {wide:?}");
                assert_eq!(remaining(&limiter).await, left, "{tight:?} {wide:?}");
            }
            limiter.forget(&Request::new("")).await.unwrap();
        }
    })
    .await;
}

/// In count-each mode repeated denied requests keep a bucket empty; in all-or-nothing mode they cost nothing.
#[tokio::test]
async fn in_count_each_mode_denied_requests_count_too() {
    on_every_store(async |fixture| {
        for (name, mode, expected) in [("free", PlanMode::AllOrNothing, 5), ("counted", PlanMode::CountEach, 0)] {
            let limit = Limit::token_bucket(2, Rate::per_second(1).unwrap()).unwrap();
            let limiter = fixture.limiter_of([Rule::new(name, limit)]);
            let knock = async || {
                limiter.plans().check(&limiter.plan(&Request::new("")).with_mode(mode)).await.unwrap().granted()
            };
            assert_eq!(knock().await + knock().await, 2);
            let mut admitted = 0;
            for _ in 0..10 {
                fixture.clock.advance(SECOND / 2);
                admitted += knock().await;
            }
            assert_eq!(admitted, expected, "{mode:?}");
        }
    })
    .await;
}

/// Of several denying rules, the decision names the one with the longest retry: a permanent denial first, then by file order.
#[tokio::test]
async fn a_denial_names_the_rule_with_the_longest_retry() {
    on_every_store(async |fixture| {
        let window = |seconds| Limit::fixed_window(1, seconds * SECOND).unwrap();
        let nobody = Limit::fixed_window(0, SECOND).unwrap();
        let cases = [
            (vec![("short", window(10)), ("long", window(60)), ("middle", window(30))], "long", Some(60)),
            (vec![("first", window(60)), ("second", window(60))], "first", Some(60)),
            (vec![("long", window(3_600)), ("never", nobody), ("never again", nobody)], "never", None),
        ];
        for (number, (limits, named, retry)) in cases.into_iter().enumerate() {
            let rules = limits.iter().map(|(id, limit)| Rule::new(*id, *limit).with_per(["case"]));
            let limiter = fixture.limiter_of(rules);
            let case = number.to_string();
            let request = Request::new("").with_attribute("case", &case);
            let _ = limiter.check(&request).await.unwrap();
            let denied = limiter.check(&request).await.unwrap();
            assert_eq!((denied.is_allowed(), denied.rule()), (false, Some(named)));
            assert_eq!(denied.retry_after(), retry.map(Duration::from_secs), "{named}");
            assert_eq!(denied.is_permanent(), retry.is_none(), "{named}");
        }
    })
    .await;
}

/// An allowed decision shows the rule with the fewest further identical requests, not the smallest number, since a request may
/// have a different cost under each rule.
#[tokio::test]
async fn an_allowed_decision_shows_the_rule_that_will_deny_first() {
    on_every_store(async |fixture| {
        for kind in 0..5 {
            let rule = |id: &str, amount, cost| Rule::new(id, one_limit_of_each_kind(amount)[kind]).with_cost(cost);
            let limiter =
                fixture.limiter_of([rule("many", 50, 20), rule("few", 8, 1), rule("same", 50, 20), rule("free", 1, 0)]);
            let decision = check(&limiter).await;
            assert_eq!(
                (decision.rule(), decision.remaining()),
                (Some("many"), Some(30)),
                "{:?}",
                one_limit_of_each_kind(8)[kind]
            );
            let limiter = fixture.limiter_of([rule("many-2", 50, 5), rule("few-2", 8, 1)]);
            let decision = check(&limiter).await;
            assert_eq!(
                (decision.rule(), decision.remaining()),
                (Some("few-2"), Some(7)),
                "{:?}",
                one_limit_of_each_kind(8)[kind]
            );
        }
    })
    .await;
}

/// A request in two leaky buckets waits for the later slot.
#[tokio::test]
async fn the_delay_of_a_plan_is_its_longest_check_delay() {
    on_every_store(async |fixture| {
        let leaky = |seconds| Limit::leaky_bucket(Rate::new(1, seconds * SECOND).unwrap(), 5).unwrap();
        let limiter = fixture.limiter_of([
            Rule::new("a", leaky(2)),
            Rule::new("b", leaky(3)),
            Rule::new("shadow", leaky(9)).with_mode(RuleMode::Shadow),
        ]);
        let mut delays = Vec::new();
        for _ in 0..4 {
            delays.push(check(&limiter).await.delay().as_secs());
        }
        assert_eq!(delays, [0, 3, 6, 9]);
        let impatient = limiter.plan(&Request::new("")).with_max_delay(11 * SECOND);
        let denied = limiter.plans().check(&impatient).await.unwrap();
        assert_eq!((denied.rule(), denied.delay(), denied.retry_after()), (Some("b"), Duration::ZERO, Some(SECOND)));
        assert_eq!(remaining(&limiter).await[..2], [2, 2], "neither has assigned a slot");
    })
    .await;
}

/// Rules with one budget share its allowance; a request that matches two of them pays both costs.
#[tokio::test]
async fn rules_of_one_budget_share_it() {
    on_every_store(async |fixture| {
        for limit in one_limit_of_each_kind(10) {
            let shared = |id: &str, cost| Rule::new(id, limit).with_per(["user"]).with_budget("units").with_cost(cost);
            let limiter = fixture.limiter_of([
                shared("read", 1).with_action("read"),
                shared("write", 3).with_action("write"),
                shared("always", 1),
                shared("beside", 2).with_mode(RuleMode::Shadow),
                Rule::new("own", limit).with_per(["user"]),
            ]);
            let left = async |action, user| {
                let decision = limiter.check(&Request::new(action).with_attribute("user", user)).await.unwrap();
                let remaining: Vec<_> =
                    decision.checks().iter().map(|c| (c.rule().to_owned(), c.outcome().remaining)).collect();
                (decision.is_allowed(), remaining)
            };
            let expected = |rule: &str, budget, beside, own| {
                [(rule, budget), ("beside", beside), ("own", own)].map(|(rule, left)| (rule.to_owned(), left)).to_vec()
            };
            assert_eq!(left("read", "ann").await, (true, expected("read", 8, 8, 9)), "{limit:?}");
            assert_eq!(left("write", "ann").await, (true, expected("write", 4, 6, 8)), "{limit:?}");
            assert_eq!(left("other", "ann").await, (true, expected("always", 3, 4, 7)), "{limit:?}");
            assert_eq!(left("write", "ann").await, (false, expected("write", 3, 4, 7)), "{limit:?}");
            assert_eq!(left("write", "bob").await, (true, expected("write", 6, 8, 9)), "{limit:?}");

            let mut decision = limiter.check(&Request::new("read").with_attribute("user", "ann")).await.unwrap();
            limiter.end(&mut decision.take_grant(), &Ending::Refund).await.unwrap();
            assert_eq!(left("other", "ann").await, (true, expected("always", 2, 2, 6)), "{limit:?}");
            for user in ["ann", "bob"] {
                limiter.forget(&Request::new("read").with_attribute("user", user)).await.unwrap();
            }
        }
    })
    .await;
}

/// A plan of all kinds of limits, over time, never admits more than its strictest limit.
#[tokio::test]
async fn a_plan_of_all_kinds_of_limits_never_admits_more_than_the_strictest() {
    on_every_store(async |fixture: &StoreFixture| {
        let rules = limits_with_window(6, 10 * SECOND).into_iter().enumerate();
        let limiter = fixture.limiter_of(rules.map(|(number, limit)| Rule::new(format!("r{number}"), limit)));
        let mut denials = 0;
        for step in 0..200 {
            let request = Request::new("").with_cost(1 + step % 3);
            let before = limiter.peek(&request).await.unwrap();
            let decision = limiter.check(&request).await.unwrap();
            assert_eq!(decision.is_allowed(), decision.checks().iter().all(|check| check.outcome().admitted));
            assert_eq!(decision.is_allowed(), before.is_allowed());
            assert!(decision.checks().iter().all(|check| check.is_consumed() == decision.is_allowed()));
            denials += u64::from(!decision.is_allowed());
            fixture.clock.advance(Duration::from_micros(777_777));
        }
        assert!((50..150).contains(&denials), "{denials}");
    })
    .await;
}

// === Helpers ===

async fn check<S: Store>(limiter: &Limiter<S>) -> Decision {
    limiter.check(&Request::new("")).await.unwrap()
}

/// The remaining units of each check.
async fn remaining<S: Store>(limiter: &Limiter<S>) -> Vec<u64> {
    let peeked = limiter.peek(&Request::new("")).await.unwrap();
    peeked.checks().iter().map(|check| check.outcome().remaining).collect()
}

fn gate(rule: &str, limit: Limit, role: Role) -> Gate {
    Gate::for_rule(rule, limit).with_role(role)
}

fn plan(gates: &[Gate]) -> Plan<'_> {
    Plan::new(gates.iter().map(|gate| Check::new(gate, Subject::from_hash(7), 1))).unwrap()
}
