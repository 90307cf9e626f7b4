//! `ledger` and `keep_names`: a rule has one ledger, and every error has its position and help.

use tidegate::rules::LedgerMode;
use tidegate::{OnFailure, Request};
use tidegate_rules::{Report, RuleFile, Severity};

/// A file with one rule, whose fields begin in column 3 of line 6.
fn file(rule: &str, plans: &str) -> String {
    let identify = "identify: { tenant: header:x-tenant-id, authenticated: [x-tenant-id] }";
    format!("version: 1\n{identify}\nplans: {{ {plans} }}\nrules:\n- id: q\n  {rule}\n")
}

fn parse(text: &str) -> RuleFile {
    RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}\n{text}"))
}

/// The errors of a file, as `line:column code message (help)`.
fn errors(text: &str) -> Vec<String> {
    let report: Report = RuleFile::parse("rules.yaml", text).expect_err("the file is invalid");
    let errors = report.problems().iter().filter(|problem| problem.severity() == Severity::Error);
    let shown = errors.map(|problem| {
        let (line, column) = report.position(problem);
        let help = problem.help().unwrap_or_default();
        format!("{line}:{column} {} {} ({help})", problem.code(), problem.message())
    });
    shown.collect()
}

/// The ledger of the first check of a request of plan `plan`.
fn gate_ledger(file: &RuleFile, plan: &str) -> Option<LedgerMode> {
    let request = Request::new("").with_attribute("tenant", "acme").with_attribute("plan", plan);
    file.rules().resolve(&request).checks()[0].gate().ledger()
}

const QUOTA: &str = "amount: 5, period: day";

#[test]
fn a_quota_has_a_ledger_if_the_file_says_so() {
    for (field, expected) in [
        ("", None),
        (", ledger: none", None),
        (", ledger: sync", Some(LedgerMode::Sync)),
        (", ledger: async", Some(LedgerMode::Async)),
    ] {
        let file = parse(&file(&format!("per: [tenant]\n  quota: {{ {QUOTA}{field} }}"), ""));
        let rule = file.rules().rule("q").expect("the rule");
        assert_eq!((rule.ledger, rule.ledger_names), (expected, false));
        assert_eq!(gate_ledger(&file, ""), expected);
    }
}

#[test]
fn a_quota_without_a_ledger_is_unrecorded_unless_the_file_says_that_it_is_meant() {
    let plan = |fields: &str| format!("pro: {{ q: {{ quota: {{ {QUOTA}{fields} }} }} }}");
    let bucket = "token_bucket: { capacity: 5, refill: 1/s }";
    for (limit, plans, unrecorded) in [
        (format!("quota: {{ {QUOTA} }}"), String::new(), true),
        (format!("quota: {{ {QUOTA}, ledger: none }}"), String::new(), false),
        (format!("quota: {{ {QUOTA}, ledger: none }}"), plan(""), false),
        (format!("quota: {{ {QUOTA}, ledger: sync }}"), plan(""), false),
        (format!("quota: {{ {QUOTA} }}\n  mode: shadow"), String::new(), false),
        (format!("quota: {{ {QUOTA} }}\n  mode: disabled"), String::new(), false),
        (format!("limits: {{ a: {{ quota: {{ {QUOTA} }} }}, b: {{ {bucket} }} }}"), String::new(), true),
        (bucket.to_owned(), String::new(), false),
        (bucket.to_owned(), plan(""), true),
        (bucket.to_owned(), plan(", ledger: none"), false),
    ] {
        let file = parse(&file(&format!("per: [tenant]\n  {limit}"), &plans));
        assert_eq!(file.unrecorded_quotas().collect::<Vec<_>>(), ["q"][..usize::from(unrecorded)], "{limit} {plans}");
    }
}

#[test]
fn no_ledger_beside_a_ledger_is_an_error() {
    let quotas = "limits:\n    a: { quota: { amount: 5, period: day, ledger: sync } }\n    b: { quota: { amount: 5, period: day, ledger: none } }";
    assert_eq!(
        errors(&file(&format!("per: [tenant]\n  {quotas}"), "")),
        [
            "9:51 ledger this quota has `ledger: none`, and another one of the rule `sync` (a rule has one ledger: write `ledger: sync`, or \
          move the quota to another rule)"
        ]
    );
    let rule = format!("per: [tenant]\n  quota: {{ {QUOTA}, ledger: async }}");
    let plan = format!("pro: {{ q: {{ quota: {{ {QUOTA}, ledger: none }} }} }}");
    let [error] = errors(&file(&rule, &plan)).try_into().unwrap();
    assert!(error.contains("the plan has `ledger: none`, and its rule `ledger: async`"), "{error}");
}

