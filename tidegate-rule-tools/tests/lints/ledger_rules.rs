//! Lints that a ledger changes.

use super::{codes, report};

/// It records under its own id, whatever other rules refuse.
#[test]
fn a_rule_with_a_ledger_is_never_redundant() {
    let rules = |ledger: &str| {
        let rule = |id: &str, amount: u64, ledger: &str| {
            format!(
                "- {{ id: {id}, per: [tenant], on_failure: closed, quota: {{ amount: {amount}, period: day{ledger} }} }}\n"
            )
        };
        format!("rules:\n{}{}", rule("a", 5, ", ledger: none"), rule("b", 9, ledger))
    };
    assert_eq!(codes(&report(&rules(""))), ["never-decides"]);
    assert_eq!(codes(&report(&rules(", ledger: async"))), [""; 0]);
}

#[test]
fn the_lints_of_a_ledger_take_the_place_of_those_of_other_quotas() {
    let rule = |fields: &str| {
        format!(
            "rules:\n- {{ id: a, {fields} match: {{ action: x }}, quota: {{ amount: 5, period: day, ledger: sync }} }}"
        )
    };
    for (fields, expected) in [
        ("per: [tenant],", None),
        ("per: [tenant], on_failure: open,", Some("ledger-fails-open")),
        ("per: [tenant], on_failure: local,", Some("ledger-fails-open")),
        ("per: [tenant], on_failure: share,", None),
        ("per: [tenant], on_failure: open, mode: shadow,", Some("ledger-in-shadow")),
    ] {
        assert_eq!(codes(&report(&rule(fields))), expected.into_iter().collect::<Vec<_>>(), "{fields}");
    }
    let by_address = report(&rule("per: [ip],"));
    assert!(by_address.has_errors() && !codes(&by_address).contains(&"unauthenticated-quota"), "{by_address}");
}
