//! What every door promises, and where they differ.

use serde_json::Value;

use crate::client::{HttpResponse, ask};
use crate::setup::Door;

/// What a proxy can do for Tidegate.
pub(crate) struct ProxyCapabilities {
    /// Answers of the service carry the limit's fields.
    pub(crate) fields: bool,
    /// Refusals have Tidegate's own body, not one that the configuration writes.
    pub(crate) body: bool,
    /// A refusal because the store failed says when to retry.
    pub(crate) retry_after_failure: bool,
}

/// Everything while all is well.
pub(crate) async fn limits(door: &Door, can: &ProxyCapabilities) {
    one_client_is_limited(door, can).await;
    others_are_unharmed(door).await;
    addresses_are_those_that_connect(door).await;
    nobody_asks_for_something_else(door).await;
    malformed_requests_are_refused(door).await;
    method_and_query_select_the_rule(door, can).await;
    backend_statuses_pass_through_unchanged(door).await;
}

/// Five rides for a key, and a refusal that says everything.
async fn one_client_is_limited(door: &Door, can: &ProxyCapabilities) {
    for left in (0..5).rev() {
        let ride = ask("POST /api/rides?to=harbour").with("x-api-key", "k1").body("two seats");
        let response = door.send(&ride).await;
        assert_eq!(
            (response.status, response.asked().as_deref()),
            (200, Some("POST /api/rides?to=harbour")),
            "{response:?}"
        );
        assert_eq!(response.json()["body"], "two seats", "{response:?}");
        assert_eq!(response.service_saw("x-api-key"), ["k1"]);
        assert_eq!(response.service_saw("x-tidegate-degraded"), [""; 0]);
        let shows = |name, start: &str| response.field(name).map(|field| field.starts_with(start));
        let told = can.fields.then_some(true);
        assert_eq!(shows("ratelimit", &format!("\"rides\";r={left};t=")), told, "{response:?}");
        assert_eq!(shows("ratelimit-policy", "\"rides\";q=5;w=3600, "), told, "{response:?}");
        for (name, value) in [("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", &left.to_string())] {
            assert_eq!(response.field(name), can.fields.then_some(value), "{response:?}");
        }
        assert_eq!(response.field("x-ratelimit-reset").is_some(), can.fields, "{response:?}");
    }
    let response = door.send(&ask("GET /api/rides").with("x-api-key", "k1")).await;
    assert_eq!(response.status, 429, "{response:?}");
    assert!(response.retry_after().is_some_and(|seconds| (1..=720).contains(&seconds)), "{response:?}");
    assert!(response.field("ratelimit").is_some_and(|field| field.starts_with("\"rides\";r=0;t=")), "{response:?}");
    assert!(
        response.field("ratelimit-policy").is_some_and(|field| field.starts_with("\"rides\";q=5;w=3600")),
        "{response:?}"
    );
    assert_eq!(response.field("x-ratelimit-remaining"), Some("0"), "{response:?}");
    assert_eq!(response.field("content-type"), Some("application/json"), "{response:?}");
    assert_eq!(response.field("cache-control"), Some("no-store"), "{response:?}");
    let body = response.json();
    assert_eq!(body["error"], "rate_limit_exceeded", "{response:?}");
    let rule = if can.body { Value::from("rides") } else { Value::Null };
    assert_eq!(body["rule_id"], rule, "{response:?}");
}

async fn others_are_unharmed(door: &Door) {
    for other in [ask("GET /api/rides").with("x-api-key", "k2"), ask("GET /api/rides").from(9)] {
        let response = door.send(&other).await;
        assert_eq!(response.status, 200, "{response:?}");
    }
    // What no rule matches has no fields either.
    let response = door.send(&ask("GET /free").with("x-api-key", "k1")).await;
    assert_eq!((response.status, response.field("ratelimit")), (200, None), "{response:?}");
}

/// Without a key it is the address that counts: the one that the proxy has seen.
async fn addresses_are_those_that_connect(door: &Door) {
    for made_up in 1..=5 {
        let spoofed = format!("198.51.100.{made_up}");
        let ride = ask("GET /api/rides").from(3).with("x-forwarded-for", &spoofed).with("x-real-ip", &spoofed);
        let response = door.send(&ride).await;
        assert_eq!(response.status, 200, "{response:?}");
    }
    let ride = ask("GET /api/rides").from(3).with("x-forwarded-for", "198.51.100.6");
    assert_eq!(door.send(&ride).await.status, 429);
    // Nor does it help to claim the address of the proxy, or harm to be named by others.
    let ride = ask("GET /api/rides").from(3).with("x-forwarded-for", "198.51.100.7, 127.0.0.1");
    assert_eq!(door.send(&ride).await.status, 429);
    let ride = ask("GET /api/rides").from(4).with("x-forwarded-for", "127.0.0.3");
    assert_eq!(door.send(&ride).await.status, 200);
}

