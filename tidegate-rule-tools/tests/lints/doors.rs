//! What rules read and a front end never has, and what its callers must send.

use tidegate_rule_tools::{
    GapEffect, check_for_door, door_gaps, parse_and_lint, report_for_doors, report_for_every_door,
};
use tidegate_rules::{FrontDoor, Problem, Report, RuleFile, Severity};

fn file(text: &str) -> RuleFile {
    parse_and_lint("rules.yaml", &format!("version: 1\n{text}\n")).unwrap_or_else(|report| panic!("{report}"))
}

/// The gaps of a file with one rule: what it reads, and the effect.
fn gaps(identify: &str, rule: &str, door: FrontDoor) -> Vec<(String, GapEffect)> {
    let limit = "fixed_window: { limit: 9, window: 1m }";
    let file = file(&format!("identify: {{ {identify} }}\nrules:\n- {{ id: a, {rule}, {limit} }}"));
    let gaps = door_gaps(&file, door);
    assert!(gaps.iter().all(|gap| gap.rule() == "a" && gap.door() == door && !gap.help().is_empty()), "{gaps:?}");
    gaps.into_iter().map(|gap| (gap.source().to_owned(), gap.effect())).collect()
}

const PROXIES: &str = "trusted_proxies: 10.0.0.0/8";

#[test]
fn each_door_lacks_what_it_can_never_have() {
    use FrontDoor::{Check, Envoy, ForwardAuth, Gateway, Library, Tower};
    use GapEffect::{AssumedSize, CoarserCount, MissingInCost, NeverApplies, SharedCount};
    let both = &[Gateway, ForwardAuth][..];
    for (identify, rule, lacking, source, effect) in [
        ("", "per: 'body:email'", &[ForwardAuth][..], "body:email", SharedCount),
        ("", "per: ['body:email', ip]", &[ForwardAuth], "body:email", CoarserCount),
        (
            "account: ['body:email', 'attr:account']",
            "per: account",
            &[ForwardAuth],
            "body:email, attr:account",
            SharedCount,
        ),
        ("", "per: 'attr:account'", both, "attr:account", SharedCount),
        ("", "per: user", both, "user", SharedCount),
        ("", "per: [tenant, path]", both, "tenant", CoarserCount),
        ("", "per: plan", both, "plan", SharedCount),
        ("", "per: action", both, "action", SharedCount),
        ("", "per: ip, match: { action: login }", both, "action", NeverApplies),
        ("", "per: ip, match: { tenant: acme }", both, "tenant", NeverApplies),
        ("", "per: ip, match: { header: { proxy: x } }", &[Gateway], "header:proxy", NeverApplies),
        ("", "per: ip, cost: 'int(attr.rows)'", both, "attr:rows", MissingInCost),
        ("", "per: ip, cost: 'size(user)'", both, "user", MissingInCost),
        ("", "per: ip, cost: 'request.size / 1024'", &[ForwardAuth], "request.size", AssumedSize),
        ("", "per: 'header:content-length'", &[ForwardAuth], "header:content-length", SharedCount),
        ("", "per: 'header:x-original-url'", &[Gateway], "header:x-original-url", SharedCount),
    ] {
        let identify = format!("{PROXIES}{}{identify}", if identify.is_empty() { "" } else { ", " });
        for door in [Gateway, ForwardAuth, Check, Tower, Envoy, Library] {
            // `account` may come from the application everywhere but at a proxy.
            let is_lacking = lacking.contains(&door);
            let expected = if is_lacking { vec![(source.to_owned(), effect)] } else { Vec::new() };
            assert_eq!(gaps(&identify, rule, door), expected, "{rule} at {door}");
        }
    }
}

#[test]
fn a_rule_lacks_nothing_if_another_source_can_take_its_place() {
    for (identify, rule) in [
        ("client: ['attr:account', 'body:email', ip]", "per: client"),
        ("user: header:x-user", "per: user"),
        ("tenant: header:x-tenant", "per: [tenant], match: { tenant: acme }, cost: 'size(tenant)'"),
        ("", "per: [path, host, method, 'query:q', 'cookie:c', 'const:x'], match: { header: { x-beta: 1 } }"),
        ("", "per: 'attr:account', mode: disabled"),
        ("user: claim:sub, authenticated: authorization", "per: user"),
    ] {
        for door in [FrontDoor::Gateway, FrontDoor::ForwardAuth] {
            let identify = format!("{PROXIES}{}{identify}", if identify.is_empty() { "" } else { ", " });
            assert_eq!(gaps(&identify, rule, door), [], "{rule} at {door}");
        }
    }
}

