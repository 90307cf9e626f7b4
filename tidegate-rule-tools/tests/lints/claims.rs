//! Claims of tokens that nobody verifies.

use std::collections::BTreeSet;
use std::fmt::Write;

use tidegate_rules::Severity;

use super::{report, with_code};

/// A client that forges a claim has a new bucket for each request, or that of another customer.
#[test]
fn a_file_that_reads_an_unverified_claim_cannot_be_used() {
    let limit = "fixed_window: { limit: 9, window: 1m }";
    for file in [
        format!("identify: {{ VERIFIED, user: claim:sub }}\nrules:\n- {{ id: a, per: user, {limit} }}"),
        format!(
            "identify: {{ VERIFIED, user: [attr:user, claim:sub] }}\nrules:\n- {{ id: a, per: ip, cost: 'size(user)', {limit} }}"
        ),
        format!(
            "identify: {{ VERIFIED, tenant: claim:org }}\nrules:\n- {{ id: a, match: {{ tenant: acme }}, per: ip, {limit} }}"
        ),
        format!(
            "identify: {{ VERIFIED, plan: claim:tier }}\nplans: {{ pro: {{ a: {{ {limit} }} }} }}\n\
             rules:\n- {{ id: a, match: {{ plan: pro }}, per: ip, {limit} }}"
        ),
        format!("identify: {{ VERIFIED, unused: claim:sub }}\nrules:\n- {{ id: a, per: ip, {limit} }}"),
        format!("identify: {{ VERIFIED }}\nrules:\n- {{ id: a, per: [ip, claim:sub], {limit} }}"),
    ] {
        for verified in ["token: x-token", "authenticated: x-user", "token: x-token, authenticated: authorization"] {
            let report = report(&file.replace("VERIFIED", verified));
            let errors: Vec<_> =
                report.problems().iter().filter(|problem| problem.severity() == Severity::Error).collect();
            assert_eq!(errors.len(), 1, "{report}");
            assert_eq!(errors[0].code(), "unverified-claim");
            assert!(
                errors[0].message().contains("forge") && errors[0].message().contains("another customer"),
                "{report}"
            );
            let header = if verified.contains("token") { "x-token" } else { "authorization" };
            let help = errors[0].help().unwrap_or_default();
            assert!(help.contains(&format!("`authenticated: [{header}]`")), "{report}");
            assert!(help.contains("never verifies") && help.contains("in front"), "{report}");
        }
        for verified in ["authenticated: Authorization", "token: x-token, authenticated: [x-token]"] {
            let report = report(&file.replace("VERIFIED", verified));
            assert!(with_code(&report, "unverified-claim").is_empty() && !report.has_errors(), "{report}");
        }
    }
}

#[test]
fn an_unverified_claim_is_reported_behind_a_hundred_warnings_about_names() {
    let mistyped = ('a'..='z').flat_map(|c| (0..5).map(move |at| (c, at)));
    let names = mistyped.map(|(c, at)| {
        let mut name = "authenticated".to_owned();
        name.insert(at, c);
        format!("{name}: attr:x")
    });
    let names: BTreeSet<String> = names.collect();
    let file = format!(
        "identify: {{ {} }}\nrules:\n- {{ id: a, per: claim:sub, fixed_window: {{ limit: 9, window: 1m }} }}",
        names.into_iter().collect::<Vec<_>>().join(", ")
    );
    let report = report(&file);
    assert_eq!(report.problems().len(), 100, "{report}");
    assert_eq!(with_code(&report, "unverified-claim").len(), 1, "{report}");
}

#[test]
fn an_error_is_not_lost_behind_a_hundred_warnings() {
    let mut file = "rules:\n".to_owned();
    for rule in 0..300 {
        let _ = writeln!(
            file,
            "- {{ id: r{rule}, match: {{ path: /r{rule} }}, per: header:x, fixed_window: {{ limit: 9, window: 1m }} }}"
        );
    }
    assert!(!report(&file).has_errors());
    file += "- { id: last, match: { path: /last }, per: claim:sub, fixed_window: { limit: 9, window: 1m } }\n";
    assert_eq!(with_code(&report(&file), "unverified-claim").len(), 1);
}
