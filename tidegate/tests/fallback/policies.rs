//! Each failure policy, and the policies of several rules together.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::http::HeaderPolicy;
use tidegate::spi::{Check, Gate, Observer, Plan, Role, Subject};
use tidegate::{
    Decision, Limit, ManualClock, OnFailure, Rate, Request, Rule, RuleMode, RuleSet, StoreError, StoreErrorKind,
};

use crate::fallback::store::{SwitchableStore, bucket, limiter, passed, poll_once};

#[test]
fn each_failure_policy_admits_as_many_requests_as_documented() {
    let clock = ManualClock::default();
    for (policy, expected) in [
        (OnFailure::Open, Some(30)),
        (OnFailure::Degraded, Some(30)),
        (OnFailure::Closed, None),
        (OnFailure::Local, Some(20)),
        (OnFailure::Share, Some(5)),
        (OnFailure::Static, Some(7)),
    ] {
        let rule = Rule::new("api", bucket(20)).with_per(["user"]).with_on_failure(policy).with_static_limit(bucket(7));
        let limiter = limiter(&SwitchableStore::failing(&clock), &clock, [rule]).with_instances(4);
        let ann = Request::new("").with_attribute("user", "ann");
        assert_eq!(passed(&limiter, &ann, 30), expected, "{policy:?}");
        if expected.is_some() {
            let decision = poll_once(limiter.check(&ann)).unwrap();
            assert_eq!(decision.degraded(), Some(StoreErrorKind::Unavailable), "{policy:?}");
        }
    }
}

#[test]
fn without_a_policy_each_instance_applies_the_whole_limit_to_each_subject() {
    let clock = ManualClock::default();
    let rule = Rule::new("api", bucket(3)).with_per(["user"]);
    assert_eq!(rule.on_failure, OnFailure::Local);
    let store = SwitchableStore::failing(&clock);
    store.instances.store(12, Ordering::Relaxed);
    let limiter = limiter(&store, &clock, [rule]);
    for user in ["ann", "bob"] {
        assert_eq!(passed(&limiter, &Request::new("").with_attribute("user", user), 9), Some(3), "{user}");
    }
}

/// Regression: both static limits had one key, since its subject cancelled its name out.
#[test]
fn static_rules_count_separately() {
    let clock = ManualClock::default();
    let rule = |id, action, static_limit| {
        let rule = Rule::new(id, bucket(9)).with_action(action).with_on_failure(OnFailure::Static);
        rule.with_static_limit(bucket(static_limit))
    };
    let limiter = limiter(
        &SwitchableStore::failing(&clock),
        &clock,
        [rule("login", "login", 3), rule("search", "search", 1000), rule("vote", "vote", 5)],
    );
    assert_eq!(passed(&limiter, &Request::new("search"), 400), Some(400));
    assert_eq!(passed(&limiter, &Request::new("login"), 400), Some(3));
    assert_eq!(passed(&limiter, &Request::new("vote"), 400), Some(5));
    assert_eq!(passed(&limiter, &Request::new("search"), 1000), Some(600));
}

#[test]
fn a_local_rule_counts_each_subject_and_a_static_rule_counts_all_together() {
    let clock = ManualClock::default();
    for (policy, expected) in [(OnFailure::Local, 2), (OnFailure::Share, 2), (OnFailure::Static, 0)] {
        let rule = Rule::new("api", bucket(2)).with_per(["user"]).with_on_failure(policy).with_static_limit(bucket(2));
        let limiter = limiter(&SwitchableStore::failing(&clock), &clock, [rule]);
        assert_eq!(passed(&limiter, &Request::new("").with_attribute("user", "ann"), 5), Some(2));
        assert_eq!(passed(&limiter, &Request::new("").with_attribute("user", "bob"), 5), Some(expected), "{policy:?}");
    }
}

#[test]
fn a_share_depends_on_the_instances_last_counted_by_the_store_or_else_configured() {
    let clock = ManualClock::default();
    let store = SwitchableStore::failing(&clock);
    let rules = || [Rule::new("api", bucket(20)).with_on_failure(OnFailure::Share)];
    let configured = limiter(&store, &clock, rules()).with_instances(4);
    assert_eq!(passed(&configured, &Request::new(""), 30), Some(5));
    store.instances.store(3, Ordering::Relaxed);
    let counted = limiter(&store, &clock, rules()).with_instances(4);
    assert_eq!(passed(&counted, &Request::new(""), 30), Some(6));
    store.instances.store(100, Ordering::Relaxed);
    assert_eq!(passed(&limiter(&store, &clock, rules()), &Request::new(""), 30), Some(1));
}

