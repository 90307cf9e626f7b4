//! What an administrator posts to the ledger, and how entries and names are shown.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use serde_json::{Value, json};

use super::{CHANGE, Fixture, READ};
use crate::serve::{exchange, wait_for};

/// The largest amount of a quota.
const MAX_AMOUNT: i64 = (1 << 52) - 1;

impl Fixture {
    /// The answer to a correction of `tenant` under `rule`, with these fields.
    fn correct(&self, tenant: &str, rule: &str, fields: &Value) -> (u16, Value) {
        let mut body = json!({ "tenant": tenant, "rule": rule, "amount": 1, "reason": "ticket 7", "author": "eve" });
        body["create"] = true.into();
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        self.post("/v1/usage/corrections", &body)
    }

    /// The exported entries of a rule.
    fn entries(&self, rule: &str) -> Vec<Value> {
        let (status, text) = self.call_text("GET", &format!("/v1/usage/entries?rule={rule}"), READ, "");
        assert_eq!(status, 200, "{text}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[test]
fn a_reset_skips_rules_that_the_tenant_has_not_used() {
    let fixture = Fixture::start();
    fixture.consume("/exports", "acme", 60);
    fixture.consume("/reports", "acme", 20);
    let reset = ["subject", "reset", "--tenant", "acme", "--reason", "a new trial"];
    let (code, shown, error) = fixture.run(&reset, CHANGE);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{shown}");
    assert!(shown.starts_with("reset under 3 rules: burst, exports, reports\n"), "{shown}");
    assert_eq!((fixture.left("/exports", "acme"), fixture.left("/reports", "acme")), (100, 50));
    let resets = |rule: &str| fixture.entries(rule).iter().filter(|entry| entry["kind"] == json!("reset")).count();
    assert_eq!([resets("exports"), resets("reports"), resets("calls")], [1, 1, 0]);
}

#[test]
fn a_reset_of_a_quota_that_was_never_used_says_so() {
    let fixture = Fixture::start();
    let body = json!({ "request": { "tenant": "acmee" }, "rule": "exports", "author": "eve", "reason": "a new trial" });
    let (status, answer) = fixture.post("/v1/subjects/reset", &body);
    assert_eq!((status, &answer["error"]), (422, &json!("nothing_to_reset")), "{answer}");
    assert!(answer["message"].as_str().unwrap().starts_with("Was full under exports: nothing to reset"), "{answer}");
    assert_eq!(fixture.entries("exports"), [] as [Value; 0]);
    // Nor has one that was reset before.
    fixture.consume("/exports", "acme", 60);
    let reset = ["subject", "reset", "--tenant", "acme", "--rule", "exports", "--reason", "a new trial"];
    assert_eq!(fixture.run(&reset, CHANGE).0, Some(0));
    let (code, shown, _) = fixture.run(&reset, CHANGE);
    assert!(code == Some(1) && shown == "nothing was reset\nexports: was full, nothing to reset\n", "{shown}");
    assert_eq!(fixture.entries("exports").len(), 2);
}

#[test]
fn a_key_without_its_tenant_is_looked_for_under_the_tenants_of_the_ledger() {
    let fixture = Fixture::start();
    for tenant in ["acme", "globex"] {
        fixture.consume("/exports", tenant, 1);
    }
    let call = json!({ "path": "/keys", "headers": { "x-tenant-id": "acme", "x-api-key": "hunter2" } }).to_string();
    assert_eq!(fixture.server().check(&call)["allowed"], json!(true));
    fixture.usage_of("exports", 2);
    let named = || {
        let (_, answer) = fixture.call("GET", "/v1/usage?rule=exports", READ, &Value::Null);
        answer["usage"].as_array().unwrap().iter().all(|row| !row["tenant"].is_null()).then_some(())
    };
    wait_for("the ledger never has the names of the tenants", named);
    let (code, shown, _) = fixture.run(&["subject", "reset", "-H", "x-api-key: hunter2"], CHANGE);
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("keys: counted separately for each tenant: add --tenant; of the tenants"), "{shown}");
    assert!(shown.contains("with state: 1\n"), "{shown}");
}

#[test]
fn a_correction_above_the_largest_amount_is_refused_and_changes_nothing() {
    let fixture = Fixture::start();
    for amount in [i64::MAX, i64::MIN, MAX_AMOUNT + 1, -MAX_AMOUNT - 1] {
        let (status, answer) = fixture.correct("acme", "exports", &json!({ "amount": amount }));
        assert_eq!((status, &answer["error"]), (400, &json!("refused_by_ledger")), "{amount}: {answer}");
    }
    assert_eq!(fixture.correct("acme", "exports", &json!({ "amount": MAX_AMOUNT })).0, 200);
    let (status, answer) = fixture.correct("acme", "exports", &json!({}));
    assert!(status == 400 && answer["message"].as_str().unwrap().contains("above 4503599627370495"), "{answer}");
    let (status, answer) = fixture.correct("acme", "exports", &json!({ "amount": -MAX_AMOUNT }));
    assert_eq!((status, &answer["usage"]["used"]), (200, &json!(0)), "{answer}");
    let sum: i64 = fixture.entries("exports").iter().map(|entry| entry["amount"].as_i64().unwrap()).sum();
    assert_eq!(sum, 0);
}

#[test]
fn a_correction_names_its_account_where_the_rule_keeps_names() {
    let fixture = Fixture::start();
    let (status, answer) = fixture.correct("newcomer", "exports", &json!({ "amount": 4 }));
    assert_eq!((status, &answer["usage"]["tenant"]), (200, &json!("newcomer")), "{answer}");
    let (status, answer) = fixture.correct("newcomer", "calls", &json!({ "amount": 4 }));
    assert_eq!((status, &answer["usage"]["tenant"]), (200, &json!(null)), "{answer}");
    assert_eq!(fixture.entries("exports")[0]["tenant"], json!("newcomer"));
}

/// A mistyped tenant got an account of its own, and the money of another one.
#[test]
fn a_correction_of_a_tenant_that_the_ledger_does_not_know_needs_create() {
    let fixture = Fixture::start();
    fixture.consume("/exports", "acme", 60);
    let correct = |tenant: &str, rule: &str, more: &[&str]| {
        let arguments =
            ["quota", "correct", "--tenant", tenant, "--rule", rule, "--amount", "7", "--reason", "ticket 7"];
        fixture.run(&[&arguments[..], more].concat(), CHANGE)
    };
    let (code, _, error) = correct("acmee", "exports", &[]);
    assert!(code == Some(2) && error.contains("no account of this subject") && error.contains("--create"), "{error}");
    let body = json!({ "create": false });
    let (status, answer) = fixture.correct("acmee", "exports", &body);
    assert_eq!((status, &answer["error"]), (422, &json!("unknown_subject")), "{answer}");
    assert_eq!(fixture.entries("exports").len(), 1, "nothing was opened");
    let (code, shown, error) = correct("acme", "calls", &[]);
    assert_eq!(code, Some(0), "the tenant is known by another rule: {error}");
    assert!(shown.starts_with("corrected by +7: 7 of 1000 used in 20"), "{shown}");
    let (code, shown, _) = correct("acmee", "exports", &["--create"]);
    assert!(code == Some(0) && shown.starts_with("corrected by +7: 7 of 100 used in 20"), "{shown}");
    let (code, shown, _) = correct("acmee", "exports", &[]);
    assert!(code == Some(0) && shown.starts_with("corrected by +7: 14 of 100 used in 20"), "{shown}");
}

#[test]
fn the_table_of_usage_shows_what_is_reserved() {
    let fixture = Fixture::start();
    fixture.consume("/exports", "acme", 1);
    let reserve =
        json!({ "path": "/exports", "headers": { "x-tenant-id": "acme" }, "cost": 90, "idempotency_key": "k" });
    let (status, answer) = fixture.server().post("/v1/quotas/reserve", &reserve.to_string());
    assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
    fixture.usage_of("exports", 1);
    let (code, shown, _) = fixture.run(&["quota", "show"], READ);
    assert!(code == Some(0) && shown.lines().next().unwrap().contains("  used  reserved  of"), "{shown}");
    assert!(
        shown.contains("     1        90  100  █▒▒▒") && shown.contains("  1 %  near with what is reserved"),
        "{shown}"
    );
}

#[test]
fn a_period_is_written_and_shown_as_in_the_usage() {
    let fixture = Fixture::start();
    fixture.consume("/reports", "acme", 5);
    let today = fixture.usage_of("reports", 5)[0]["period"].as_str().unwrap().to_owned();
    let (year, month) = (&today[..4], &today[..7]);
    let message = |rule: &str, fields: Value| {
        let (status, answer) = fixture.correct("acme", rule, &fields);
        assert_eq!(status, 400, "{rule} {fields}: {answer}");
        answer["message"].as_str().unwrap().to_owned()
    };
    for (rule, period, example) in [
        ("reports", month, &*today),
        ("reports", year, &today),
        ("reports", &format!("{today}T05"), &today),
        ("calls", &today, month),
        ("calls", year, month),
        ("exports", month, year),
        ("exports", "soon", year),
    ] {
        let refused = message(rule, json!({ "period": period }));
        assert!(refused.starts_with("period: ") && refused.ends_with(&format!("such as {example}")), "{refused}");
    }
    let refused = message("reports", json!({ "period": "2099-01-31" }));
    assert!(refused.contains("2099-01-31 has not begun") && refused.contains(&today), "{refused}");
    let refused = message("reports", json!({ "amount": -6, "period": today }));
    assert!(refused.contains(&format!("the consumption of {today} below 0: it is 5")), "{refused}");
    assert_eq!(fixture.entries("reports").len(), 1);
    let (status, answer) = fixture.correct("acme", "reports", &json!({ "period": today, "amount": 2 }));
    assert_eq!((status, &answer["usage"]["used"], &answer["usage"]["period"]), (200, &json!(7), &json!(today)));
}

#[test]
fn exported_entries_have_the_period_of_the_usage() {
    let fixture = Fixture::start();
    fixture.consume("/reports", "acme", 5);
    let row = &fixture.usage_of("reports", 5)[0];
    let entry = &fixture.entries("reports")[0];
    assert_eq!((&entry["period_length"], &entry["period"]), (&json!("day"), &row["period"]));
    assert!(entry["period_index"].is_u64(), "{entry}");
    // The quota counts by day in UTC.
    let day = row["period"].as_str().unwrap();
    let time = entry["time"].as_str().unwrap();
    assert!(
        time.len() == "2026-11-19T20:32:14.123456Z".len() && time.starts_with(day) && time.ends_with('Z'),
        "{entry}"
    );
    let (begin, end) = (entry["period_begin"].as_str().unwrap(), entry["period_end"].as_str().unwrap());
    assert!(
        begin == format!("{day}T00:00:00.000000Z") && begin <= time && time < end,
        "texts compare as the times do: {entry}"
    );
    assert_eq!((&entry["period_begin"], &entry["period_end"]), (&row["period_begin"], &row["period_end"]));
    let (code, csv, _) = fixture.run(&["quota", "export", "--csv", "--rule", "reports"], READ);
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| lines[1][lines[0].iter().position(|heading| *heading == name).unwrap()];
    assert_eq!(
        [column("time"), column("period_begin"), column("period_end"), column("expires_at")],
        [time, begin, end, ""]
    );
    assert_eq!((code, column("period_length"), column("period")), (Some(0), "day", row["period"].as_str().unwrap()));
}

#[test]
fn pages_of_entries_follow_each_other_by_the_header_field_after() {
    let fixture = Fixture::start();
    for cost in 1..=3 {
        fixture.consume("/reports", "acme", cost);
    }
    let (mut amounts, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/usage/entries?rule=reports&limit=1{after}");
        let token = format!("authorization: Bearer {READ}");
        let (_, head, body) = exchange(&fixture.server().admin, "GET", &path, &[&token], "");
        amounts.extend(body.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["amount"].clone()));
        let Some(next) = head.lines().find_map(|line| line.strip_prefix("x-tidegate-after: ")) else { break };
        after = format!("&after={next}");
    }
    assert_eq!(amounts, [json!(1), json!(2), json!(3)]);
}

/// A page that no other one leads to looked like the end of all of them.
#[test]
fn a_page_that_no_earlier_one_leads_to_is_refused() {
    let fixture = Fixture::start();
    fixture.consume("/exports", "acme", 1);
    fixture.usage_of("exports", 1);
    for path in ["/v1/usage", "/v1/usage/entries"] {
        for after in ["1:", "0:x", "99:1.2026", "x"] {
            let (status, answer) = fixture.call("GET", &format!("{path}?after={after}"), READ, &Value::Null);
            let message = answer["message"].as_str().unwrap_or_default();
            assert!(status == 400 && message.contains("after"), "{path} {after}: {status} {answer}");
        }
        assert_eq!(fixture.call("GET", &format!("{path}?after=0:"), READ, &Value::Null).0, 200, "{path}");
        // A tenant is found by its name and by its hash.
        assert_eq!(fixture.call("GET", &format!("{path}?tenant=acme&after=1:"), READ, &Value::Null).0, 200, "{path}");
    }
}

/// Contracts without an end are stored with this date.
#[test]
fn the_last_day_of_the_calendar_is_a_date() {
    let fixture = Fixture::start();
    fixture.consume("/exports", "acme", 1);
    fixture.usage_of("exports", 1);
    for path in ["/v1/usage", "/v1/usage/entries"] {
        for to in ["9999-12-31", "9999-12", "9999", "9999-12-31T23"] {
            let (status, text) = fixture.call_text("GET", &format!("{path}?from=1970&to={to}"), READ, "");
            assert!(status == 200 && text.contains("exports"), "{path} {to}: {text}");
        }
    }
}

/// The log has the author of every reset.
#[test]
fn a_reset_is_refused_with_an_author_that_no_entry_could_have_also_without_a_ledger() {
    let fixture = Fixture::start();
    fixture.consume("/exports", "acme", 1);
    let long = "x".repeat(1_001);
    for (field, text) in [("author", ""), ("author", " "), ("author", &*long), ("reason", "a\nb"), ("reason", &long)] {
        let mut body =
            json!({ "request": { "tenant": "acme" }, "rule": "burst", "author": "eve", "reason": "a new trial" });
        body[field] = text.into();
        let (status, answer) = fixture.post("/v1/subjects/reset", &body);
        let message = answer["message"].as_str().unwrap();
        assert!(status == 400 && message.starts_with(&format!("{field}: ")), "{field} {}: {answer}", text.len());
    }
    let body = json!({ "request": { "tenant": "acme" }, "rule": "burst", "author": "x".repeat(1_000) });
    assert_eq!(fixture.post("/v1/subjects/reset", &body).0, 200);
}

#[test]
fn a_repeated_correction_is_answered_as_repeated() {
    let fixture = Fixture::start();
    let correct = [
        "quota",
        "correct",
        "--tenant",
        "acme",
        "--rule",
        "exports",
        "--amount",
        "7",
        "--reason",
        "why not",
        "--idempotency-key",
        "k",
        "--create",
    ];
    let (_, first, _) = fixture.run(&correct, CHANGE);
    assert!(first.starts_with("corrected by +7: 7 of 100 used in 20"), "{first}");
    let (code, second, error) = fixture.run(&correct, CHANGE);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{second}");
    assert!(
        second.starts_with("corrected by +7 before, under this key, and not again: 7 of 100 used in 20"),
        "{second}"
    );
    for (key, repeated) in [("k", true), ("l", false)] {
        let (_, answer) = fixture.correct("acme", "exports", &json!({ "amount": 7, "idempotency_key": key }));
        assert_eq!(answer["repeated"], json!(repeated), "{answer}");
    }
}

#[test]
fn errors_of_the_admin_address_name_the_wrong_field() {
    let fixture = Fixture::start();
    let paths = ["/v1/subjects/show", "/v1/subjects/reset", "/v1/usage", "/v1/usage/corrections", "/v1/usage/rollup"];
    for path in paths {
        let (status, answer) = fixture.post(path, &json!({ "colour": "red" }));
        let message = answer["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("unknown field `colour`; "), "{path}: {message}");
    }
    let (status, answer) = fixture.post("/v1/usage/corrections", &json!({ "request": { "tenant": 7 } }));
    let message = answer["message"].as_str().unwrap();
    assert!(status == 400 && message.ends_with("`request.tenant`: expected text, found a number"), "{message}");
    let (status, answer) = fixture.correct("acme", "exports", &json!({ "amount": 1.5 }));
    let message = answer["message"].as_str().unwrap();
    assert!(
        status == 400 && message.ends_with("`amount`: expected a whole number, found a number with a fraction"),
        "{message}"
    );
}

#[test]
fn a_hostile_name_is_escaped_and_cut_in_the_table_and_exact_elsewhere() {
    let fixture = Fixture::start();
    let hostile = format!("a\u{202e}b{}", "c".repeat(60));
    assert_eq!(fixture.correct(&hostile, "exports", &json!({})).0, 200);
    let (code, table, _) = fixture.run(&["quota", "show"], READ);
    assert!(code == Some(0) && table.contains("a\\u{202e}bccc") && table.contains("c…  exports"), "{table}");
    assert!(!table.contains('\u{202e}'), "{table}");
    for format in ["--json", "--csv"] {
        let (_, exact, _) = fixture.run(&["quota", "show", format], READ);
        assert!(exact.contains(&hostile), "{exact}");
    }
}

#[test]
fn a_reconcile_that_was_refused_exits_with_2_and_one_with_busy_accounts_with_1() {
    let report = json!({ "running": false, "accounts": 2, "differences": 0, "unrepaired": 0, "busy": 1, "list": [] });
    let refused = json!({ "error": "busy", "message": "A reconcile runs already: wait for its end, then repeat." });
    for (status, answer, code, text) in [
        ("200 OK", report, 1, "1 account under constant use, not compared or repaired: repeat it"),
        ("409 Conflict", refused, 2, "A reconcile runs already"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut part) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"}") {
                let length = stream.read(&mut part).unwrap();
                request.extend_from_slice(&part[..length]);
            }
            let body = answer.to_string();
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(["quota", "reconcile", "--admin", &admin]).output().unwrap();
        server.join().unwrap();
        let shown = [output.stdout, output.stderr].concat();
        assert!(String::from_utf8(shown).unwrap().contains(text), "{text}");
        assert_eq!(output.status.code(), Some(code), "{text}");
    }
}
