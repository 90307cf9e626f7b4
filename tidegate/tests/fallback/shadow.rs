//! Shadow checks never touch a request: not by their number, not while the store fails.

use tidegate::spi::{Check, Gate, MAX_CHECKS, MAX_SHADOW_CHECKS, Plan, PlanError, Role, Subject};
use tidegate::{Limiter, ManualClock, MemoryStore, Request, Rule, RuleMode, RuleSet};

use crate::fallback::store::{SwitchableStore, bucket, limiter, passed, poll_once};

fn rules(enforced: usize, shadow: usize) -> Vec<Rule> {
    let shadow = (0..shadow).map(|n| Rule::new(format!("s{n}"), bucket(0)).with_mode(RuleMode::Shadow));
    let enforced = (0..enforced).map(|n| Rule::new(format!("e{n}"), bucket(2)));
    shadow.chain(enforced).collect()
}

#[test]
fn shadow_rules_do_not_count_towards_the_largest_number_of_checks() {
    let set = RuleSet::new(rules(MAX_CHECKS, 100)).unwrap();
    let error = RuleSet::new(rules(MAX_CHECKS + 1, 0)).unwrap_err();
    assert!(error.to_string().contains("33 limits"), "{error}");
    let limiter = Limiter::new(set, MemoryStore::new());
    let plan = limiter.plan(&Request::new(""));
    assert!(!plan.is_too_large());
    assert_eq!((plan.checks().len(), plan.skipped_shadow().len()), (MAX_CHECKS + MAX_SHADOW_CHECKS, 80));
    let decision = limiter.check_now(&Request::new(""));
    assert!(decision.is_allowed());
    assert_eq!(decision.shadow_would_reject().count(), MAX_SHADOW_CHECKS);
    let skipped: Vec<_> = decision.skipped_shadow(&plan).map(|gate| gate.rule().id.as_str()).collect();
    assert_eq!((skipped.len(), skipped[0], skipped[79]), (80, "s20", "s99"));
}

#[test]
fn too_many_shadow_rules_refuse_nothing_without_the_store() {
    let clock = ManualClock::default();
    let limiter = limiter(&SwitchableStore::failing(&clock), &clock, rules(MAX_CHECKS, 100));
    assert_eq!(passed(&limiter, &Request::new(""), 5), Some(2));
    let decision = poll_once(limiter.check(&Request::new(""))).unwrap();
    assert_eq!(decision.skipped_shadow(&limiter.plan(&Request::new(""))).count(), 100);
}

#[test]
fn a_plan_by_hand_leaves_out_shadow_checks_and_refuses_enforced_ones() {
    let gates = |count: usize, role: Role| -> Vec<Gate> {
        (0..count).map(|n| Gate::for_rule(format!("{role:?}{n}"), bucket(1)).with_role(role)).collect()
    };
    let (shadow, enforced) = (gates(30, Role::Shadow), gates(33, Role::Enforced));
    let checks = |gates: &'static [Gate]| gates.iter().map(|gate| Check::new(gate, Subject::from_hash(7), 1));
    let (shadow, enforced): (&'static [Gate], &'static [Gate]) = (shadow.leak(), enforced.leak());
    let plan = Plan::new(checks(shadow).chain(checks(&enforced[..32]))).unwrap();
    assert_eq!((plan.checks().len(), plan.skipped_shadow().len()), (52, 10));
    let error = Plan::new(checks(shadow).chain(checks(enforced))).unwrap_err();
    assert_eq!(error, PlanError::TooManyChecks { checks: 33 });
}

#[test]
fn merged_plans_leave_out_shadow_checks_with_all_their_parts() {
    let shadow = (0..25).map(|n| Rule::new(format!("s{n}"), bucket(9)).with_per(["user"]).with_mode(RuleMode::Shadow));
    let limiter = Limiter::new(RuleSet::new(shadow).unwrap(), MemoryStore::new());
    let plan = |user| limiter.plan(&Request::new("").with_attribute("user", user));
    let twice = plan("bob").merge(&plan("bob"));
    let merged = plan("ann").merge(&twice);
    assert_eq!((merged.checks().len(), merged.skipped_shadow().len()), (MAX_SHADOW_CHECKS, 35));
    assert!(limiter.plans().check_now(&merged).is_allowed());
}