/// A plan may come from the tenant, or be that of everybody else.
#[test]
fn a_plan_that_a_tenant_or_the_default_gives_can_be_matched() {
    let plans = |identify: &str, default: &str, wanted: &str| {
        let limit = "fixed_window: { limit: 9, window: 1m }";
        let text = format!(
            "identify: {{ {identify} }}\nplans: {{ free: {{ a: {{ {limit} }} }}, pro: {{ a: {{ {limit} }} }} }}\n\
             tenants: {{ acme: pro }}\n{default}\n\
             rules:\n- {{ id: a, match: {{ plan: {wanted} }}, per: [plan], {limit} }}"
        );
        door_gaps(&file(&text), FrontDoor::Gateway).iter().map(tidegate_rule_tools::DoorGap::effect).collect::<Vec<_>>()
    };
    assert_eq!(plans("", "", "pro"), [GapEffect::NeverApplies], "no tenant is known");
    assert_eq!(plans("tenant: header:x-tenant, authenticated: x-tenant", "", "pro"), []);
    assert_eq!(plans("tenant: header:x-tenant", "", "pro"), [GapEffect::NeverApplies], "nobody authenticates it");
    assert_eq!(plans("", "default_plan: free", "free"), []);
    assert_eq!(plans("", "default_plan: free", "pro"), [GapEffect::NeverApplies]);
    assert_eq!(plans("plan: header:x-plan", "", "pro"), []);
}

/// The address of a call to forward-auth is that of the proxy.
#[test]
fn without_trusted_proxies_forward_auth_has_the_address_of_the_proxy_alone() {
    let at = |identify: &str, per: &str, door| gaps(identify, &format!("per: {per}"), door);
    let proxy = [("ip".to_owned(), GapEffect::ProxyAddress)];
    assert_eq!(at("", "ip", FrontDoor::ForwardAuth), proxy);
    assert_eq!(at("", "client", FrontDoor::ForwardAuth), proxy);
    let keys = [("header:x-key, ip".to_owned(), GapEffect::ProxyAddress)];
    assert_eq!(at("client: [header:x-key, ip]", "client", FrontDoor::ForwardAuth), keys);
    assert_eq!(at("trusted_hops: 1", "ip", FrontDoor::ForwardAuth), []);
    assert_eq!(at("", "ip", FrontDoor::Gateway), []);
}

/// A service behind the gateway verifies tokens after the limit is spent.
#[test]
fn without_trusted_proxies_nobody_can_have_verified_a_token_at_the_gateway() {
    let claims = "user: claim:sub, authenticated: authorization";
    let at = |identify: &str, rule: &str, door| gaps(&format!("{claims}, {identify}"), rule, door);
    let forged = |claim: &str| [(claim.to_owned(), GapEffect::UnverifiedClaim)];
    let none = "ipv6_prefix: 56";
    assert_eq!(at(none, "per: user", FrontDoor::Gateway), forged("claim:sub"));
    assert_eq!(at(none, "per: [path, claim:jti]", FrontDoor::Gateway), forged("claim:jti"));
    assert_eq!(at("tenant: claim:org", "per: tenant", FrontDoor::Gateway), forged("claim:org"));
    let plan = file(&format!(
        "identify: {{ plan: claim:tier, {claims} }}\nplans: {{ pro: {{ a: {{ fixed_window: {{ limit: 99, window: 1m }} }} }} }}\n\
         rules:\n- {{ id: a, per: ip, fixed_window: {{ limit: 9, window: 1m }} }}"
    ));
    assert_eq!(door_gaps(&plan, FrontDoor::Gateway)[0].source(), "claim:tier", "it chooses the limit");
    assert_eq!(at("tenant: claim:org", "per: ip", FrontDoor::Gateway), [], "addresses belong to no tenant");
    assert_eq!(at(PROXIES, "per: user", FrontDoor::Gateway), []);
    for door in FrontDoor::ALL.into_iter().filter(|door| *door != FrontDoor::Gateway) {
        assert_eq!(at(none, "per: user", door), [], "the caller at {door} verifies it");
    }
}