#[test]
fn a_denial_by_the_store_does_not_use_the_fallback() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    for policy in [OnFailure::Open, OnFailure::Local, OnFailure::Share, OnFailure::Degraded] {
        let limiter = limiter(&store, &clock, [Rule::new("api", bucket(0)).with_on_failure(policy)]);
        let denied = poll_once(limiter.check(&Request::new(""))).unwrap();
        assert!(!denied.is_allowed() && denied.degraded().is_none(), "{policy:?}");
    }
}

#[test]
fn one_closed_rule_refuses_the_request() {
    let clock = ManualClock::default();
    let rules = |mode| {
        let closed = Rule::new("pay", bucket(9)).with_on_failure(OnFailure::Closed).with_mode(mode);
        [Rule::new("api", bucket(9)).with_on_failure(OnFailure::Local), Rule::new("all", bucket(9)), closed]
    };
    let store = SwitchableStore::failing(&clock);
    let closed = limiter(&store, &clock, rules(RuleMode::Enabled));
    assert_eq!(poll_once(closed.check(&Request::new(""))).unwrap_err().to_string(), "the store is down");
    // A shadow rule has no effect, not even while the store fails.
    assert_eq!(passed(&limiter(&store, &clock, rules(RuleMode::Shadow)), &Request::new(""), 20), Some(9));
}

#[test]
fn local_and_static_rules_consume_all_or_nothing() {
    let clock = ManualClock::default();
    let rules = [
        Rule::new("user", bucket(10)).with_per(["user"]).with_on_failure(OnFailure::Local),
        Rule::new("all", bucket(50)).with_on_failure(OnFailure::Static).with_static_limit(bucket(3)),
        Rule::new("open", bucket(0)).with_on_failure(OnFailure::Open),
    ];
    let limiter = limiter(&SwitchableStore::failing(&clock), &clock, rules);
    let ann = Request::new("").with_attribute("user", "ann");
    assert_eq!(passed(&limiter, &ann, 20), Some(3), "the static rule denies, and the open one has no effect");
    let denied = poll_once(limiter.check(&ann)).unwrap();
    assert_eq!(
        (denied.rule(), denied.checks()[0].outcome().remaining),
        (Some("all"), 7),
        "what it denies took nothing"
    );
}

#[test]
fn a_static_rule_of_several_limits_has_one_static_limit() {
    let clock = ManualClock::default();
    let rule = Rule::from_limits("api", [("a", bucket(50)), ("b", bucket(60))]);
    let rule = rule.with_on_failure(OnFailure::Static).with_static_limit(bucket(4));
    let limiter = limiter(&SwitchableStore::failing(&clock), &clock, [rule]);
    assert_eq!(passed(&limiter, &Request::new("").with_cost(3), 20), Some(4), "it counts requests");
}

#[test]
fn every_static_rule_of_a_request_applies() {
    let clock = ManualClock::default();
    for caps in [[9, 3], [3, 9]] {
        let rule = |(id, static_limit)| {
            Rule::new(id, bucket(50)).with_on_failure(OnFailure::Static).with_static_limit(bucket(static_limit))
        };
        let rules = ["first", "second"].into_iter().zip(caps).map(rule);
        let limiter = limiter(&SwitchableStore::failing(&clock), &clock, rules);
        assert_eq!(passed(&limiter, &Request::new(""), 20), Some(3), "{caps:?}");
    }
}

/// A group denies a request only if all its members do, so a member that lets everything pass decides its own group, and no other.
#[test]
fn an_open_member_passes_its_own_group_and_no_other() {
    let clock = ManualClock::default();
    for (roles, expected) in [([Role::AnyOf(0), Role::AnyOf(0)], 20), ([Role::AnyOf(0), Role::AnyOf(1)], 2)] {
        for policy in [OnFailure::Open, OnFailure::Degraded] {
            let limiter = limiter(&SwitchableStore::failing(&clock), &clock, []);
            let open = Rule::new("open", bucket(2)).with_on_failure(policy);
            let gates = [Gate::for_rule("local", bucket(2)), Gate::new(open, "", bucket(2))];
            let gates: Vec<Gate> = gates.into_iter().zip(roles).map(|(gate, role)| gate.with_role(role)).collect();
            let plan = Plan::new(gates.iter().map(|gate| Check::new(gate, Subject::from_hash(1), 1))).unwrap();
            let allowed = (0..20).filter(|_| poll_once(limiter.plans().check(&plan)).unwrap().is_allowed());
            assert_eq!(allowed.count(), expected, "{roles:?} {policy:?}");
        }
    }
}

#[test]
fn a_static_rule_without_a_static_limit_is_rejected() {
    let error = RuleSet::new([Rule::new("api", bucket(1)).with_on_failure(OnFailure::Static)]).unwrap_err();
    assert!(error.to_string().contains("static limit"), "{error}");
}

