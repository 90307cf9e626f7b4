//! What an explanation says about a ledger.

use tidegate::rules::LedgerMode;
use tidegate::{OnFailure, Request, Secret, Timestamp};
use tidegate_rule_tools::{Explanation, RuleEffect, RuleStatus, describe_ledger, explain_at};
use tidegate_rules::RuleFile;

fn explain(rule: &str, method: &str) -> Explanation {
    let text = format!("version: 1\nrules:\n- {{ id: a, per: [tenant], {rule} }}\n");
    let file = RuleFile::parse("rules.yaml", &text).unwrap_or_else(|report| panic!("{report}"));
    let request = Request::new("").with_attribute("tenant", "acme").with_attribute("method", method);
    let secret = Secret::new("0123456789abcdef");
    explain_at(&file, &request, &secret, Timestamp::from_micros(0))
}

fn effect(explanation: &Explanation) -> &RuleEffect {
    let RuleStatus::Applies(effect) = &explanation.rules[0].status else { panic!("the rule applies: {explanation:?}") };
    effect
}

#[test]
fn an_explanation_names_the_ledger_of_a_quota() {
    for (mode, expected) in [("sync", LedgerMode::Sync), ("async", LedgerMode::Async)] {
        let explanation =
            explain(&format!("quota: {{ amount: 5, period: day, ledger: {mode}, keep_names: true }}"), "GET");
        let effect = effect(&explanation);
        let ledger = effect.ledger.expect("a ledger");
        assert_eq!((ledger.mode, ledger.keep_names), (expected, true));
        let text = format!("quota: 5 in each day of UTC, {}", describe_ledger(expected));
        assert_eq!(effect.limits[0].text, text);
        assert!(text.contains(&format!("({mode})")), "{text}");
    }
}

#[test]
fn a_rule_without_a_ledger_or_in_shadow_mode_records_nothing() {
    for rule in ["quota: { amount: 5, period: day }", "mode: shadow, quota: { amount: 5, period: day, ledger: sync }"] {
        let explanation = explain(rule, "GET");
        let effect = effect(&explanation);
        assert_eq!((effect.ledger, effect.limits[0].text.as_str()), (None, "quota: 5 in each day of UTC"), "{rule}");
    }
}

#[test]
fn an_explanation_says_whether_the_failure_policy_is_the_default() {
    let policy = |on_failure: &str, method: &str| {
        let explanation = explain(&format!("{on_failure} quota: {{ amount: 5, period: day, ledger: async }}"), method);
        let effect = effect(&explanation);
        (effect.on_failure, effect.is_default_policy)
    };
    assert_eq!(policy("", "GET"), (OnFailure::Closed, true));
    assert_eq!(policy("on_failure: closed,", "GET"), (OnFailure::Closed, false));
    assert_eq!(policy("on_failure: { GET: share },", "GET"), (OnFailure::Share, false));
    assert_eq!(policy("on_failure: { GET: share },", "POST"), (OnFailure::Closed, true));
    assert_eq!(policy("on_failure: { GET: share, default: local },", "POST"), (OnFailure::Local, false));
    let without = explain("quota: { amount: 5, period: day }", "GET");
    assert_eq!((effect(&without).on_failure, effect(&without).is_default_policy), (OnFailure::Local, true));
}

#[test]
fn the_timeline_of_a_rule_with_a_ledger_is_that_without_one() {
    let points = |ledger: &str| {
        let explanation = explain(&format!("quota: {{ amount: 5, period: day{ledger} }}"), "GET");
        explanation.timeline.points.iter().map(|point| (point.at, point.allowed)).collect::<Vec<_>>()
    };
    assert_eq!(points(", ledger: sync"), points(""));
    assert_eq!(points(", ledger: sync")[0].1, 5);
}