#[test]
fn a_report_for_doors_has_warnings_with_positions_and_notes_of_what_to_send() {
    let file = file(
        "rules:\n- { id: login, match: { path: /login }, per: ['body:email', 'header:x-device', ip], \
         sliding_log: { limit: 5, window: 10m }, security: true, on_failure: share }",
    );
    let problems = |doors: &[FrontDoor]| {
        let report = report_for_doors(&file, doors);
        let describe = |problem: &Problem| {
            (problem.severity(), report.position(problem), problem.code(), problem.message().to_owned())
        };
        report.problems().iter().map(describe).collect::<Vec<_>>()
    };
    assert_eq!(problems(&[]), []);
    assert_eq!(problems(&[FrontDoor::Gateway]), []);
    let warning = |column, message: &str| (Severity::Warning, (3, column), "unavailable-at-door", message.to_owned());
    assert_eq!(
        problems(&[FrontDoor::ForwardAuth]),
        [
            warning(
                47,
                "rule `login` counts by `body:email`, which forward-auth never has: requests there are counted without it"
            ),
            warning(
                80,
                "rule `login` counts by `ip`, and the file trusts no proxy: at forward-auth, all clients of a proxy share one count"
            ),
        ]
    );
    let note = |message: &str| (Severity::Note, (3, 9), "needed-at-door", message.to_owned());
    assert_eq!(
        problems(&[FrontDoor::Check, FrontDoor::Tower, FrontDoor::Envoy, FrontDoor::Library]),
        [
            note("for rule `login` at the check API, the call must have `body`, header `x-device`, `ip`, `path`"),
            note(
                "for rule `login` at the tower layer, your program must set the body (`BufferBody`), the peer (`with_peer`)"
            ),
            note(
                "for rule `login` at Envoy's service, a descriptor must have `body`, `header:x-device`, `remote_address`, `:path`"
            ),
            note("for rule `login` at the library, your program must set `body`, `header:x-device`, `ip`, `path`"),
        ]
    );
}

#[test]
fn a_door_has_one_name() {
    for door in FrontDoor::ALL {
        assert_eq!(door.to_string().parse(), Ok(door));
    }
    assert!("proxy".parse::<FrontDoor>().unwrap_err().contains("gateway, forward-auth, check, tower, envoy, library"));
}

#[test]
fn callers_state_the_size_of_a_body_that_a_cost_reads() {
    let text =
        "version: 1\nrules: [{ id: up, per: [], cost: request.size, token_bucket: { capacity: 4M, refill: 1/s } }]\n";
    let file = parse_and_lint("rules.yaml", text).unwrap();
    for (door, needed) in [
        (FrontDoor::Check, Some("for rule `up` at the check API, the call must have `size`")),
        (FrontDoor::Tower, None),
        (FrontDoor::Envoy, Some("for rule `up` at Envoy's service, a descriptor must have `header:content-length`")),
        (FrontDoor::Library, Some("for rule `up` at the library, your program must set `request:size`")),
    ] {
        let report = report_for_doors(&file, &[door]);
        let notes = report.problems().iter().filter(|problem| problem.code() == "needed-at-door");
        assert_eq!(notes.map(Problem::message).collect::<Vec<_>>(), Vec::from_iter(needed), "{door}");
    }
}

#[test]
fn doors_that_never_learn_the_token_usage_charge_the_estimate() {
    let file = file(
        "rules:\n- { id: tokens, match: { path: /v1/chat }, per: header:x-api-key, \
         cost: { expression: request.size, usage: total }, token_bucket: { capacity: 9M, refill: 1k/s } }",
    );
    for door in FrontDoor::ALL {
        let gaps = door_gaps(&file, door);
        let gap = gaps.iter().find(|gap| gap.effect() == GapEffect::UnknownUsage);
        let settles = !matches!(door, FrontDoor::ForwardAuth | FrontDoor::Envoy);
        assert_eq!(gap.is_none(), settles, "{door}");
        assert!(gap.is_none_or(|gap| gap.to_string().ends_with("each request costs its estimate")), "{door}");
    }
}