#[test]
fn the_ledger_keeps_names_of_tenants_only_if_the_file_says_so() {
    for (keep, expected) in [("true", true), ("false", false)] {
        let quota = format!("quota: {{ {QUOTA}, ledger: sync, keep_names: {keep} }}");
        let file = parse(&file(&format!("per: [tenant, attr:project]\n  {quota}"), ""));
        assert_eq!(file.rules().rule("q").expect("the rule").ledger_names, expected);
    }
    let not_by_tenant =
        file(&format!("per: [attr:account]\n  quota: {{ {QUOTA}, ledger: sync, keep_names: true }}"), "");
    assert_eq!(
        errors(&not_by_tenant),
        ["7:62 ledger the ledger keeps names of tenants, and the rule does not count by tenant \
          (add `tenant` to `per`, or remove `keep_names`)"]
    );
    let without = file(&format!("per: [tenant]\n  quota: {{ {QUOTA}, keep_names: false }}"), "");
    assert_eq!(
        errors(&without),
        ["7:48 ledger `keep_names` is about the ledger, and the rule has none \
          (add `ledger: sync` or `ledger: async`, or remove the field)"]
    );
}

#[test]
fn a_plan_has_the_ledger_of_its_rule() {
    let rule = format!("per: [tenant]\n  quota: {{ {QUOTA}, ledger: async, keep_names: true }}");
    for fields in ["", ", ledger: async", ", keep_names: true", ", ledger: async, keep_names: true"] {
        let file = parse(&file(&rule, &format!("pro: {{ q: {{ quota: {{ {QUOTA}{fields} }} }} }}")));
        assert_eq!(gate_ledger(&file, "pro"), Some(LedgerMode::Async), "{fields}");
    }
}

#[test]
fn another_ledger_in_a_plan_is_an_error_at_its_position() {
    let plan = |fields: &str| format!("pro: {{ q: {{ quota: {{ {QUOTA}, {fields} }} }} }}");
    let rule = |fields: &str| format!("per: [tenant]\n  quota: {{ {QUOTA}{fields} }}");
    assert_eq!(
        errors(&file(&rule(", ledger: async"), &plan("ledger: sync"))),
        ["3:63 ledger the plan has `ledger: sync`, and its rule `ledger: async` \
          (a rule has one ledger for all plans: remove it here)"]
    );
    assert_eq!(
        errors(&file(&rule(""), &plan("ledger: sync"))),
        ["3:63 ledger the plan has a ledger, and its rule has none \
          (a rule has one ledger for all plans: give the rule itself a quota with `ledger: sync`)"]
    );
    assert_eq!(
        errors(&file(&rule(", ledger: sync"), &plan("keep_names: true"))),
        ["3:67 ledger the plan has `keep_names: true`, and its rule `keep_names: false` \
          (a rule has one ledger for all plans: remove it here)"]
    );
    let bucket = "per: [tenant]\n  token_bucket: { capacity: 1, refill: 1/s }";
    assert_eq!(errors(&file(bucket, &plan("ledger: sync"))).len(), 1, "a bucket has no ledger that a plan could have");
}

#[test]
fn the_quotas_of_a_rule_have_the_same_ledger() {
    let rule = |second: &str| {
        let limits = format!(
            "limits:\n    day: {{ quota: {{ {QUOTA}, ledger: sync }} }}\n    month: {{ quota: {{ amount: 9, period: month{second} }} }}"
        );
        file(&format!("per: [tenant]\n  {limits}\n    burst: {{ token_bucket: {{ capacity: 1, refill: 1/s }} }}"), "")
    };
    let same = parse(&rule(", ledger: sync"));
    let request = Request::new("").with_attribute("tenant", "acme");
    let plan = same.rules().resolve(&request);
    let ledgers: Vec<_> = plan.checks().iter().map(|check| check.gate().ledger()).collect();
    assert_eq!(ledgers.iter().filter(|ledger| ledger.is_some()).count(), 2, "the bucket has none: {ledgers:?}");
    assert_eq!(
        errors(&rule(", ledger: async")),
        ["9:57 ledger this quota has `ledger: async`, and another one of the rule `sync` \
          (a rule has one ledger: write `ledger: sync`, or move the quota to another rule)"]
    );
    assert_eq!(
        errors(&rule("")),
        ["9:23 ledger this quota has no ledger, and another one of the rule `ledger: sync` \
          (a rule has one ledger: write `ledger: sync`, or move the quota to another rule)"]
    );
    assert_eq!(
        errors(&rule(", ledger: sync, keep_names: true")),
        ["9:75 ledger one quota of the rule keeps names in the ledger, and another one does not \
          (write the same `keep_names` in all quotas of the rule)"]
    );
}

