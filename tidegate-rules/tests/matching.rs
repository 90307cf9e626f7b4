//! Which rules a request must pass, with which limits, and at what cost.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

#[path = "matching/exemptions.rs"]
mod exemptions;
#[path = "matching/usage.rs"]
mod usage;

use proptest::prelude::*;
use tidegate::grants::Costs;
use tidegate::{Ending, Limiter, ManualClock, MemoryStore, Request, Secret, StoreError, StoreErrorKind};
use tidegate_rule_tools::{RuleStatus, explain};
use tidegate_rules::RuleFile;

const LIMIT: &str = "per: [], token_bucket: { capacity: 5, refill: 1/s }";

fn parse(text: &str) -> RuleFile {
    RuleFile::parse("rules.yaml", &format!("version: 1\n{text}")).expect("a good file")
}

fn request<'a>(action: &'a str, attributes: &[(&'a str, &'a str)]) -> Request<'a> {
    attributes.iter().fold(Request::new(action), |request, (name, value)| request.with_attribute(name, value))
}

/// The rules that apply, with their costs and amounts.
fn matched(file: &RuleFile, action: &str, attributes: &[(&str, &str)]) -> Vec<(String, u64, u64)> {
    let request = request(action, attributes);
    let plan = file.rules().resolve(&request);
    let check = |check: &tidegate::spi::Check<'_>| {
        (check.gate().rule().id.to_string(), check.cost(), check.gate().limit().amount())
    };
    plan.checks().iter().map(check).collect()
}

fn ids(file: &RuleFile, action: &str, attributes: &[(&str, &str)]) -> Vec<String> {
    matched(file, action, attributes).into_iter().map(|(id, ..)| id).collect()
}

/// A rule for each condition, named after its index.
fn rules(conditions: &[&str]) -> RuleFile {
    let mut text = String::from(
        "plans: { pro: {} }\nidentify: { tenant: header:x-tenant, trusted_proxies: 10.0.0.0/8 }\nrules:\n",
    );
    for (place, condition) in conditions.iter().enumerate() {
        let _ = writeln!(text, "- {{ id: r{place}, match: {{ {condition} }}, {LIMIT} }}");
    }
    parse(&text)
}

fn failure() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "it is down")
}

#[test]
fn every_given_field_must_match() {
    let file = rules(&[
        "method: POST",
        "path: '/a/{id}'",
        "path: '/a/*'",
        "path: /a/b, method: [GET, PUT]",
        "host: api.example.com",
        "host: '*.example.com'",
        "header: { X-Beta: [1, 2] }",
        "header: { x-beta: '*' }",
        "tenant: [acme, blue]",
        "plan: pro",
        "action: login",
        "ip: [192.0.2.0/24]",
        "",
    ]);
    let at = |attributes: &[(&str, &str)]| ids(&file, "", attributes).join(" ");
    assert_eq!(at(&[]), "r12");
    assert_eq!(at(&[("method", "POST")]), "r0 r12");
    assert_eq!(at(&[("method", "post")]), "r12");
    assert_eq!(at(&[("method", "HEAD"), ("path", "/a/b")]), "r1 r2 r3 r12", "servers do the same for HEAD as for GET");
    assert_eq!(at(&[("method", "GET"), ("path", "/a/b")]), "r1 r2 r3 r12");
    assert_eq!(at(&[("path", "/a/b/c")]), "r2 r12");
    assert_eq!(at(&[("path", "/a")]), "r12");
    assert_eq!(at(&[("path", "/%61/b/")]), "r1 r2 r12");
    assert_eq!(at(&[("path", "/a/%2Fb")]), "r1 r2 r12");
    assert_eq!(
        at(&[("path", "/x/..%2fa/b")]),
        "r12 r1 r2",
        "as written, and as a server that decodes slashes reads it"
    );
    assert_eq!(at(&[("host", "API.example.com:8443")]), "r4 r5 r12");
    assert_eq!(at(&[("host", "example.com")]), "r12");
    assert_eq!(at(&[("host", "evilexample.com")]), "r12");
    assert_eq!(at(&[("host", "a.b.example.com.")]), "r5 r12");
    assert_eq!(at(&[("host", ".example.com")]), "r12");
    let many_labels = format!("{}example.com", "a.".repeat(300));
    assert_eq!(at(&[("host", &many_labels)]), "r5 r12");
    assert_eq!(at(&[("header:x-beta", "1")]), "r6 r7 r12");
    assert_eq!(at(&[("header:x-beta", "3")]), "r7 r12");
    assert_eq!(at(&[("header:x-tenant", "acme")]), "r8 r12");
    assert_eq!(at(&[("plan", "pro")]), "r9 r12");
    assert_eq!(at(&[("ip", "192.0.2.77")]), "r11 r12");
    assert_eq!(at(&[("ip", "10.1.1.1"), ("header:x-forwarded-for", "192.0.2.5")]), "r11 r12");
    assert_eq!(at(&[("ip", "8.8.8.8"), ("header:x-forwarded-for", "192.0.2.5")]), "r12");
    assert_eq!(ids(&file, "login", &[]).join(" "), "r10 r12");
}