#[test]
fn decisions_use_the_store_again_once_it_is_back() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, [Rule::new("api", bucket(5)).with_on_failure(OnFailure::Local)]);
    assert_eq!(passed(&limiter, &Request::new(""), 3), Some(3));
    store.fails.store(true, Ordering::Relaxed);
    assert_eq!(passed(&limiter, &Request::new(""), 9), Some(5));
    store.fails.store(false, Ordering::Relaxed);
    let back = poll_once(limiter.check(&Request::new(""))).unwrap();
    assert_eq!((back.degraded(), back.remaining()), (None, Some(1)), "the store has kept its state");
    store.fails.store(true, Ordering::Relaxed);
    assert_eq!(passed(&limiter, &Request::new(""), 9), Some(0), "a second failure does not reset the local limit");
    clock.advance(Duration::from_secs(3600));
    assert_eq!(passed(&limiter, &Request::new(""), 9), Some(1));
}

#[test]
fn a_change_of_rules_keeps_the_state_of_the_fallback() {
    let clock = ManualClock::default();
    let rule = || Rule::new("api", bucket(5)).with_on_failure(OnFailure::Local);
    let before = limiter(&SwitchableStore::failing(&clock), &clock, [rule()]);
    assert_eq!(passed(&before, &Request::new(""), 9), Some(5));
    let after = before.with_rules(RuleSet::new([rule()]).unwrap());
    assert_eq!(passed(&after, &Request::new(""), 9), Some(0));
}

#[test]
fn a_degraded_decision_has_no_receipt_and_no_limit_headers() {
    let clock = ManualClock::default();
    let rule = Rule::new("api", bucket(2)).with_on_failure(OnFailure::Local);
    let limiter = limiter(&SwitchableStore::failing(&clock), &clock, [rule]);
    let mut allowed = poll_once(limiter.check(&Request::new(""))).unwrap();
    assert_eq!(HeaderPolicy::new().headers(&allowed), []);
    assert!(allowed.take_grant().is_empty());
    assert_eq!(passed(&limiter, &Request::new(""), 1), Some(1));
    let denied = HeaderPolicy::new().reject(&poll_once(limiter.check(&Request::new(""))).unwrap(), None, None);
    assert_eq!((denied.status, denied.headers[0].0), (429, "retry-after"));
    assert!(denied.headers.iter().all(|(name, _)| !name.contains("ratelimit")), "{denied:?}");
}

#[test]
fn a_cost_above_the_share_of_an_instance_is_no_permanent_denial() {
    let clock = ManualClock::default();
    let rule = Rule::new("api", bucket(20)).with_on_failure(OnFailure::Share);
    let limiter = limiter(&SwitchableStore::failing(&clock), &clock, [rule]).with_instances(4);
    let denied = poll_once(limiter.check(&Request::new("").with_cost(8))).unwrap();
    assert!(!denied.is_allowed() && !denied.is_permanent());
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
}

#[test]
fn a_peek_without_the_store_consumes_nothing() {
    let clock = ManualClock::default();
    let limiter = limiter(
        &SwitchableStore::failing(&clock),
        &clock,
        [Rule::new("api", bucket(1)).with_on_failure(OnFailure::Local)],
    );
    for _ in 0..3 {
        let peeked = poll_once(limiter.peek(&Request::new(""))).unwrap();
        assert!(peeked.is_allowed() && peeked.degraded().is_some());
    }
    assert_eq!(passed(&limiter, &Request::new(""), 3), Some(1));
    assert!(!poll_once(limiter.peek(&Request::new(""))).unwrap().is_allowed());
}

#[test]
fn the_observer_sees_the_failure_the_policies_and_the_decision() {
    #[derive(Clone, Default)]
    struct EventLog(Arc<Mutex<Vec<String>>>);
    impl Observer for EventLog {
        fn decided(&self, _: &Plan<'_>, decision: &Decision) {
            self.0.lock().unwrap().push(format!("{} {:?}", decision.is_allowed(), decision.degraded()));
        }
        fn store_failed(&self, error: &StoreError) {
            self.0.lock().unwrap().push(error.to_string());
        }
        fn undecided(&self, plan: &Plan<'_>, error: &StoreError) {
            self.0
                .lock()
                .unwrap()
                .extend(plan.policies(error).map(|(rule, policy)| format!("{rule} {}", policy.as_str())));
        }
    }
    let (clock, events) = (ManualClock::default(), EventLog::default());
    let rules = [Rule::new("api", bucket(0)).with_on_failure(OnFailure::Local), Rule::new("all", bucket(9))];
    let limiter = limiter(&SwitchableStore::failing(&clock), &clock, rules).with_observer(events.clone());
    assert_eq!(passed(&limiter, &Request::new(""), 1), Some(0));
    assert_eq!(*events.0.lock().unwrap(), ["the store is down", "api local", "all local", "false Some(Unavailable)"]);
}

