//! Exemptions that a client could claim, and those that lift more than they seem to.

use tidegate_rules::Severity;

use super::{codes, report, with_code};

const RULES: &str = "rules:\n\
    - { id: login, match: { path: /login }, per: 'attr:account', security: true, on_failure: share, sliding_log: { limit: 5, window: 10m } }\n\
    - { id: all, per: [], on_failure: share, token_bucket: { capacity: 90, refill: 9/s } }\n\
    - { id: api, match: { path: '/api/*' }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }\n\
    - { id: other, match: { path: /api/x, tenant: acme }, per: 'attr:a', token_bucket: { capacity: 9, refill: 1/s } }";

/// Trap: `x-tenant-id: bigco` lifted the limits of logins, and that of all requests together.
#[test]
fn nobody_can_claim_an_exemption_by_the_name_of_a_tenant_or_a_plan() {
    let plans = "plans: { pro: {} }\ntenants: { bigco: pro }\n";
    for (identify, exempt, is_refused) in [
        ("tenant: header:x-tenant", "tenant: bigco", true),
        ("tenant: header:x-tenant", "tenant: bigco, path: '/api/*'", true),
        ("tenant: header:x-tenant", "tenant: bigco, rules: [api]", true),
        ("tenant: header:x-tenant", "tenant: bigco, header: { x-internal: 1 }", true),
        ("tenant: header:x-tenant", "tenant: bigco, ip: 10.0.0.0/8", false),
        ("tenant: header:x-tenant, authenticated: x-tenant", "tenant: bigco", false),
        ("tenant: header:x-tenant, authenticated: x-key", "tenant: bigco, header: { x-key: k }", false),
        ("tenant: [claim:org, header:x-tenant], authenticated: authorization", "tenant: bigco", true),
        ("tenant: claim:org, authenticated: authorization", "tenant: bigco", false),
        ("tenant: 'cookie:org'", "tenant: bigco", true),
        ("tenant: 'body:org'", "tenant: bigco", true),
        ("tenant: attr:org", "tenant: bigco", false),
        ("", "tenant: bigco", false),
        ("plan: header:x-plan", "plan: pro", true),
        ("plan: header:x-plan", "plan: pro, tenant: bigco", false),
        ("tenant: header:x-tenant", "plan: pro", true),
        ("tenant: header:x-tenant, authenticated: x-tenant", "plan: pro", false),
    ] {
        let found = report(&format!("identify: {{ {identify} }}\n{plans}exempt: [ {{ {exempt} }} ]\n{RULES}"));
        let errors = with_code(&found, "exempt-by-tenant");
        assert_eq!(errors.len(), usize::from(is_refused), "{identify}: {exempt}\n{found}");
        assert_eq!(found.has_errors(), is_refused, "{identify}: {exempt}\n{found}");
        assert!(errors.iter().all(|error| error.severity() == Severity::Error), "{found}");
    }
}

#[test]
fn the_warning_names_what_an_exemption_lifts_and_what_it_may_be_meant_for() {
    let found = |exempt: &str| report(&format!("exempt: [ {{ {exempt} }} ]\n{RULES}"));
    let all = found("tenant: bigco");
    let [warning] = with_code(&all, "exempt-from-protection")[..] else { panic!("{all}") };
    assert!(warning.message().ends_with(": login, all"), "{all}");
    assert!(warning.help().is_some_and(|help| help.ends_with("`rules: [api]`")), "of another tenant: {all}");
    for meant in ["tenant: bigco, rules: [login, all, api]", "ip: 10.0.0.0/8", "path: /login"] {
        assert!(!codes(&found(meant)).contains(&"exempt-from-protection"), "{meant}");
    }
    let one = found("tenant: bigco, path: '/api/*'");
    let [warning] = with_code(&one, "exempt-from-protection")[..] else { panic!("{one}") };
    assert!(warning.message().ends_with(": all"), "the path of a login is another: {one}");
}