/// A client cannot say in the proxy's place what it asks for.
async fn nobody_asks_for_something_else(door: &Door) {
    let rides = [
        ask("GET /api/rides").with("x-forwarded-uri", "/free").with("x-forwarded-method", "PUT"),
        ask("GET /api/rides").with("x-original-uri", "/free").with("x-original-method", "PUT"),
        ask("GET /api/rides").with("x-original-url", "/free").with("x-forwarded-host", "free.example.com"),
        ask("GET /api/%72ides?to=sea"),
    ];
    for ride in rides {
        let response = door.send(&ride.with("x-api-key", "k1")).await;
        assert_eq!(response.status, 429, "{response:?}");
    }
}

/// What Tidegate, or the way to it, cannot take is refused: who could break the question would pass as if Tidegate were down.
/// HAProxy 2.6 ends itself if its Lua client is given a hundred fields.
async fn malformed_requests_are_refused(door: &Door) {
    let many = |count| (0..count).fold(ask("GET /api/rides"), |ask, number| ask.with(&format!("x-{number}"), "a"));
    let long = |length| ask("GET /api/rides").with("cookie", &"a".repeat(length));
    let odd = |target| ask(&format!("GET /api/rides?to={target}"));
    let spoiled = [70, 95, 96, 97, 98, 99, 300].map(many).into_iter();
    let spoiled = spoiled.chain([15_000, 15_100, 15_200].map(long)).chain(["<\"sea\">", "{a|b}", "\u{7f}"].map(odd));
    for ride in spoiled {
        let response = door.send(&ride.from(3)).await;
        assert!(matches!(response.status, 400 | 429 | 431) && response.asked().is_none(), "{response:?}");
    }
    assert_eq!(door.send(&ask("GET /free")).await.status, 200);
}

/// Three logins by POST for an account of the query, wherever they come from.
async fn method_and_query_select_the_rule(door: &Door, can: &ProxyCapabilities) {
    for from in 5..8 {
        let response = door.send(&ask("POST /login?account=a1").from(from).body("guess")).await;
        assert_eq!((response.status, response.field("ratelimit")), (200, None), "{response:?}");
    }
    let response = door.send(&ask("POST /login?account=a1").from(8).body("guess")).await;
    assert_eq!((response.status, response.field("ratelimit")), (429, None), "{response:?}");
    assert!(response.retry_after().is_some(), "{response:?}");
    assert!(!can.body || response.json()["rule_id"].is_null(), "{response:?}");
    for other in ["GET /login?account=a1", "POST /login?account=a2"] {
        let response = door.send(&ask(other).from(8)).await;
        assert_eq!((response.status, response.asked().as_deref()), (200, Some(other)), "{response:?}");
    }
}

/// What the service refuses is its own affair, and what it has broken off is not sent again.
async fn backend_statuses_pass_through_unchanged(door: &Door) {
    for status in [401, 403, 404, 429, 500, 502, 503] {
        let path = format!("GET /status/{status}");
        let response = door.send(&ask(&path)).await;
        assert_eq!((response.status, response.asked()), (status, Some(path)), "{response:?}");
    }
    for (body, asked) in [("once", 1), ("", 2)] {
        let response = door.send(&ask("POST /broken-off").body(body)).await;
        assert!(matches!(response.status, 500..=599), "{response:?}");
        assert_eq!(door.service.broken_off(), asked, "{response:?}");
    }
}

/// While the store fails: rules decide what passes, and the service knows.
pub(crate) async fn assert_store_outage(door: &mut Door, can: &ProxyCapabilities) {
    let claims = ask("GET /api/rides").with("x-tidegate-degraded", "true").with("X-Tidegate-Degraded", "yes");
    let response = door.send(&claims).await;
    assert_eq!((response.status, response.service_saw("x-tidegate-degraded")), (200, vec![]), "{response:?}");
    door.lose_store();
    // More than the limit: nothing is counted.
    for _ in 0..7 {
        assert_passes_degraded(door).await;
    }
    let response = door.send(&ask("POST /login?account=a1").body("guess")).await;
    assert_eq!((response.status, response.retry_after().is_some()), (503, can.retry_after_failure), "{response:?}");
    // Where no rule applies, nothing is missing.
    let response = door.send(&ask("GET /free").with("x-tidegate-degraded", "true")).await;
    assert_eq!((response.status, response.service_saw("x-tidegate-degraded")), (200, vec![]), "{response:?}");
}

/// While Tidegate hangs, and once it is gone: requests pass, and the service knows.
pub(crate) async fn assert_tidegate_outage(door: &mut Door) {
    door.hang_tidegate();
    assert_passes_degraded(door).await;
    door.lose_tidegate();
    for _ in 0..7 {
        assert_passes_degraded(door).await;
    }
    let response = door.send(&ask("POST /login?account=a1").body("guess")).await;
    assert_eq!((response.status, &response.json()["body"]), (200, &"guess".into()), "{response:?}");
}

/// A request passes, and the service hears from Tidegate or the proxy, not from the client, that it was not checked.
pub(crate) async fn assert_passes_degraded(door: &Door) -> HttpResponse {
    let response = door.send(&ask("GET /api/rides").with("x-tidegate-degraded", "no")).await;
    assert_eq!((response.status, response.asked().as_deref()), (200, Some("GET /api/rides")), "{response:?}");
    assert_eq!(response.service_saw("x-tidegate-degraded"), ["true"], "{response:?}");
    assert_eq!(response.field("ratelimit"), None, "{response:?}");
    response
}
