//! The checklist for production: what is met, what is not, and what a file cannot tell.

use ChecklistState::{Met, Unknown, Unmet};
use tidegate_rules::{ChecklistItem, ChecklistState, Deployment, RuleFile};

/// A file of which everything that a file can say is said.
const GOOD: &str = "version: 1
rules:
- id: search
  match: { path: /search }
  per: ip
  cost: 1
  token_bucket: { capacity: 20, refill: 10/s }
  on_failure: open
";

fn redis() -> Deployment {
    Deployment::new().with_secret(true).with_store("redis://user:hunter2@cache:6379")
}

fn items(text: &str, facts: &Deployment) -> Vec<ChecklistItem> {
    RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}")).checklist(facts)
}

fn item(text: &str, facts: &Deployment, about: &str) -> (ChecklistState, String) {
    let items = items(text, facts);
    let item = items.into_iter().find(|item| item.name.contains(about));
    item.map_or_else(|| panic!("no item is about {about}"), |item| (item.state, item.detail))
}

/// `GOOD` with a rule more.
fn with(rule: &str) -> String {
    format!("{GOOD}- {{ {rule} }}\n")
}

#[test]
fn a_good_file_in_a_good_place_has_nothing_unmet() {
    let items = items(GOOD, &redis());
    let states: Vec<_> = items.iter().map(|item| item.state).collect();
    assert_eq!(states, [Met, Met, Met, Met, Met, Met, Unknown, Met, Met, Unknown, Met, Met, Met, Met, Met]);
    assert!(items.iter().all(|item| !item.detail.is_empty()));
}

#[test]
fn a_password_in_the_address_of_the_store_is_not_repeated() {
    assert!(!format!("{:?}", items(GOOD, &redis())).contains("hunter2"));
}

#[test]
fn missing_match_cost_and_failure_policy_are_reported() {
    let limit = "token_bucket: { capacity: 20, refill: 10/s }";
    let unmatched = with(&format!("id: wide, per: ip, cost: 2, on_failure: open, {limit}"));
    let (state, detail) = item(&unmatched, &redis(), "explicit");
    assert_eq!((state, detail.contains("match: wide;")), (Unmet, true), "{detail}");
    let meant = unmatched.replace("id: wide,", "id: wide, match: {},");
    assert_eq!(item(&meant, &redis(), "explicit").0, Met);
    assert_eq!(item(&meant.replace("cost: 2, ", ""), &redis(), "explicit").0, Unknown);
    let (state, detail) = item(&meant.replace("on_failure: open, ", ""), &redis(), "failure policy");
    assert_eq!((state, detail.contains("no `on_failure`: wide;")), (Unmet, true), "{detail}");
}

#[test]
fn weak_security_rules_are_unmet() {
    let fixed = with(
        "id: pin, match: { action: pin }, per: ip, security: true, on_failure: closed, \
                      fixed_window: { limit: 5, window: 10m }",
    );
    let (state, detail) = item(&fixed, &redis(), "algorithm");
    assert_eq!((state, detail.contains("boundary: pin;")), (Unmet, true), "{detail}");
    let log = fixed.replace("fixed_window", "sliding_log");
    assert_eq!(item(&log, &redis(), "algorithm").0, Met);
    assert_eq!(item(&log, &redis(), "failure policy").0, Met);
    assert_eq!(item(&log.replace("closed", "degraded"), &redis(), "failure policy").0, Unmet);
    assert_eq!(item(&log.replace("limit: 5", "limit: 5000"), &redis(), "algorithm").0, Unmet);
    assert_eq!(item(&log.replace("per: ip, security", "per: ip, cost: 6, security"), &redis(), "algorithm").0, Unmet);
}