#[test]
fn only_quotas_have_a_ledger() {
    for (rule, position) in [
        ("per: [tenant]\n  fixed_window: { limit: 5, window: 1d, ledger: sync }", "7:41"),
        ("per: [tenant]\n  concurrency: { max: 5, ledger: sync }", "7:26"),
        ("per: [tenant]\n  ledger: sync\n  quota: { amount: 5, period: day }", "7:3"),
    ] {
        let found = errors(&file(rule, ""));
        assert_eq!(found.len(), 1, "{found:#?}");
        let expected = format!("{position} unknown-field unknown field `ledger` (only a quota has one: `quota: {{");
        assert!(found[0].starts_with(&expected), "{found:#?}");
    }
}

#[test]
fn a_mistyped_ledger_is_reported_once() {
    let plans = format!("pro: {{ q: {{ quota: {{ {QUOTA}, ledger: sync }} }} }}");
    let found =
        errors(&file(&format!("per: [tenant]\n  quota: {{ {QUOTA}, ledger: snyc, keep_names: true }}"), &plans));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].starts_with("7:44 unknown-value `snyc` is not a valid value (did you mean `sync`?"), "{found:#?}");
}

#[test]
fn a_ledger_has_no_bounds_for_unauthenticated_subjects() {
    let rule = format!("per: [tenant]\n  anonymous: {{ most: 5 }}\n  quota: {{ {QUOTA}, ledger: sync }}");
    assert_eq!(
        errors(&file(&rule, "")),
        ["7:16 ledger the rule has a ledger, which has no accounts for unauthenticated subjects \
          (remove `anonymous`, and count by a tenant or a key)"]
    );
}

#[test]
fn rules_of_a_budget_have_the_same_ledger() {
    let text = |first: &str, second: &str| {
        format!(
            "version: 1\nrules:\n- {{ id: a, per: [tenant], budget: b, quota: {{ {QUOTA}{first} }} }}\n\
             - {{ id: b, match: {{ path: /b }}, per: [tenant], budget: b, quota: {{ {QUOTA}{second} }} }}\n"
        )
    };
    parse(&text(", ledger: sync", ", ledger: sync"));
    let help = "(give both rules the same `ledger` and `keep_names`)";
    for (first, second, expected) in [
        (
            ", ledger: sync",
            ", ledger: async",
            "4:100 budget this rule shares budget `b` with rule `a`, which has `ledger: sync`",
        ),
        ("", ", ledger: async", "4:100 budget this rule shares budget `b` with rule `a`, which has no ledger"),
        (", ledger: async", "", "4:68 budget this rule shares budget `b` with rule `a`, which has `ledger: async`"),
        (
            ", ledger: sync, keep_names: true",
            ", ledger: sync",
            "4:100 budget this rule shares budget `b` with rule `a`, which has `keep_names: true`",
        ),
    ] {
        assert_eq!(errors(&text(first, second)), [format!("{expected} {help}")]);
    }
}

#[test]
fn a_rule_with_a_ledger_is_closed_unless_the_file_says_otherwise() {
    let policy = |on_failure: &str, ledger: &str, method: &str| {
        let rule = format!("per: [tenant]\n  quota: {{ {QUOTA}{ledger} }}{on_failure}");
        let file = parse(&file(&rule, ""));
        let request = Request::new("").with_attribute("tenant", "acme").with_attribute("method", method);
        let plan = file.rules().resolve(&request);
        plan.checks()[0].on_failure()
    };
    let (share, table) = ("\n  on_failure: share", "\n  on_failure: { GET: share }");
    for ledger in [", ledger: sync", ", ledger: async"] {
        assert_eq!(policy("", ledger, "GET"), OnFailure::Closed);
        assert_eq!(policy("\n  on_failure: {}", ledger, "GET"), OnFailure::Closed);
        assert_eq!(policy(share, ledger, "GET"), OnFailure::Share);
        assert_eq!(policy("\n  on_failure: local", ledger, "GET"), OnFailure::Local);
        assert_eq!(policy(table, ledger, "GET"), OnFailure::Share);
        assert_eq!(policy(table, ledger, "POST"), OnFailure::Closed);
        assert_eq!(policy("\n  on_failure: { GET: share, default: open }", ledger, "POST"), OnFailure::Open);
    }
    assert_eq!((policy("", "", "GET"), policy(table, "", "POST")), (OnFailure::Local, OnFailure::Local));
}