#[test]
fn limits_depend_on_the_plan_of_the_tenant() {
    let file = parse(
        "identify: { tenant: header:x-tenant, authenticated: x-tenant }\n\
         plans:\n  pro: { api: { token_bucket: { capacity: 100, refill: 50/s } } }\n  free: { api: { token_bucket: { capacity: 2, refill: 1/s } } }\n\
         tenants: { acme: pro }\ndefault_plan: free\n\
         rules:\n- { id: api, per: [tenant], token_bucket: { capacity: 5, refill: 1/s } }\n",
    );
    let amount = |attributes: &[(&str, &str)]| matched(&file, "", attributes)[0].2;
    assert_eq!(amount(&[("header:x-tenant", "acme")]), 100);
    assert_eq!(amount(&[("header:x-tenant", "blue")]), 2);
    assert_eq!(amount(&[]), 2);
    assert_eq!(amount(&[("header:x-tenant", "acme"), ("plan", "free")]), 2);
    assert_eq!(amount(&[("plan", "unknown")]), 5);
    // A tenant that changes its plan keeps its consumption, since keys do not contain amounts.
    let key = |attributes: &[(&str, &str)]| {
        let mut name = Vec::new();
        file.rules().resolve(&request("", attributes)).checks()[0].key().write_name("tg", &mut name);
        name
    };
    let acme = ("header:x-tenant", "acme");
    assert_eq!(key(&[acme]), key(&[acme, ("plan", "free")]));
}

#[test]
fn a_cost_is_a_number_a_table_a_header_or_an_expression() {
    let costs = |cost: &str| {
        parse(&format!(
            "identify: {{ authenticated: x-cost, user: attr:user }}\n\
             rules:\n- {{ id: r, per: [], cost: {cost}, token_bucket: {{ capacity: 5000, refill: 1/s }} }}\n"
        ))
    };
    let cost = |file: &RuleFile, attributes: &[(&str, &str)]| matched(file, "", attributes)[0].1;
    assert_eq!(cost(&costs("7"), &[]), 7);
    let table = costs("{ 'POST /exports/*': 50, POST: 3, /free: 0, default: 2 }");
    assert_eq!(cost(&table, &[("method", "POST"), ("path", "/exports/7")]), 50);
    assert_eq!(cost(&table, &[("method", "POST"), ("path", "/free")]), 3);
    assert_eq!(cost(&table, &[("method", "GET"), ("path", "/free")]), 0);
    assert_eq!(cost(&table, &[("method", "GET"), ("path", "/a")]), 2);
    let header = costs("{ header: X-Cost, default: 4, max: 100 }");
    let from_header = |text| cost(&header, &[("header:x-cost", text)]);
    assert_eq!((from_header("9"), from_header("1000"), from_header("0")), (9, 100, 0));
    assert_eq!(
        (from_header("-1"), from_header("1.5"), from_header("99999999999999999999"), from_header("")),
        (4, 4, 100, 4)
    );
    let sized = costs("{ expression: '1 + request.size / 1024', default: 4, max: 100 }");
    let of_size = |size| cost(&sized, &[("request:size", size)]);
    assert_eq!((of_size("0"), of_size("10240"), of_size("99999999")), (1, 11, 100));
    assert_eq!(cost(&sized, &[("header:content-length", "0")]), 100, "only front ends know the size");
    let divided = costs("{ expression: '10 / int(attr.rows)', default: 4 }");
    let rows = |rows| cost(&divided, &[("rows", rows)]);
    assert_eq!((rows("5"), rows("0"), rows("many"), rows("-5")), (2, 4, 4, 4));
    let by_plan = costs("'user == \"ann\" ? 1 : request.query.deep == \"1\" ? 20 : 2'");
    assert_eq!(cost(&by_plan, &[("user", "ann")]), 1);
    assert_eq!(cost(&by_plan, &[("user", "bob"), ("query", "deep=1")]), 20);
}