#[test]
fn doors_that_never_learn_when_a_request_ends_hold_slots_for_the_whole_lease() {
    let text = "rules:\n- { id: exports, match: { path: /exports }, per: header:x-api-key, concurrency: { max: 3 } }";
    let file = file(text);
    for door in FrontDoor::ALL {
        let expected: &[GapEffect] = match door {
            FrontDoor::ForwardAuth | FrontDoor::Envoy => &[GapEffect::HeldForLease],
            _ => &[],
        };
        let effects: Vec<_> = door_gaps(&file, door).iter().map(tidegate_rule_tools::DoorGap::effect).collect();
        assert_eq!(effects, expected, "{door}");
    }
    let gap = &door_gaps(&file, FrontDoor::Envoy)[0];
    assert_eq!(
        gap.to_string(),
        "rule `exports` holds slots (`concurrency`), and Envoy's service never learns when a request ends: each slot is held for \
         the whole lease"
    );
    assert!(gap.help().contains("/v1/leases"), "{}", gap.help());
}

/// Trap: logins by action at a gateway are unlimited, and nothing fails.
const IDLE: &str = "rules:\n\
    - { id: login, match: { action: login }, per: 'attr:account', security: true, on_failure: share, sliding_log: { limit: 5, window: 10m } }\n\
    - { id: job, match: { action: job }, per: ip, fixed_window: { limit: 9, window: 1m } }";

/// The severity and the message of each problem with this code, and its help.
fn problems_of(report: &Report, code: &str) -> Vec<(Severity, String, String)> {
    let found = report.problems().iter().filter(|problem| problem.code() == code);
    let help = |problem: &Problem| problem.help().unwrap_or_default().to_owned();
    found.map(|problem| (problem.severity(), problem.message().to_owned(), help(problem))).collect()
}

#[test]
fn a_security_rule_that_never_applies_at_the_gateway_refuses_the_file_there() {
    let idle = file(IDLE);
    let refused = check_for_door(&idle, FrontDoor::Gateway).unwrap_err();
    let [(severity, message, help)] = problems_of(&refused, "never-applies").try_into().unwrap();
    assert_eq!(
        (severity, message.as_str()),
        (
            Severity::Error,
            "rule `login` matches by `action`, which the gateway never has: it never applies there, and with `security: true` a \
             server with a gateway refuses the file"
        )
    );
    assert!(help.contains("path: /login") && help.contains("`front_ends: [check]`"), "{help}");
    assert_eq!(refused.problems().len(), 1, "the other rule is no error:\n{refused}");
    for door in FrontDoor::ALL.into_iter().filter(|door| *door != FrontDoor::Gateway) {
        assert!(check_for_door(&idle, door).is_ok(), "{door}");
    }
    let severities = |door| {
        let problems = problems_of(&report_for_doors(&idle, &[door]), "never-applies");
        problems.into_iter().map(|(severity, ..)| severity).collect::<Vec<_>>()
    };
    assert_eq!(severities(FrontDoor::Gateway), [Severity::Error, Severity::Warning]);
    assert_eq!(severities(FrontDoor::ForwardAuth), [Severity::Warning; 2]);
    for (from, to) in [
        ("match: { action: login }", "match: { path: /login }"),
        ("security: true", "front_ends: [check], security: true"),
        ("security: true", "security: false"),
        ("security: true", "mode: disabled, security: true"),
    ] {
        let mended = file(&IDLE.replacen(from, to, 1));
        assert!(check_for_door(&mended, FrontDoor::Gateway).is_ok(), "{to}");
    }
    let shadow = file(&IDLE.replacen("security: true", "mode: shadow, security: true", 1));
    assert!(check_for_door(&shadow, FrontDoor::Gateway).is_err(), "its reports would say that nothing is refused");
}

