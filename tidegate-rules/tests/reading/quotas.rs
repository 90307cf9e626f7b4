//! Invalid quotas: every error has its position and help.

use tidegate_rules::{RuleFile, Severity};

/// The problems of a quota, as `column code message (help)`.
fn problems(quota: &str) -> Vec<String> {
    let text = format!("version: 1\nrules:\n- id: q\n  per: [tenant]\n  on_failure: closed\n  quota: {{ {quota} }}\n");
    let report = match RuleFile::parse("rules.yaml", &text) {
        Ok(file) => file.report().clone(),
        Err(report) => report,
    };
    let errors = report.problems().iter().filter(|problem| problem.severity() == Severity::Error);
    errors
        .map(|problem| {
            let (line, column) = report.position(problem);
            assert_eq!(line, 6, "{report}");
            format!("{column} {} {} ({})", problem.code(), problem.message(), problem.help().unwrap_or_default())
        })
        .collect()
}

#[test]
fn a_quota_has_a_period_of_the_calendar_in_a_time_zone_with_an_anchor_and_a_grace() {
    for quota in [
        "amount: 1M, period: month",
        "amount: 0, period: hour",
        "amount: 10_000, period: day, timezone: UTC",
        "amount: 5, period: week, anchor: sunday, grace: 0",
        "amount: 5, period: week, anchor: Sunday",
        "amount: 5, period: month, anchor: 31, timezone: america/new_york, grace: 5%",
        "amount: 5, period: year, anchor: 02-29, timezone: Australia/Lord_Howe, grace: 1k",
        "amount: 5, period: year, anchor: '04-06', grace: 2.5%",
        "amount: 5, period: day, ledger: sync",
        "amount: 5, period: day, ledger: async, keep_names: true",
    ] {
        assert_eq!(problems(quota), [""; 0], "{quota}");
    }
}

#[test]
fn every_error_of_a_quota_has_its_position_and_help() {
    for (quota, expected) in [
        (
            "amount: 5, period: month, timezone: Europe/Berln",
            "48 quota quota.timezone: `Europe/Berln` is not a time zone of the IANA database (did you mean `Europe/Berlin`?)",
        ),
        (
            "amount: 5, period: month, timezone: Mars",
            "48 quota quota.timezone: `Mars` is not a time zone of the IANA database, such as `Europe/Berlin` or `UTC` \
             (write the name of a zone, such as `Europe/Berlin`)",
        ),
        (
            "amount: 5, period: day, anchor: 3",
            "44 quota quota.anchor: periods of a day take no anchor (remove `anchor`)",
        ),
        (
            "amount: 5, period: week, anchor: 3",
            "45 quota quota.anchor: `3` is not a weekday, on which a week begins: monday to sunday \
             (write a weekday: `anchor: sunday`)",
        ),
        (
            "amount: 5, period: month, anchor: 32",
            "46 quota quota.anchor: `32` is not a day on which a month begins: 1 to 31 \
             (write a day of the month: `anchor: 15`)",
        ),
        (
            "amount: 5, period: year, anchor: 02-30",
            "45 quota quota.anchor: `02-30` is not a date on which a year begins: MM-DD, such as 04-01 \
             (write a month and a day: `anchor: 04-06`)",
        ),
        ("amount: 5, period: fortnight", "31 unknown-value `fortnight` is not a valid value"),
        ("amount: 5, period: months", "31 unknown-value `months` is not a valid value (did you mean `month`?"),
        ("amount: 5", "12 missing-field the field `period` is missing"),
        (
            "amount: 5, period: day, grace: some",
            "43 quota quota.grace: \"some\" does not start with a number (write 50_000 or 5%)",
        ),
        ("amount: 5, period: day, grace: 5 %%", "43 quota quota.grace: \"5 %%\" is not a number or a percentage"),
        ("amount: 5, period: day, grace: -5", "43 quota quota.grace: \"-5\" is negative"),
        (
            "amount: 4503599627370495, period: day, grace: 1",
            "58 quota quota.grace: 4503599627370495 with a grace of 1 is above the largest amount, 4503599627370495",
        ),
        (
            "amount: 5, period: day, ledger: asnyc",
            "44 unknown-value `asnyc` is not a valid value (did you mean `async`?",
        ),
        ("amount: 5, period: day, zone: UTC", "36 unknown-field unknown field `zone`"),
    ] {
        let found = problems(quota);
        assert_eq!(found.len(), 1, "{quota}: {found:#?}");
        assert!(found[0].starts_with(expected), "{quota}: {found:#?}");
    }
}

#[test]
fn all_errors_of_a_quota_are_reported_at_once() {
    let found = problems("amount: 5, period: week, timezone: Berlin, anchor: 15, grace: much");
    let starts: Vec<_> = found.iter().map(|problem| problem.split(':').next().unwrap_or_default()).collect();
    assert_eq!(starts, ["47 quota quota.timezone", "63 quota quota.anchor", "74 quota quota.grace"], "{found:#?}");
}

#[test]
fn rules_of_a_budget_have_the_same_quota() {
    let text = |second: &str| {
        format!(
            "version: 1\nrules:\n- {{ id: a, per: [tenant], budget: b, quota: {{ amount: 5, period: day, timezone: UTC }} }}\n\
             - {{ id: b, match: {{ path: /b }}, per: [tenant], budget: b, quota: {{ amount: 5, {second} }} }}\n"
        )
    };
    assert!(RuleFile::parse("rules.yaml", &text("period: day")).is_ok());
    for second in ["period: month", "period: day, timezone: Europe/Berlin", "period: day, grace: 1"] {
        let report = RuleFile::parse("rules.yaml", &text(second)).unwrap_err();
        assert!(report.to_string().contains("budget"), "{report}");
    }
}