#[test]
fn the_shares_of_all_instances_do_not_exceed_the_limit() {
    let rate = Rate::per_second(7).unwrap();
    let window = Duration::from_secs(60);
    for amount in [0, 1, 2, 5, 12, 100, 4_503_599_627_370_495] {
        let limits = [
            Limit::token_bucket(amount.min(1 << 34), rate).unwrap(),
            Limit::fixed_window(amount, window).unwrap(),
            Limit::fixed_window(amount, tidegate::limits::Window::MONTH).unwrap(),
            Limit::sliding_log(amount.min(65_535), window).unwrap(),
            Limit::sliding_window(amount, window, 6).unwrap(),
            Limit::leaky_bucket(rate, amount.min(1 << 34)).unwrap(),
        ];
        for limit in limits {
            assert_eq!(limit.share(1), limit);
            for instances in [2, 3, 12, 1000, u32::MAX] {
                let share = limit.share(instances);
                let (whole, part) = (limit.amount(), share.amount());
                assert_eq!(part, if whole == 0 { 0 } else { (whole / u64::from(instances)).max(1) }, "{limit:?}");
                assert_eq!(share.algorithm(), limit.algorithm());
            }
        }
    }
    let share = Limit::token_bucket(20, rate).unwrap().share(3);
    assert_eq!(share, Limit::token_bucket(6, Rate::new(7, Duration::from_secs(3)).unwrap()).unwrap());
}

#[test]
fn a_free_request_consumes_nothing_of_a_static_limit() {
    let clock = ManualClock::default();
    let rule = Rule::new("api", bucket(9)).with_on_failure(OnFailure::Static).with_static_limit(bucket(2));
    let limiter = limiter(&SwitchableStore::failing(&clock), &clock, [rule]);
    assert_eq!(passed(&limiter, &Request::new("").with_cost(0), 5), Some(5));
    assert_eq!(passed(&limiter, &Request::new(""), 5), Some(2));
    assert_eq!(passed(&limiter, &Request::new("").with_cost(0), 5), Some(5));
}

#[test]
fn merged_requests_consume_one_unit_each_of_a_static_limit() {
    let clock = ManualClock::default();
    let rule =
        Rule::new("api", bucket(99)).with_per(["user"]).with_on_failure(OnFailure::Static).with_static_limit(bucket(5));
    let limiter = limiter(&SwitchableStore::failing(&clock), &clock, [rule]);
    let (ann, bob) = (Request::new("").with_attribute("user", "ann"), Request::new("").with_attribute("user", "bob"));
    let nothing = Plan::new([]).unwrap();
    let three = || nothing.clone().merge(&limiter.plan(&ann)).merge(&limiter.plan(&ann)).merge(&limiter.plan(&bob));
    assert!(poll_once(limiter.plans().check(&three())).unwrap().is_allowed());
    assert!(!poll_once(limiter.plans().check(&three())).unwrap().is_allowed());
    assert_eq!(passed(&limiter, &ann, 5), Some(2));
}

#[test]
fn a_security_rule_reveals_nothing_without_the_store() {
    let clock = ManualClock::default();
    for policy in [OnFailure::Open, OnFailure::Local, OnFailure::Static] {
        let guard = Rule::new("login", bucket(9)).with_security().with_on_failure(policy).with_static_limit(bucket(9));
        let other = Rule::new("api", bucket(0)).with_on_failure(OnFailure::Local);
        let limiter = limiter(&SwitchableStore::failing(&clock), &clock, [guard, other]);
        let denied = poll_once(limiter.check(&Request::new(""))).unwrap();
        assert!(!denied.is_allowed() && denied.is_security(), "{policy:?}");
        let answer = HeaderPolicy::new().reject(&denied, None, None);
        assert!(!answer.body.contains("rule_id"), "{policy:?}: {}", answer.body);
    }
    let shared = |id| Rule::new(id, bucket(0)).with_budget("b").with_on_failure(OnFailure::Local);
    let limiter = limiter(&SwitchableStore::failing(&clock), &clock, [shared("one"), shared("two").with_security()]);
    assert!(poll_once(limiter.check(&Request::new(""))).unwrap().is_security());
}

#[test]
fn rules_that_share_a_budget_need_the_same_static_limit() {
    let shared = |id, static_limit: Option<u64>| {
        let rule = Rule::new(id, bucket(9)).with_budget("b");
        static_limit.map_or(rule.clone(), |static_limit| {
            rule.with_on_failure(OnFailure::Static).with_static_limit(bucket(static_limit))
        })
    };
    assert!(RuleSet::new([shared("one", Some(3)), shared("two", Some(3))]).is_ok());
    for other in [Some(4), None] {
        let error = RuleSet::new([shared("one", Some(3)), shared("two", other)]).unwrap_err();
        assert!(error.to_string().contains("the same static limit"), "{error}");
    }
}
