//! Normal forms in rule files: the spellings of one person are one subject.

use tidegate::Request;
use tidegate::spi::Subject;
use tidegate_rule_tools::explain;
use tidegate_rules::RuleFile;

fn parse(identify: &str, rule: &str) -> Result<RuleFile, String> {
    let text = format!(
        "version: 1\nidentify: {{ {identify} }}\nrules:\n- {{ id: r, {rule}, sliding_log: {{ limit: 5, window: 10m }} }}\n"
    );
    RuleFile::parse("rules.yaml", &text).map_err(|report| report.to_string())
}

fn file(identify: &str, rule: &str) -> RuleFile {
    parse(identify, rule).unwrap_or_else(|report| panic!("{report}"))
}

/// The subject of a request with this value of an attribute.
fn subject(file: &RuleFile, name: &str, value: &str) -> Subject {
    let request = Request::new("").with_attribute(name, value);
    file.rules().resolve(&request).checks()[0].key().subject()
}

/// Whether all values of an attribute are one subject.
fn is_one(file: &RuleFile, name: &str, values: &[&str]) -> bool {
    values.windows(2).all(|two| subject(file, name, two[0]) == subject(file, name, two[1]))
}

const BODIES: [&str; 3] = [r#"{"account":"zed@x.io"}"#, r#"{"account":"Zed@x.io"}"#, r#"{"account":"ZED@x.io\u001f"}"#];

/// Regression: `zed@x.io`, `Zed@x.io` and `ZED@x.io` had five attempts each.
#[test]
fn an_account_of_a_security_rule_is_one_subject_in_all_letters() {
    for (identify, rule) in [
        ("", "per: ['body:account'], security: true"),
        ("account: body:account", "per: [account], security: true"),
        ("who: body:account", "per: [who], security: true"),
        ("login: [ip, body:account]", "per: [login], security: true"),
        ("", "per: ['body:account | trim | lower']"),
        ("", "per: [body:account | email]"),
        ("who: body:account | email", "per: [who]"),
        ("who: body:account", "per: [who | email]"),
    ] {
        assert!(is_one(&file(identify, rule), "body", &BODIES), "{identify} {rule}");
    }
    for (identify, rule) in [
        ("", "per: ['body:account']"),
        ("", "per: ['body:account'], security: false"),
        ("", "per: ['body:account | exact'], security: true"),
        ("who: body:account | exact", "per: [who], security: true"),
        ("who: body:account | email", "per: [who | exact]"),
    ] {
        assert!(!is_one(&file(identify, rule), "body", &BODIES), "{identify} {rule}");
    }
}

#[test]
fn every_source_takes_normal_forms() {
    let spellings = |text: &str| [text.replace('?', "Zed"), text.replace('?', "zED")];
    for (source, attribute, text) in [
        ("header:x-name", "header:x-name", "?"),
        ("query:name", "query", "name=?"),
        ("cookie:name", "header:cookie", "name=?"),
        ("claim:name", "header:authorization", ""),
        ("body:name", "body", r#"{"name":"?"}"#),
        ("attr:name", "name", "?"),
        ("path", "path", "/?"),
        ("action", "", ""),
    ] {
        let file = file("authenticated: authorization", &format!("per: ['{source} | lower']"));
        match source {
            "claim:name" => {
                // `{"name":"Zed"}` and `{"name":"zED"}`.
                let tokens = ["Bearer e30.eyJuYW1lIjoiWmVkIn0.x", "Bearer e30.eyJuYW1lIjoiekVEIn0.x"];
                assert!(is_one(&file, attribute, &tokens));
                assert_ne!(subject(&file, attribute, tokens[0]), subject(&file, attribute, "Bearer e30.e30.x"));
            }
            "action" => {
                let subject = |action| file.rules().resolve(&Request::new(action)).checks()[0].key().subject();
                assert_eq!(subject("Export"), subject("export"));
            }
            _ => {
                let [one, two] = spellings(text);
                assert!(is_one(&file, attribute, &[&one, &two]), "{source}");
                assert_ne!(subject(&file, attribute, &one), subject(&file, attribute, &text.replace('?', "ann")));
            }
        }
    }
}

/// The application may set what a source would be read for.
#[test]
fn the_value_that_the_application_sets_has_the_forms_of_the_first_source() {
    let names = ["Zed", "zed"];
    assert!(is_one(&file("user: header:x-user | lower", "per: [user]"), "user", &names));
    assert!(is_one(&file("", "per: [user], security: true"), "user", &names));
    assert!(!is_one(&file("", "per: [user]"), "user", &names));
    assert!(!is_one(&file("user: header:x-user | exact", "per: [user], security: true"), "user", &names));
    assert!(is_one(&file("tenant: header:x-tenant | lower", "per: [tenant]"), "tenant", &names));
}

/// `Acme` in the file would be nobody.
#[test]
fn tenants_that_the_file_names_have_the_normal_form_of_tenants() {
    let parse = |tenants: &str| {
        let text = format!(
            "version: 1\nidentify: {{ tenant: header:x-tenant | lower, authenticated: x-tenant }}\n\
             plans: {{ pro: {{ r: {{ sliding_log: {{ limit: 50, window: 10m }} }} }}, free: {{ r: {{ sliding_log: {{ limit: 1, window: 10m }} }} }} }}\n\
             tenants: {{ {tenants} }}\nexempt: [{{ tenant: Blue }}]\n\
             rules:\n- {{ id: r, match: {{ tenant: [ACME, BLUE] }}, per: [tenant], sliding_log: {{ limit: 5, window: 10m }} }}\n"
        );
        RuleFile::parse("rules.yaml", &text).map_err(|report| report.to_string())
    };
    let file = parse("Acme: pro").unwrap();
    let plans = |tenant| {
        let request = Request::new("").with_attribute("header:x-tenant", tenant);
        let plan = file.rules().resolve(&request);
        plan.checks().iter().map(|check| check.gate().plan().to_owned()).collect::<Vec<_>>()
    };
    for tenant in ["acme", "Acme", "ACME"] {
        assert_eq!(plans(tenant), ["pro"], "{tenant}");
    }
    assert!(plans("blue").is_empty() && plans("red").is_empty());
    let report = parse("Acme: pro, ACME: free").unwrap_err();
    assert!(report.contains("has another plan in another spelling"), "{report}");
}

/// Regression: behind nginx, `basic`, `BASIC` and `bAsIc` with one, two and three spaces were different clients.
#[test]
fn credentials_are_one_subject_in_all_spellings() {
    let basic = ["Basic emVkOnA=", "bAsIc   emVkOnB=", "BASIC\temVkOnA", "Basic emVkOnA=junk"];
    let bearer = ["Bearer k1", "bearer k1", "Bearer\tk1"];
    // Another password, or a password that nginx compares up to its end.
    let passwords = ["Basic emVkOnA=", "Basic emVkOnAAeA=="];
    for header in ["authorization", "proxy-authorization"] {
        let attribute = format!("header:{header}");
        for (identify, verified) in [("client: header:X-Key".replace("X-Key", header), false), {
            (format!("client: header:{header}, authenticated: [{header}]"), true)
        }] {
            let file = file(&identify, "per: [client]");
            assert!(is_one(&file, &attribute, &basic) && is_one(&file, &attribute, &bearer), "{identify}");
            assert_eq!(is_one(&file, &attribute, &passwords), verified, "{identify}");
            assert!(!is_one(&file, &attribute, &["Basic emVkOnA=", "Basic YW5uOnA="]), "{identify}");
            assert!(!is_one(&file, &attribute, &["Bearer k1", "Bearer K1"]), "{identify}");
        }
    }
    let own = file("client: header:x-token, token: X-Token", "per: [client]");
    assert!(is_one(&own, "header:x-token", &bearer), "the header of the token has credentials");
    let named = file("client: header:x-forwarded-authorization | credentials", "per: [client]");
    assert!(is_one(&named, "header:x-forwarded-authorization", &basic));
    let plain = file("client: header:x-key", "per: [client]");
    assert!(!is_one(&plain, "header:x-key", &bearer), "an opaque key");
    let exact = file("client: header:authorization | exact", "per: [client]");
    assert!(!is_one(&exact, "header:authorization", &bearer));
}

/// nginx reads a user, and Envoy the token behind it: whichever counted, a client could invent the other.
#[test]
fn credentials_of_two_clients_are_refused_wherever_a_rule_reads_them() {
    let two = "Basic emVkOnA= Bearer e30.eyJzdWIiOiJ1MSJ9.x";
    for (identify, rule) in [
        ("client: header:authorization", "per: [client]"),
        ("authenticated: authorization", "per: ['claim:sub']"),
        ("", "match: { header: { authorization: '*' } }, per: [ip]"),
        ("token: x-token", "per: ['header:authorization']"),
    ] {
        let file = file(identify, rule);
        let request = Request::new("").with_attribute("header:authorization", two);
        let plan = file.rules().resolve(&request);
        let problem = plan.problem().unwrap_or_else(|| panic!("{identify} {rule}"));
        assert_eq!((problem.status(), problem.source()), (400, "header:authorization"), "{identify} {rule}");
    }
}

/// A value of control characters alone names nobody.
#[test]
fn a_value_that_is_empty_in_its_normal_form_is_missing() {
    let file = file("client: [header:x-name | trim, ip]", "per: [client]");
    let request = |name| Request::new("").with_attribute("header:x-name", name).with_attribute("ip", "192.0.2.1");
    let subject = |request: &Request<'_>| file.rules().resolve(request).checks()[0].key().subject();
    assert_eq!(subject(&request("\u{200b}")), subject(&Request::new("").with_attribute("ip", "192.0.2.1")));
    assert_ne!(subject(&request("x")), subject(&request("")));
}

/// A cookie that comes twice counts once for each value.
#[test]
fn spellings_of_a_repeated_cookie_count_once() {
    let file = file("device: cookie:device | lower", "per: [device]");
    let checks = |cookies| {
        let request = Request::new("").with_attribute("header:cookie", cookies);
        file.rules().resolve(&request).checks().len()
    };
    assert_eq!(checks("device=a; device=A"), 1);
    assert_eq!(checks("device=a; device=B; device=b"), 2);
}

#[test]
fn normal_forms_that_do_not_exist_are_errors() {
    for (identify, rule, message) in [
        (
            "",
            "per: ['body:account | lowr']",
            "there is no normal form `lowr`; there are `trim`, `lower`, `nfkc`, `email`",
        ),
        ("who: body:account | exact | lower", "per: [who]", "there is no normal form `exact`"),
        ("", "per: ['body:account |']", "there is no normal form ``"),
        ("", "per: [tenant | lower]", "the tenant has one normal form for all rules"),
        ("", "per: [ip | lower, ip]", "`ip` is listed twice"),
        ("'a | b': ip", "per: [ip]", "`a | b` cannot be the name of an identity"),
    ] {
        let report = parse(identify, rule).unwrap_err();
        assert!(report.contains(message), "{report}");
    }
    let rules = "version: 1\nrules:\n\
         - { id: a, per: ['body:account'], budget: b, security: true, sliding_log: { limit: 5, window: 10m } }\n\
         - { id: b, per: ['body:account'], budget: b, sliding_log: { limit: 5, window: 10m } }\n";
    let report = RuleFile::parse("rules.yaml", rules).unwrap_err().to_string();
    assert!(report.contains("shares budget `b` with rule `a`, which counts in other normal forms"), "{report}");
}

/// A normal value keeps its bucket when a rule gets a form.
#[test]
fn a_normal_value_has_the_same_subject_without_a_form() {
    let [plain, security] =
        ["per: ['body:account']", "per: ['body:account'], security: true"].map(|rule| file("", rule));
    assert_eq!(subject(&plain, "body", BODIES[0]), subject(&security, "body", BODIES[0]));
    let [plain, forms] =
        ["user: header:x-user", "user: header:x-user | email"].map(|identify| file(identify, "per: [user]"));
    assert_eq!(subject(&plain, "header:x-user", "ann"), subject(&forms, "header:x-user", "ann"));
}

/// A client would avoid a rule for its key, or keep an exemption that was for another spelling.
#[test]
fn a_condition_matches_credentials_in_all_spellings() {
    let file = file("", "match: { header: { Authorization: Bearer k1 } }, per: [ip]");
    let matches = |value| {
        let request = Request::new("").with_attribute("header:authorization", value);
        file.rules().resolve(&request).checks().len() == 1
    };
    assert!(["Bearer k1", "bearer  k1", "BEARER\tk1 "].into_iter().all(matches));
    assert!(!["Bearer k2", "k1", "Basic k1"].into_iter().any(matches));
}

#[test]
fn an_explanation_shows_the_normal_form_and_no_password() {
    let shown = |identify: &str, header: &str, value: &str| {
        let file = file(identify, &format!("per: ['header:{header}']"));
        let name = format!("header:{}", header.split(' ').next().unwrap());
        let explained = explain(&file, &Request::new("").with_attribute(&name, value), &tidegate::Secret::public());
        let tidegate_rule_tools::RuleStatus::Applies(effect) = &explained.rules[0].status else {
            panic!("it does not apply")
        };
        let subject = subject(&file, &name, value);
        assert_eq!(effect.subject_hash, subject.to_string());
        effect.subject[0].value.clone().unwrap()
    };
    assert_eq!(shown("", "authorization", "BASIC  emVkOnA"), "basic zed:…");
    assert_eq!(shown("authenticated: authorization", "authorization", "BASIC  emVkOnA"), "basic zed");
    assert_eq!(shown("", "x-name | lower", "Zed"), "zed");
}