#[test]
fn the_attributes_of_an_expression_are_requested_from_front_doors() {
    let file = parse(
        "rules:\n- { id: r, per: [], cost: 'size(client) + request.size + int(request.cookies.n) + int(attr.rows)', token_bucket: { capacity: 5, refill: 1/s } }\n",
    );
    let reads = file.rules().reads();
    for name in ["ip", "request:size", "header:cookie", "rows"] {
        assert!(reads.iter().any(|read| read == name), "{name} is not in {reads:?}");
    }
}

#[test]
fn rules_that_share_a_budget_share_a_bucket() {
    let file = parse(
        "rules:\n- { id: read, match: { method: GET }, per: [tenant], budget: units, fixed_window: { limit: 10, window: 1d } }\n\
         - { id: write, match: { method: POST }, per: [tenant], budget: units, cost: 4, on_failure: closed, fixed_window: { limit: 10, window: 1d } }\n",
    );
    let limiter = Limiter::new(file.rules().clone(), MemoryStore::new().with_clock(ManualClock::default()));
    let get = request("", &[("method", "GET"), ("tenant", "acme")]);
    let post = request("", &[("method", "POST"), ("tenant", "acme")]);
    assert_eq!(limiter.check_now(&post).remaining(), Some(6));
    assert_eq!(limiter.check_now(&get).remaining(), Some(5));
    assert!(!limiter.plan(&get).fails_closed(&failure()) && limiter.plan(&post).fails_closed(&failure()));
}

#[test]
fn several_limits_of_one_rule_are_all_or_nothing() {
    let file = parse(
        "rules:\n- id: r\n  per: [user]\n  limits:\n    second: { token_bucket: { capacity: 2, refill: 2/s } }\n    day: { fixed_window: { limit: 3, window: 1d } }\n",
    );
    let clock = ManualClock::default();
    let limiter = Limiter::new(file.rules().clone(), MemoryStore::new().with_clock(clock.clone()));
    let ann = request("", &[("user", "ann")]);
    let passed = |times: usize| (0..times).filter(|_| limiter.check_now(&ann).is_allowed()).count();
    assert_eq!(passed(5), 2);
    clock.advance(Duration::from_secs(1));
    assert_eq!(passed(5), 1, "three a day; denied requests consumed nothing");
    let denied = limiter.check_now(&ann);
    assert_eq!(denied.most_restrictive().map(|check| check.limit_name().to_owned()).as_deref(), Some("day"));
}

/// A raised limit takes effect at once; a lowered one leaves at least 0.
#[test]
fn a_changed_file_keeps_the_consumption() {
    let with = |capacity: u32| {
        parse(&format!("rules:\n- {{ id: r, per: [], token_bucket: {{ capacity: {capacity}, refill: 1/h }} }}\n"))
    };
    let store = Arc::new(MemoryStore::new().with_clock(ManualClock::default()));
    let limiter = Limiter::new(with(5).rules().clone(), Arc::clone(&store));
    let any = Request::new("");
    assert_eq!((0..9).filter(|_| limiter.check_now(&any).is_allowed()).count(), 5);
    let raised = limiter.with_rules(with(8).rules().clone());
    assert_eq!((0..9).filter(|_| raised.check_now(&any).is_allowed()).count(), 3);
    let lowered = raised.with_rules(with(2).rules().clone());
    assert_eq!(lowered.check_now(&any).remaining(), Some(0));
}

#[test]
fn the_actual_cost_is_read_from_a_response_header() {
    let file = parse(
        "rules:\n- { id: tokens, per: [], cost: { default: 100, actual: X-Tokens-Used }, token_bucket: { capacity: 1000, refill: 1/h } }\n\
         - { id: calls, per: [], token_bucket: { capacity: 1000, refill: 1/h } }\n",
    );
    let header = |name: &str| (name == "x-tokens-used").then_some("250");
    assert_eq!(file.rules().actual_cost("tokens", header), Some(250));
    assert_eq!(file.rules().actual_cost("calls", header), None);
    assert_eq!(file.rules().actual_cost("tokens", |_| Some("a lot")), None);
    assert_eq!(file.rules().actual_cost("tokens", |_| None), None);
}

