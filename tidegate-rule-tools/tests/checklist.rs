//! The checklist for production: items that are met, unmet, or not visible in the file.

use ChecklistState::{Met, Unknown, Unmet};
use tidegate_rule_tools::{ChecklistItem, ChecklistState, Deployment, checklist};
use tidegate_rules::RuleFile;

/// A file with every setting that the checklist reads.
const GOOD: &str = "version: 1
rules:
- id: search
  match: { path: /search }
  per: ip
  cost: 1
  token_bucket: { capacity: 20, refill: 10/s }
  on_failure: share
";

fn redis() -> Deployment {
    Deployment::new().with_secret(true).with_store("redis://user:hunter2@cache:6379")
}

fn items(text: &str, deployment: &Deployment) -> Vec<ChecklistItem> {
    let file = RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"));
    checklist(&file, deployment)
}

fn item(text: &str, deployment: &Deployment, about: &str) -> (ChecklistState, String) {
    let items = items(text, deployment);
    let item = items.into_iter().find(|item| item.name.contains(about));
    item.map_or_else(|| panic!("no item is about {about}"), |item| (item.state, item.detail))
}

/// `GOOD` with one more rule.
fn with_rule(rule: &str) -> String {
    format!("{GOOD}- {{ {rule} }}\n")
}

#[test]
fn a_complete_file_with_a_shared_store_has_no_unmet_items() {
    let items = items(GOOD, &redis());
    let states: Vec<_> = items.iter().map(|item| item.state).collect();
    let unknown: Vec<_> = items.iter().filter(|item| item.state == Unknown).map(|item| item.name).collect();
    assert_eq!(unknown, ["latency is monitored", "the response to a denied request is documented"]);
    assert!(!states.contains(&Unmet), "{items:?}");
    assert!(items.iter().all(|item| !item.detail.is_empty()));
}

#[test]
fn a_password_in_the_address_of_the_store_is_not_repeated() {
    assert!(!format!("{:?}", items(GOOD, &redis())).contains("hunter2"));
}

#[test]
fn missing_match_and_cost_are_reported() {
    let limit = "token_bucket: { capacity: 20, refill: 10/s }";
    let unmatched = with_rule(&format!("id: wide, per: ip, cost: 2, {limit}"));
    let (state, detail) = item(&unmatched, &redis(), "explicit");
    assert_eq!((state, detail.contains("match: wide;")), (Unmet, true), "{detail}");
    let match_all = unmatched.replace("id: wide,", "id: wide, match: {},");
    assert_eq!(item(&match_all, &redis(), "explicit").0, Met);
    assert_eq!(item(&match_all.replace("cost: 2, ", ""), &redis(), "explicit").0, Unknown);
}

#[test]
fn a_rule_without_a_failure_policy_has_the_default_unless_all_requests_share_its_limit() {
    let limit = "token_bucket: { capacity: 20, refill: 10/s }";
    let by_address = with_rule(&format!("id: wide, match: {{}}, per: ip, cost: 2, {limit}"));
    let (state, detail) = item(&by_address, &redis(), "failure policy");
    assert_eq!((state, detail.as_str()), (Met, "`local`, the default, applies to wide"));
    let everybody = by_address.replace("id: wide, match: {}, per: ip", "id: wide, match: {}, per: []");
    let (state, detail) = item(&everybody, &redis(), "failure policy");
    assert_eq!(
        (state, detail.contains("whole limit for everybody while the store fails: wide;")),
        (Unmet, true),
        "{detail}"
    );
    let shared = everybody.replace("cost: 2,", "cost: 2, on_failure: share,");
    assert_eq!(item(&shared, &redis(), "failure policy"), (Met, "every rule has `on_failure`".to_owned()));
}