#[test]
fn the_store_and_the_secret_of_a_deployment_are_checked() {
    let without = |store: Option<&str>| store.map_or_else(Deployment::new, |store| Deployment::new().with_store(store));
    assert_eq!(item(GOOD, &without(None), "hashed").0, Unmet);
    assert_eq!(item(GOOD, &without(None), "concurrency").0, Unknown);
    assert_eq!(item(GOOD, &without(Some("memory:")), "concurrency").0, Unknown);
    assert_eq!(item(GOOD, &without(Some("memory:")), "scripts").1, "the memory store has no scripts");
    assert_eq!(item(GOOD, &without(Some("redis://cache")), "concurrency").0, Met);
    for known in ["rediss://cache", "redis+sentinel://a:1,b:2/NAME", "rediss+cluster://a:1,b:2"] {
        assert_eq!(item(GOOD, &without(Some(known)), "concurrency").0, Met, "{known}");
    }
    for unknown in ["redis+proxy://a:1", "hunter2", "", "Redis://cache", "postgres://cache"] {
        let (state, detail) = item(GOOD, &without(Some(unknown)), "concurrency");
        assert_eq!(state, Unmet, "{unknown} is no store that anything is proven of");
        assert!(
            detail.starts_with("this version does not support the store") && !detail.contains("hunter2"),
            "{detail}"
        );
    }
    let (state, detail) = item(GOOD, &without(Some("redis+cluster://a:1,b:2")), "tags");
    assert!(state == Met && detail.contains("across slots"), "{detail}");
}

#[test]
fn memory_is_estimated_for_each_rule_and_a_million_subjects() {
    let (state, detail) = item(GOOD, &redis(), "memory");
    assert_eq!(state, Met);
    assert_eq!(
        detail,
        "at most about 130 MB in Redis for a million subjects active under every rule; bytes for each subject: search 130"
    );
    let log = with("id: log, per: attr:account, sliding_log: { limit: 100, window: 1m }");
    let (_, detail) = item(&log, &redis(), "memory");
    assert!(detail.contains("about 1280 MB") && detail.ends_with("log 1150, search 130"), "{detail}");
    let in_plan = format!("{log}plans: {{ pro: {{ log: {{ sliding_log: {{ limit: 1000, window: 1m }} }} }} }}\n");
    let (_, detail) = item(&in_plan, &redis(), "memory");
    assert!(detail.contains("log 10150"), "{detail}");
    let shared = GOOD.replace("per: ip", "per: []");
    assert!(item(&shared, &redis(), "memory").1.contains("one key for all"));
}

#[test]
fn hot_keys_and_long_periods_are_named() {
    let shared = with("id: all, per: [], token_bucket: { capacity: 20, refill: 10/s }");
    let (state, detail) = item(&shared, &redis(), "hot keys");
    assert_eq!((state, detail.contains("one key or a few: all;")), (Unknown, true), "{detail}");
    let by_tenant = with("id: big, per: tenant, fixed_window: { limit: 20, window: 1d }");
    let (state, detail) = item(&by_tenant, &redis(), "hot keys");
    assert_eq!((state, detail.contains("one key: big;")), (Unknown, true), "{detail}");
    let (state, detail) = item(&by_tenant, &redis(), "billing");
    assert_eq!((state, detail.contains("longer: big;")), (Unknown, true), "{detail}");
    assert_eq!(item(&by_tenant.replace("1d", "12h"), &redis(), "billing").0, Met);
}

#[test]
fn shadow_is_named_and_disabled_rules_do_not_count() {
    let shadow = with("id: new, mode: shadow, per: ip, token_bucket: { capacity: 20, refill: 10/s }");
    assert!(item(&shadow, &redis(), "shadow").1.ends_with(": new"));
    let disabled = shadow.replace("shadow", "disabled");
    assert_eq!(items(&disabled, &redis()), items(GOOD, &redis()));
}

#[test]
fn a_long_list_of_rules_is_cut() {
    let rules = (0..1_200).map(|rule| {
        format!(
            "- {{ id: r{rule}, per: ip, fixed_window: {{ limit: 9, window: 1m }}, match: {{ action: a{rule} }} }}\n"
        )
    });
    let text = format!("{GOOD}{}", rules.collect::<String>());
    let (_, detail) = item(&text, &redis(), "failure policy");
    assert!(detail.contains("r7 and 1192 more;"), "{detail}");
    assert_eq!(item(&text, &redis(), "label").0, Unknown);
}

#[test]
fn the_documentation_has_every_item() {
    let page = include_str!("../../docs/lints.md");
    for item in items(GOOD, &redis()) {
        assert!(page.contains(&format!("| {} |", item.name)), "{} is not on the page", item.name);
    }
}