/// The strictest settings of the rules of a budget apply, in any order of the rules.
#[test]
fn rules_that_share_a_budget_keep_their_own_settings() {
    let rule = |id: &str, rest: &str| {
        format!("- {{ id: {id}, per: [], budget: b, fixed_window: {{ limit: 1000, window: 1d }}, {rest} }}\n")
    };
    let strict = "cost: { default: 500, actual: x-used }, on_failure: closed, security: true";
    for file in [
        parse(&format!("rules:\n{}{}", rule("lenient", "cost: 100"), rule("strict", strict))),
        parse(&format!("rules:\n{}{}", rule("strict", strict), rule("lenient", "cost: 100"))),
    ] {
        let limiter = Limiter::new(file.rules().clone(), MemoryStore::new().with_clock(ManualClock::default()));
        assert!(limiter.plan(&Request::new("")).fails_closed(&failure()));
        let mut decision = limiter.check_now(&Request::new(""));
        assert!(decision.is_security());
        assert_eq!(decision.remaining(), Some(400));
        let actual_cost = |rule: &str| file.rules().actual_cost(rule, |_| Some("700"));
        let mut grant = decision.take_grant();
        let settle = Ending::Settle(Costs::of(&grant, actual_cost));
        poll_once(limiter.end(&mut grant, &settle)).unwrap();
        assert_eq!(
            poll_once(limiter.peek(&Request::new("").with_cost(0))).unwrap().remaining(),
            Some(200),
            "100 and 700"
        );
    }
}

/// Trap: a request with an estimate of 0 was never charged.
#[test]
fn an_actual_cost_is_charged_after_an_estimate_of_zero() {
    let file = parse(
        "rules:\n- { id: r, per: [], cost: { default: 0, actual: x-used }, fixed_window: { limit: 1000, window: 1d } }\n",
    );
    let limiter = Limiter::new(file.rules().clone(), MemoryStore::new().with_clock(ManualClock::default()));
    let mut decision = limiter.check_now(&Request::new(""));
    poll_once(limiter.end(&mut decision.take_grant(), &Ending::Settle(900.into()))).unwrap();
    assert_eq!(limiter.check_now(&Request::new("")).remaining(), Some(100));
}

/// The memory store answers at once, so a single poll is enough.
fn poll_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("the memory store never waits"),
    }
}

#[test]
fn a_rule_can_count_by_the_plan_of_a_tenant() {
    let file = parse(
        "identify: { tenant: header:x-tenant, authenticated: x-tenant }\nplans: { pro: {}, free: {} }\ntenants: { acme: pro, blue: pro }\ndefault_plan: free\n\
         rules:\n- { id: r, match: { plan: [pro, free] }, per: [plan], token_bucket: { capacity: 5, refill: 1/s } }\n",
    );
    let key =
        |tenant: &str| file.rules().resolve(&request("", &[("header:x-tenant", tenant)])).checks()[0].key().subject();
    assert_eq!(key("acme"), key("blue"));
    assert_ne!(key("acme"), key("other"));
}

#[test]
fn a_single_named_limit_keeps_its_name_in_a_plan() {
    let file = parse(
        "plans: { pro: { r: { fixed_window: { limit: 9, window: 1d } } } }\n\
         rules:\n- { id: r, per: [], limits: { day: { fixed_window: { limit: 5, window: 1d } } } }\n",
    );
    let name = |attributes: &[(&str, &str)]| {
        let mut name = Vec::new();
        file.rules().resolve(&request("", attributes)).checks()[0].key().write_name("tg", &mut name);
        name
    };
    assert_eq!(name(&[]), name(&[("plan", "pro")]));
}

#[test]
fn spellings_of_one_host_are_one_subject() {
    let file = parse(
        "rules:\n- { id: r, match: { host: '*.example.com' }, per: [host], token_bucket: { capacity: 5, refill: 1/s } }\n",
    );
    let subject = |host: &str| file.rules().resolve(&request("", &[("host", host)])).checks()[0].key().subject();
    for other in ["API.example.com", "api.example.com:443", "api.example.com."] {
        assert_eq!(subject("api.example.com"), subject(other), "{other}");
    }
}