#[test]
fn front_ends_leave_out_where_a_rule_never_applies_and_nothing_else() {
    let gaps = |front_ends: &str, rule: &str| {
        let identify = format!("{PROXIES}, ipv6_prefix: 56");
        gaps(&identify, &format!("{rule}, front_ends: {front_ends}"), FrontDoor::ForwardAuth)
    };
    let action = "per: ip, match: { action: login }";
    assert_eq!(gaps("[check, library]", action), []);
    assert_eq!(gaps("envoy", action), []);
    let applies = ("front_ends".to_owned(), GapEffect::AppliesAnyway);
    let shared = ("body:email".to_owned(), GapEffect::SharedCount);
    assert_eq!(gaps("[gateway]", "per: 'body:email'"), [shared, applies], "a statement changes no decision");
    assert_eq!(gaps("[forward-auth, gateway]", "per: ip"), []);
}

#[test]
fn front_ends_that_are_none_or_at_which_the_rule_never_applies_are_errors() {
    let errors = |front_ends: &str| {
        let rule = format!(
            "{{ id: a, match: {{ action: x }}, front_ends: {front_ends}, per: ip, fixed_window: {{ limit: 9, window: 1m }} }}"
        );
        match parse_and_lint("rules.yaml", &format!("version: 1\nrules: [{rule}]\n")) {
            Ok(file) => panic!("{front_ends}: {}", file.report()),
            Err(report) => report
                .problems()
                .iter()
                .map(|problem| (problem.code(), problem.message().to_owned()))
                .collect::<Vec<_>>(),
        }
    };
    assert_eq!(errors("[]"), [("front-ends", "this names no front end".to_owned())]);
    assert_eq!(errors("[gatway]"), [("unknown-value", "`gatway` is not a valid value".to_owned())]);
    let never = |title: &str| {
        let message = format!(
            "rule `a` is meant for {title}, and never applies there: it matches by `action`, which {title} never has"
        );
        ("never-applies", message)
    };
    assert_eq!(errors("[check, gateway]"), [never("the gateway")]);
    assert_eq!(errors("[forward-auth, gateway]"), [never("forward-auth"), never("the gateway")]);
}

/// Nobody has said which front ends are used.
#[test]
fn without_a_front_end_the_report_names_rules_that_never_apply_or_share_one_count_at_one() {
    let text = format!(
        "{IDLE}\n- {{ id: mail, match: {{ path: /mail }}, per: 'body:to', fixed_window: {{ limit: 9, window: 1m }} }}\n\
         - {{ id: row, match: {{ path: /row }}, per: 'attr:row', fixed_window: {{ limit: 9, window: 1m }} }}"
    );
    let found = |text: &str, code| {
        let problems = problems_of(&report_for_every_door(&file(text)), code);
        problems.into_iter().map(|(severity, message, _)| (severity, message)).collect::<Vec<_>>()
    };
    let never = |rule: &str, more: &str| {
        format!(
            "rule `{rule}` matches by `action`, which the gateway and forward-auth never have: it never applies there{more}"
        )
    };
    let refused = never("login", ", and a server with a gateway refuses the file");
    assert_eq!(found(&text, "never-applies"), [(Severity::Warning, refused), (Severity::Note, never("job", ""))]);
    let shared = |rule: &str, lacking: &str| {
        (Severity::Note, format!("rule `{rule}` counts by {lacking}: all requests there share one count"))
    };
    assert_eq!(
        found(&text, "unavailable-at-door"),
        [
            shared("mail", "`body:to`, which forward-auth never has"),
            shared("row", "`attr:row`, which the gateway and forward-auth never have"),
        ]
    );
    let meant = text.replace("match:", "front_ends: [check, gateway], match:").replace("action: login", "path: /login");
    let meant = meant.replace("{ action: job }", "{ path: /job }");
    assert_eq!(found(&meant, "never-applies"), []);
    let at_gateway = |rule: &str, read: &str| {
        let message = format!(
            "rule `{rule}` counts by `{read}`, which the gateway never has: all requests there share one count"
        );
        (Severity::Warning, message)
    };
    let used = [at_gateway("login", "attr:account"), at_gateway("row", "attr:row")];
    assert_eq!(found(&meant, "unavailable-at-door"), used, "they say that it is used");
}