#[test]
fn weak_security_rules_are_unmet() {
    let fixed = with_rule(
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
    assert_eq!(item(GOOD, &without(None), "instances share one count").0, Unknown);
    assert_eq!(item(GOOD, &without(Some("memory:")), "instances share one count").0, Unknown);
    assert_eq!(item(GOOD, &without(Some("memory:")), "scripts").1, "the memory store has no scripts");
    assert_eq!(item(GOOD, &without(Some("redis://cache")), "instances share one count").0, Met);
    for known in ["rediss://cache", "redis+sentinel://a:1,b:2/NAME", "rediss+cluster://a:1,b:2"] {
        assert_eq!(item(GOOD, &without(Some(known)), "instances share one count").0, Met, "{known}");
    }
    for unknown in ["redis+proxy://a:1", "hunter2", "", "Redis://cache", "postgres://cache"] {
        let (state, detail) = item(GOOD, &without(Some(unknown)), "instances share one count");
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
    let log = with_rule("id: log, per: attr:account, sliding_log: { limit: 100, window: 1m }");
    let (_, detail) = item(&log, &redis(), "memory");
    assert!(detail.contains("about 1280 MB") && detail.ends_with("log 1150, search 130"), "{detail}");
    let in_plan = format!("{log}plans: {{ pro: {{ log: {{ sliding_log: {{ limit: 1000, window: 1m }} }} }} }}\n");
    let (_, detail) = item(&in_plan, &redis(), "memory");
    assert!(detail.contains("log 10150"), "{detail}");
    let shared = GOOD.replace("per: ip", "per: []");
    assert!(item(&shared, &redis(), "memory").1.contains("one key for all"));
    let usage =
        with_rule("id: tokens, per: tenant, cost: { usage: total }, token_bucket: { capacity: 20, refill: 10/s }");
    let (_, detail) = item(&usage, &redis(), "memory");
    let reservations = "; without open reservations (`usage` in tokens), which take 25 bytes a subject and 22 each";
    assert!(detail.ends_with(&format!("search 130, tokens 130{reservations}")), "{detail}");
}

#[test]
fn hot_keys_and_long_periods_are_named() {
    let shared = with_rule("id: all, per: [], token_bucket: { capacity: 20, refill: 10/s }");
    let (state, detail) = item(&shared, &redis(), "hot keys");
    assert_eq!((state, detail.contains("one key or a few: all;")), (Unknown, true), "{detail}");
    let by_tenant = with_rule("id: big, per: tenant, fixed_window: { limit: 20, window: 1d }");
    let (state, detail) = item(&by_tenant, &redis(), "hot keys");
    assert_eq!((state, detail.contains("one key: big;")), (Unknown, true), "{detail}");
    let (state, detail) = item(&by_tenant, &redis(), "billing");
    assert_eq!((state, detail.contains("longer: big;")), (Unknown, true), "{detail}");
    assert_eq!(item(&by_tenant.replace("1d", "12h"), &redis(), "billing").0, Met);
}

#[test]
fn a_quota_is_no_record_of_what_is_billed() {
    let quota = with_rule("id: hours, per: tenant, quota: { amount: 20, period: hour }, on_failure: closed");
    let (state, detail) = item(&quota, &redis(), "billing");
    assert_eq!(
        (
            state,
            detail
                .ends_with("longer: hours; the store may lose counts, so keep what you bill in a database of your own")
        ),
        (Unknown, true),
        "{detail}"
    );
    let (state, detail) = item(&quota.replace("closed", "open"), &redis(), "billing");
    assert_eq!(
        (state, detail.ends_with("never learns of it: hours; set `closed` where it must not")),
        (Unknown, true),
        "{detail}"
    );
    assert!(
        item(&quota, &redis(), "memory").1.contains("hours 170, search 130"),
        "{}",
        item(&quota, &redis(), "memory").1
    );
    let guessing = with_rule(
        "id: codes, match: { action: otp }, per: attr:account, quota: { amount: 5, period: day }, on_failure: share",
    );
    let (state, detail) = item(&guessing, &redis(), "algorithm");
    assert_eq!((state, detail.contains("at a boundary: codes;")), (Unmet, true), "{detail}");
}

#[test]
fn a_ledger_records_what_is_billed_and_is_closed_by_default() {
    let quota = with_rule("id: hours, per: tenant, quota: { amount: 20, period: hour, ledger: async }");
    assert_eq!(item(&quota, &redis(), "billing"), (Met, "the ledger records: hours".to_owned()));
    assert_eq!(
        item(&quota, &redis(), "failure policy"),
        (Met, "`closed`, the default with a ledger, applies to hours".to_owned())
    );
    let both = format!("{quota}- {{ id: wide, match: {{}}, per: ip, token_bucket: {{ capacity: 2, refill: 1/s }} }}\n");
    assert_eq!(
        item(&both, &redis(), "failure policy").1,
        "`local`, the default, applies to wide; `closed`, the default with a ledger, applies to hours"
    );
    let (_, detail) = item(&quota, &redis(), "memory");
    assert!(detail.contains("hours 170, search 130; without entries for the ledger") && detail.ends_with(": hours"));
    let open = quota.replace("id: hours,", "id: hours, on_failure: { GET: local, default: share },");
    let (state, detail) = item(&open, &redis(), "billing");
    assert_eq!((state, detail.ends_with("is journaled and becomes debt: hours")), (Met, true), "{detail}");
    let shadow = quota.replace("id: hours,", "id: hours, mode: shadow,");
    let (state, detail) = item(&shadow, &redis(), "billing");
    assert_eq!((state, detail.contains("the ledger records")), (Unknown, false), "{detail}");
    let unrecorded = format!("{quota}- {{ id: days, per: tenant, quota: {{ amount: 9, period: day }} }}\n");
    let (state, detail) = item(&unrecorded, &redis(), "billing");
    assert_eq!((state, detail.contains("longer: days;")), (Unknown, true), "{detail}");
    assert!(detail.contains("never learns of it: days;") && detail.ends_with("the ledger records: hours"), "{detail}");
}

#[test]
fn leases_are_compared_with_a_failover() {
    assert_eq!(item(GOOD, &redis(), "leases"), (Met, "no rule limits concurrency".to_owned()));
    let held = with_rule("id: held, per: ip, concurrency: { max: 3, lease: 10s }");
    let (state, detail) = item(&held, &redis(), "leases");
    assert_eq!(state, Unknown);
    assert!(detail.contains("shortest lease is 10s") && detail.ends_with("(`local`): held"), "{detail}");
    let (_, shared) = item(&held.replace("id: held,", "id: held, on_failure: share,"), &redis(), "leases");
    assert!(shared.ends_with("workers lose their slots, and requests take theirs again if there is room"), "{shared}");
    assert_eq!(item(&held, &Deployment::new().with_store("memory:"), "leases").0, Met);
    assert!(item(&held, &redis(), "memory").1.contains("held 198"), "a key and 16 bytes for each slot");
}

#[test]
fn penalties_that_hit_bystanders_are_named() {
    assert_eq!(item(GOOD, &redis(), "penalties"), (Met, "no rule has a penalty".to_owned()));
    let by = |per: &str| {
        with_rule(&format!(
            "id: pin, match: {{ action: pin }}, per: [{per}], security: true, on_failure: share, \
             sliding_log: {{ limit: 5, window: 10m }}, penalty: {{ after: 3, block: 1m, max: 1h }}"
        ))
    };
    let (state, detail) = item(&by("attr:account"), &redis(), "penalties");
    assert_eq!((state, detail.contains("blocks its owner: pin;")), (Unmet, true), "{detail}");
    let (state, detail) = item(&by("attr:account, ip"), &redis(), "penalties");
    assert_eq!((state, detail.contains("blocked together: pin;")), (Unknown, true), "{detail}");
    let by_key = format!("{}identify: {{ authenticated: [x-key] }}\n", by("header:x-key"));
    assert_eq!(item(&by_key, &redis(), "penalties").0, Met);
}

#[test]
fn shadow_is_named_and_disabled_rules_do_not_count() {
    let shadow = with_rule("id: new, mode: shadow, per: ip, token_bucket: { capacity: 20, refill: 10/s }");
    assert!(item(&shadow, &redis(), "shadow").1.ends_with(": new"));
    let disabled = shadow.replace("shadow", "disabled");
    assert_eq!(items(&disabled, &redis()), items(GOOD, &redis()));
}

#[test]
fn a_long_list_of_rules_is_truncated() {
    let rules = (0..1_200).map(|rule| {
        format!(
            "- {{ id: r{rule}, per: ip, fixed_window: {{ limit: 9, window: 1m }}, match: {{ action: a{rule} }} }}\n"
        )
    });
    let text = format!("{GOOD}{}", rules.collect::<String>());
    let (_, detail) = item(&text, &redis(), "explicit");
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