/// Trap: a number behind an alias became the name of the alias, and its rule matched no request.
#[test]
fn a_yaml_alias_has_the_value_of_its_anchor() {
    let file = parse(&format!(
        "rules:\n- {{ id: a, match: {{ header: {{ x: &v 0042 }} }}, {LIMIT} }}\n- {{ id: b, match: {{ header: {{ y: *v }} }}, {LIMIT} }}\n"
    ));
    assert_eq!(ids(&file, "", &[("header:x", "0042")]), ["a"]);
    assert_eq!(ids(&file, "", &[("header:y", "0042")]), ["b"]);
}

/// The index finds the same rules as `explain`, which evaluates every rule.
#[test]
fn the_index_finds_every_matching_rule() {
    let values = |values: &'static [&'static str]| proptest::sample::select(values);
    let condition = (
        proptest::option::of(values(&["GET", "POST", "[GET, POST]"])),
        proptest::option::of(values(&["/a", "/a/b", "'/a/{x}'", "'/a/*'", "'/{x}/b'", "'*'", "[/a, /b]"])),
        proptest::option::of(values(&["x.com", "'*.x.com'", "'*.com'", "[a.x.com, y.com]"])),
        proptest::option::of(values(&["t1", "t2", "[t1, t2]"])),
        proptest::option::of(values(&["login", "[login, export]"])),
        proptest::option::of(values(&["{ h: 1 }", "{ h: '*' }", "{ g: [1, 2] }"])),
    );
    let sample = (
        values(&["GET", "POST", "PUT", "HEAD"]),
        values(&["/a", "/a/b", "/b", "/c/b", "/a/b/c", "/"]),
        values(&["x.com", "a.x.com", "b.a.x.com", ".x.com", "y.com", "z.org"]),
        values(&["t1", "t2", "t3"]),
        values(&["", "login", "export", "other"]),
        values(&["1", "2", "3"]),
    );
    proptest!(ProptestConfig::with_cases(64), |(conditions in proptest::collection::vec(condition, 1..20), samples in proptest::collection::vec(sample, 1..10))| {
        let texts: Vec<String> = conditions.iter().map(|(method, path, host, tenant, action, header)| {
            let fields = [("method", *method), ("path", *path), ("host", *host), ("tenant", *tenant), ("action", *action), ("header", *header)];
            let field = |(name, value): (&str, Option<&str>)| value.map(|value| format!("{name}: {value}"));
            fields.into_iter().filter_map(field).collect::<Vec<_>>().join(", ")
        }).collect();
        let all = rules(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        for (method, path, host, tenant, action, header) in samples {
            let attributes = [("method", method), ("path", path), ("host", host), ("header:x-tenant", tenant), ("header:h", header), ("header:g", header)];
            let explained = explain(&all, &request(action, &attributes), &Secret::public()).rules;
            let applies = |rule: &tidegate_rule_tools::RuleExplanation| matches!(rule.status, RuleStatus::Applies(_));
            let expected: Vec<String> = explained.into_iter().filter(applies).map(|rule| rule.id).collect();
            prop_assert_eq!(ids(&all, action, &attributes), expected);
        }
    });
}

/// The partitions of a tenant's users under a rule with this tag.
fn partitions(tag: &str) -> Result<usize, String> {
    let text = format!(
        "version: 1\nidentify: {{ tenant: header:x-tenant, user: header:x-user, authenticated: [x-tenant, x-user] }}\nrules:\n- {{ \
         id: a, per: [user], tag: '{tag}', fixed_window: {{ limit: 9, window: 1m }}, on_failure: open }}\n"
    );
    let file = RuleFile::parse("rules.yaml", &text).map_err(|report| report.to_string())?;
    let users: Vec<String> = (0..50).map(|user| user.to_string()).collect();
    let partitions = users.iter().map(|user| {
        let request = Request::new("").with_attribute("header:x-tenant", "acme").with_attribute("header:x-user", user);
        file.rules().resolve(&request).checks()[0].key().partition()
    });
    Ok(partitions.collect::<std::collections::BTreeSet<_>>().len())
}

#[test]
fn the_tag_of_a_rule_can_spread_a_tenant_over_partitions() {
    assert_eq!([partitions("tenant"), partitions("rule"), partitions("const:pay")], [Ok(1), Ok(1), Ok(1)]);
    assert!(partitions("subject").is_ok_and(|partitions| partitions > 40));
    let wrong = partitions("users").unwrap_err();
    assert!(wrong.contains("write `tenant`, `subject`, `rule` or `const:NAME`"), "{wrong}");
}
