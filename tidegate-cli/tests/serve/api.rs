//! The check API.

use serde_json::{Value, json};

use crate::serve::{Running, ask};

const HELLO: &str = r#"{"path":"/hello","ip":"203.0.113.9"}"#;

#[test]
fn a_server_without_flags_has_an_example_rule() {
    let server = Running::start(&[]);
    let allowed: Vec<bool> = (0..4).map(|_| server.check(HELLO)["allowed"] == json!(true)).collect();
    assert_eq!(allowed, [true, true, true, false]);
    assert_eq!(server.check(r#"{"path":"/other","ip":"203.0.113.9"}"#)["rule"], json!(null));
    assert_eq!(server.check(r#"{"path":"/hello","ip":"203.0.113.10"}"#)["remaining"], json!(2));
}

#[test]
fn a_peek_consumes_nothing() {
    let server = Running::start(&[]);
    let peek = r#"{"path":"/hello","ip":"203.0.113.9","peek":true}"#;
    for _ in 0..5 {
        assert_eq!(server.check(peek)["remaining"], json!(3));
    }
}

#[test]
fn a_batch_is_decided_one_by_one_or_atomically() {
    let server = Running::start(&[]);
    let batch = |atomic: bool, cost: u32| {
        format!(r#"{{"atomic":{atomic},"checks":[{HELLO},{{"path":"/hello","ip":"203.0.113.9","cost":{cost}}}]}}"#)
    };
    let (_, refused) = server.post("/v1/check/batch", &batch(true, 3));
    assert_eq!(
        (&refused["allowed"], &refused["checks"][0]["cost"]),
        (&json!(false), &json!(4)),
        "one bucket, both costs"
    );
    let (_, each) = server.post("/v1/check/batch", &batch(false, 3));
    assert_eq!((&each["answers"][0]["allowed"], &each["answers"][1]["allowed"]), (&json!(true), &json!(false)));
    let (_, together) = server.post("/v1/check/batch", &batch(true, 1));
    assert_eq!((&together["allowed"], &together["remaining"]), (&json!(true), &json!(0)));
}

#[test]
fn a_path_counts_under_every_reading() {
    let server = Running::start(&[]);
    let body = |path: &str, cost: u32| json!({ "path": path, "ip": "203.0.113.9", "cost": cost }).to_string();
    assert_eq!(server.check(&body("/hello", 3))["allowed"], json!(true));
    for path in ["/%68ello", "//hello", "/x%2F..%2Fhello", "/x/../hello", "/hello;x", "/x\\..\\hello", "/%252Fhello"] {
        assert_eq!(server.check(&body(path, 1))["allowed"], json!(false), "{path}");
    }
    let message = "The path can be read in more than four ways. Write it without escapes.";
    let ambiguous = body("/a;b%2Fc\\d", 1);
    let batch = format!(r#"{{"atomic":true,"checks":[{HELLO},{ambiguous}]}}"#);
    for (call, body) in [("/v1/check", &ambiguous), ("/v1/check/batch", &batch)] {
        let (status, response) = server.post(call, body);
        assert_eq!((status, &response["message"]), (400, &json!(message)), "{call}");
    }
    // The checks of other clients in the batch are decided.
    let (status, response) = server.post("/v1/check/batch", &format!(r#"{{"checks":[{ambiguous},{HELLO}]}}"#));
    let answers = &response["answers"];
    assert_eq!((status, &answers[0]["allowed"], &answers[0]["error"]), (200, &json!(false), &json!(message)));
    assert!(answers[1]["allowed"].is_boolean() && answers[1]["error"].is_null(), "{response}");
    let (status, response) = server.post("/v1/check", r#"{"method":"post","path":"/hello"}"#);
    assert_eq!((status, &response["message"]), (400, &json!("method: methods are case-sensitive; write `POST`")));
}

#[test]
fn a_receipt_refunds_a_check_once() {
    let server = Running::start(&[]);
    let check = r#"{"path":"/hello","ip":"203.0.113.9","cost":3,"receipt":true}"#;
    let response = server.check(check);
    let returned = json!({ "receipt": response["receipt"] }).to_string();
    assert_eq!(server.check(check)["receipt"], json!(null), "a denied check consumes nothing");
    assert_eq!(server.post("/v1/refund", &returned), (200, json!({ "refunded": true })));
    assert_eq!(server.check(check)["allowed"], json!(true));
    let again = json!({ "refunded": false, "reason": "already refunded" });
    assert_eq!(server.post("/v1/refund", &returned), (200, again));
    assert_eq!(server.check(check)["allowed"], json!(false));
    assert_eq!(server.check(HELLO)["receipt"], json!(null), "it was not requested");
}

#[test]
fn an_atomic_batch_has_one_receipt() {
    let server = Running::start(&[]);
    let batch = format!(r#"{{"atomic":true,"receipt":true,"checks":[{HELLO},{HELLO},{HELLO}]}}"#);
    let (_, response) = server.post("/v1/check/batch", &batch);
    assert_eq!((&response["allowed"], server.check(HELLO)["allowed"].clone()), (&json!(true), json!(false)));
    let (_, refunded) = server.post("/v1/refund", &json!({ "receipt": response["receipt"] }).to_string());
    assert_eq!(refunded["refunded"], json!(true));
    assert_eq!(server.post("/v1/check/batch", &batch).1["allowed"], json!(true));
}

#[test]
fn a_receipt_requested_in_the_wrong_place_is_a_bad_request() {
    let server = Running::start(&[]);
    let with = format!("{},\"receipt\":true}}", HELLO.trim_end_matches('}'));
    for body in [format!(r#"{{"receipt":true,"checks":[{HELLO}]}}"#), format!(r#"{{"atomic":true,"checks":[{with}]}}"#)]
    {
        assert_eq!(server.post("/v1/check/batch", &body).0, 400, "{body}");
    }
    let each = server.post("/v1/check/batch", &format!(r#"{{"checks":[{with},{HELLO}]}}"#)).1;
    assert!(each["answers"][0]["receipt"].is_string() && each["answers"][1]["receipt"].is_null(), "{each}");
}

/// Trap: 33 checks in one plan exceeded the maximum of the store, which counted as a store failure, so they passed.
#[test]
fn an_atomic_batch_with_more_than_32_limits_is_a_bad_request() {
    let server = Running::start(&[]);
    let checks: Vec<String> = (0..33).map(|n| format!(r#"{{"path":"/hello","ip":"203.0.113.{n}"}}"#)).collect();
    let batch = |atomic: bool, checks: &[String]| format!(r#"{{"atomic":{atomic},"checks":[{}]}}"#, checks.join(","));
    let (status, response) = server.post("/v1/check/batch", &batch(true, &checks));
    assert_eq!(status, 400);
    assert!(response["message"].as_str().unwrap().contains("33 limits; at most 32"), "{response}");
    assert_eq!(server.post("/v1/check/batch", &batch(true, &checks[..32])).1["allowed"], json!(true));
    assert_eq!(server.post("/v1/check/batch", &batch(false, &checks)).0, 200);
}

/// A client that could forge receipts could refund any limit.
#[test]
fn a_changed_or_invented_receipt_is_unknown() {
    let server = Running::start(&[]);
    let response = server.check(r#"{"path":"/hello","ip":"203.0.113.9","receipt":true}"#);
    let receipt = response["receipt"].as_str().unwrap();
    let flipped = if receipt.starts_with('A') { "B" } else { "A" };
    let (text, signature) = receipt.split_once('.').unwrap();
    for wrong in [
        "",
        ".",
        text,
        signature,
        &format!("{flipped}{}", &receipt[1..]),
        &format!("{text}.+{signature}"),
        &format!("{text}.{}A", &signature[..signature.len() - 1]),
        &format!("{text}.{}B", &signature[..signature.len() - 1]),
        &format!("{text}=.{signature}"),
        &"x".repeat(100_000),
    ] {
        let (status, response) = server.post("/v1/refund", &json!({ "receipt": wrong }).to_string());
        assert!(status == 404 || wrong == receipt, "{wrong}: {response}");
    }
    let other = Running::start(&["--secret", "of another fleet"]);
    assert_eq!(other.post("/v1/refund", &json!({ "receipt": receipt }).to_string()).0, 404);
}

#[test]
fn a_bad_request_names_the_place_and_quotes_no_value() {
    let server = Running::start(&[]);
    for (body, message) in [
        ("", "line 1, column 0: the JSON ends too early"),
        ("{\"path\":\n hunter2}", "line 2, column 2: this is not JSON"),
        (
            r#"{"hunter2":1}"#,
            "line 1, column 10: unknown field `hunter2`; valid are `method`, `path`, `host`, `headers`, `ip`, `tenant`, `action`, `attributes`, `body`, `size`, `cost`, `peek`, `receipt`, `strict`, `max_wait_ms`, `idempotency_key`",
        ),
        (r#"{"cost":-1}"#, "line 1, column 11: `cost`: expected a whole number below 2^53, found a number"),
        (r#"{"cost":"hunter2"}"#, "line 1, column 17: `cost`: expected a number, found text"),
    ] {
        let (status, response) = server.post("/v1/check", body);
        assert_eq!((status, response["message"].as_str().unwrap()), (400, message), "{body}");
    }
    let (status, _) = server.post("/v1/check", r#"{"ip":"hunter2"}"#);
    assert_eq!(status, 400);
    let (status, _) = server.post("/v1/check/batch", &format!(r#"{{"checks":[{}]}}"#, vec!["{}"; 101].join(",")));
    assert_eq!(status, 400);
    assert_eq!(ask(&server.http, "GET", "/v1/check", "").0, 405);
}

#[test]
fn an_unknown_path_or_method_names_the_right_one() {
    let server = Running::start(&[]);
    for (address, method, path, status, message) in [
        (&server.http, "GET", "/v1/check", 405, "This path is for POST, not for GET."),
        (&server.http, "POST", "/v1/leases/a", 405, "This path is for PUT or DELETE, not for POST."),
        (&server.admin, "DELETE", "/v1/usage", 405, "This path is for GET or POST, not for DELETE."),
        (
            &server.http,
            "POST",
            "/v1/chek",
            404,
            "There is no such path; did you mean `/v1/check`? GET /openapi.json describes all.",
        ),
        (&server.http, "GET", "/nothing", 404, "There is no such path; GET /openapi.json describes all."),
        (&server.http, "GET", "/metrics", 404, "This path is at another address: the admin address (--admin)."),
        (&server.admin, "POST", "/v1/check", 404, "This path is at another address: that of the check API (--http)."),
        (
            &server.admin,
            "GET",
            "/v1/statu",
            404,
            "There is no such path; did you mean `/v1/status`? GET /openapi.json describes all.",
        ),
    ] {
        let (found, body) = ask(address, method, path, "");
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        assert_eq!((found, &body["message"]), (status, &json!(message)), "{method} {path}");
    }
}

#[test]
fn the_api_description_is_served_and_names_existing_paths() {
    let server = Running::start(&[]);
    let (status, text) = ask(&server.http, "GET", "/openapi.json", "");
    let api: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &api["openapi"]), (200, &json!("3.1.0")));
    for path in api["paths"].as_object().unwrap().keys() {
        assert_ne!(ask(&server.http, "GET", path, "").0, 404, "{path}");
    }
}

/// A mistyped action passed without a limit, and nothing said so.
#[test]
fn a_strict_check_that_no_rule_matches_is_an_error_that_names_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let rules = "- { id: exports, match: { action: export }, per: [tenant], concurrency: { max: 3, lease: 30s } }\n\
                 - { id: hello, match: { path: /hello }, per: [], fixed_window: { limit: 9, window: 30d } }";
    std::fs::write(&file, format!("version: 1\nexempt: [{{ path: /health }}]\nrules:\n{rules}\n")).unwrap();
    let server = Running::start(&["--rules", file.to_str().unwrap(), "--secret", "s1"]);
    let strict = |more: &str| format!(r#"{{"strict":true,{more}}}"#);
    let wrong = strict(r#""action":"exprot","tenant":"hunter2""#);
    for path in ["/v1/check", "/v1/leases", "/v1/acquire", "/v1/quotas/outstanding"] {
        let (status, answer) = server.post(path, &wrong);
        assert_eq!((status, &answer["error"]), (422, &json!("no_rule")), "{path}: {answer}");
        assert_eq!(answer["message"], json!("No rule matches this check. The nearest action is `export`."), "{path}");
    }
    let reserve = strict(r#""action":"exprot","idempotency_key":"k""#);
    assert_eq!(server.post("/v1/quotas/reserve", &reserve).0, 422);
    let (_, answer) = server.post("/v1/check", &strict(r#""path":"/helo""#));
    assert_eq!(answer["message"], json!("No rule matches this check. The nearest path is `/hello`."));
    for allowed in [
        strict(r#""action":"export","tenant":"acme""#),
        strict(r#""path":"/health""#),
        r#"{"action":"exprot"}"#.to_owned(),
    ] {
        assert_eq!(server.check(&allowed)["allowed"], json!(true), "{allowed}");
    }
    let right = strict(r#""path":"/hello""#);
    let (status, batch) = server.post("/v1/check/batch", &format!(r#"{{"checks":[{wrong},{right}]}}"#));
    assert_eq!(
        (status, &batch["answers"][0]["allowed"], &batch["answers"][1]["allowed"]),
        (200, &json!(false), &json!(true))
    );
    assert!(batch["answers"][0]["error"].as_str().unwrap().contains("`export`"), "{batch}");
    let (status, answer) = server.post("/v1/check/batch", &format!(r#"{{"atomic":true,"checks":[{right},{wrong}]}}"#));
    assert!(status == 422 && answer["message"].as_str().unwrap().starts_with("checks[1]: No rule"), "{answer}");
    assert_eq!(server.check(&right)["remaining"], json!(7), "the batch consumed nothing");
    let body = format!(r#"{{"request":{}}}"#, strict(r#""path":"/hello""#));
    assert_eq!(ask(&server.admin, "POST", "/v1/subjects/show", &body).0, 400, "it means nothing there");

    let server = Running::start(&["--rules", file.to_str().unwrap(), "--strict-checks"]);
    assert_eq!(server.post("/v1/check", r#"{"action":"exprot"}"#).0, 422);
    assert_eq!(server.post("/v1/check", r#"{"action":"exprot","strict":false}"#).0, 200);
}

#[test]
fn a_header_that_comes_twice_is_a_bad_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let rule = "- { id: keys, per: [header:x-api-key], token_bucket: { capacity: 1, refill: 1/h } }";
    std::fs::write(&file, format!("version: 1\nidentify: {{ authenticated: x-api-key }}\nrules:\n{rule}\n")).unwrap();
    let server = Running::with_rules(&file);
    let twice = r#"{"headers":{"x-api-key":["a","b"]}}"#;
    for body in [twice, r#"{"headers":{"x-api-key":"a","X-Api-Key":"b"}}"#] {
        let (status, answer) = server.post("/v1/check", body);
        assert_eq!((status, &answer["error"]), (400, &json!("bad_request")), "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("header:x-api-key"), "{answer}");
    }
    assert_eq!(server.post("/v1/check/batch", &format!(r#"{{"atomic":true,"checks":[{twice}]}}"#)).0, 400);
    let once = r#"{"headers":{"x-api-key":"a"}}"#;
    let (_, batch) = server.post("/v1/check/batch", &format!(r#"{{"checks":[{twice},{once}]}}"#));
    assert_eq!((&batch["answers"][0]["allowed"], &batch["answers"][1]["allowed"]), (&json!(false), &json!(true)));
    assert!(batch["answers"][0]["error"].is_string(), "{batch}");
}

#[test]
fn a_check_states_the_size_of_its_body_or_costs_as_one_without_a_length() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let rule = "- { id: size, per: [], cost: 1 + request.size / 1000, token_bucket: { capacity: 100, refill: 1/h } }";
    std::fs::write(&file, format!("version: 1\nunknown_size: 9k\nrules:\n{rule}\n")).unwrap();
    let server = Running::with_rules(&file);
    for (body, cost) in [
        (r#"{"method":"POST"}"#, 10),
        (r#"{"method":"POST","size":2000}"#, 3),
        (r#"{"method":"POST","headers":{"Content-Length":"2000"}}"#, 3),
        (r#"{"method":"POST","body":"{}"}"#, 1),
        (r#"{"method":"GET"}"#, 1),
        (r#"{"method":"GET","headers":{"transfer-encoding":"chunked"}}"#, 10),
    ] {
        assert_eq!(server.check(body)["checks"][0]["cost"], json!(cost), "{body}");
    }
    assert_eq!(server.post("/v1/check", r#"{"size":-1}"#).0, 400);
}
