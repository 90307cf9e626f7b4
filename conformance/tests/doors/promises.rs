//! What every door promises, and where they differ.

use serde_json::Value;

use crate::client::{Heard, ask};
use crate::door::Door;

/// What a proxy can do for Tidegate.
pub(crate) struct Can {
    /// Answers of the service carry the limit's fields.
    pub(crate) fields: bool,
    /// Refusals have Tidegate's own body, not one that the configuration writes.
    pub(crate) body: bool,
    /// A refusal because the store failed says when to retry.
    pub(crate) retry_after_failure: bool,
}

/// Everything while all is well.
pub(crate) async fn limits(door: &Door, can: &Can) {
    one_client_is_limited(door, can).await;
    others_are_unharmed(door).await;
    addresses_are_those_that_connect(door).await;
    nobody_asks_for_something_else(door).await;
    nobody_spoils_the_question(door).await;
    method_and_query_count(door, can).await;
    the_word_of_the_service_stands(door).await;
}

/// Five rides for a key, and a refusal that says everything.
async fn one_client_is_limited(door: &Door, can: &Can) {
    for left in (0..5).rev() {
        let ride = ask("POST /api/rides?to=harbour").with("x-api-key", "k1").body("two seats");
        let heard = door.send(&ride).await;
        assert_eq!((heard.status, heard.asked().as_deref()), (200, Some("POST /api/rides?to=harbour")), "{heard:?}");
        assert_eq!(heard.json()["body"], "two seats", "{heard:?}");
        assert_eq!(heard.service_saw("x-api-key"), ["k1"]);
        assert_eq!(heard.service_saw("x-tidegate-degraded"), [""; 0]);
        let shows = |name, start: &str| heard.field(name).map(|field| field.starts_with(start));
        let told = can.fields.then_some(true);
        assert_eq!(shows("ratelimit", &format!("\"rides\";r={left};t=")), told, "{heard:?}");
        assert_eq!(shows("ratelimit-policy", "\"rides\";q=5;w=3600, "), told, "{heard:?}");
        for (name, value) in [("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", &left.to_string())] {
            assert_eq!(heard.field(name), can.fields.then_some(value), "{heard:?}");
        }
        assert_eq!(heard.field("x-ratelimit-reset").is_some(), can.fields, "{heard:?}");
    }
    let heard = door.send(&ask("GET /api/rides").with("x-api-key", "k1")).await;
    assert_eq!(heard.status, 429, "{heard:?}");
    assert!(heard.retry_after().is_some_and(|seconds| (1..=720).contains(&seconds)), "{heard:?}");
    assert!(heard.field("ratelimit").is_some_and(|field| field.starts_with("\"rides\";r=0;t=")), "{heard:?}");
    assert!(
        heard.field("ratelimit-policy").is_some_and(|field| field.starts_with("\"rides\";q=5;w=3600")),
        "{heard:?}"
    );
    assert_eq!(heard.field("x-ratelimit-remaining"), Some("0"), "{heard:?}");
    assert_eq!(heard.field("content-type"), Some("application/json"), "{heard:?}");
    assert_eq!(heard.field("cache-control"), Some("no-store"), "{heard:?}");
    let body = heard.json();
    assert_eq!(body["error"], "rate_limit_exceeded", "{heard:?}");
    let rule = if can.body { Value::from("rides") } else { Value::Null };
    assert_eq!(body["rule_id"], rule, "{heard:?}");
}

async fn others_are_unharmed(door: &Door) {
    for other in [ask("GET /api/rides").with("x-api-key", "k2"), ask("GET /api/rides").from(9)] {
        let heard = door.send(&other).await;
        assert_eq!(heard.status, 200, "{heard:?}");
    }
    // What no rule matches has no fields either.
    let heard = door.send(&ask("GET /free").with("x-api-key", "k1")).await;
    assert_eq!((heard.status, heard.field("ratelimit")), (200, None), "{heard:?}");
}

/// Without a key it is the address that counts: the one that the proxy has seen.
async fn addresses_are_those_that_connect(door: &Door) {
    for made_up in 1..=5 {
        let spoofed = format!("198.51.100.{made_up}");
        let ride = ask("GET /api/rides").from(3).with("x-forwarded-for", &spoofed).with("x-real-ip", &spoofed);
        let heard = door.send(&ride).await;
        assert_eq!(heard.status, 200, "{heard:?}");
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
        let heard = door.send(&ride.with("x-api-key", "k1")).await;
        assert_eq!(heard.status, 429, "{heard:?}");
    }
}

/// What Tidegate, or the way to it, cannot take is refused: who could break the question would pass as if Tidegate were down.
/// HAProxy 2.6 ends itself if its Lua client is given a hundred fields.
async fn nobody_spoils_the_question(door: &Door) {
    let many = |count| (0..count).fold(ask("GET /api/rides"), |ask, number| ask.with(&format!("x-{number}"), "a"));
    let long = |length| ask("GET /api/rides").with("cookie", &"a".repeat(length));
    let odd = |target| ask(&format!("GET /api/rides?to={target}"));
    let spoiled = [70, 95, 96, 97, 98, 99, 300].map(many).into_iter();
    let spoiled = spoiled.chain([15_000, 15_100, 15_200].map(long)).chain(["<\"sea\">", "{a|b}", "\u{7f}"].map(odd));
    for ride in spoiled {
        let heard = door.send(&ride.from(3)).await;
        assert!(matches!(heard.status, 400 | 429 | 431) && heard.asked().is_none(), "{heard:?}");
    }
    assert_eq!(door.send(&ask("GET /free")).await.status, 200);
}

/// Three logins by POST for an account of the query, wherever they come from.
async fn method_and_query_count(door: &Door, can: &Can) {
    for from in 5..8 {
        let heard = door.send(&ask("POST /login?account=a1").from(from).body("guess")).await;
        assert_eq!((heard.status, heard.field("ratelimit")), (200, None), "{heard:?}");
    }
    let heard = door.send(&ask("POST /login?account=a1").from(8).body("guess")).await;
    assert_eq!((heard.status, heard.field("ratelimit")), (429, None), "{heard:?}");
    assert!(heard.retry_after().is_some(), "{heard:?}");
    assert!(!can.body || heard.json()["rule_id"].is_null(), "{heard:?}");
    for other in ["GET /login?account=a1", "POST /login?account=a2"] {
        let heard = door.send(&ask(other).from(8)).await;
        assert_eq!((heard.status, heard.asked().as_deref()), (200, Some(other)), "{heard:?}");
    }
}

/// What the service refuses is its own affair, and what it has broken off is not sent again.
async fn the_word_of_the_service_stands(door: &Door) {
    for status in [401, 403, 404, 429, 500, 502, 503] {
        let path = format!("GET /status/{status}");
        let heard = door.send(&ask(&path)).await;
        assert_eq!((heard.status, heard.asked()), (status, Some(path)), "{heard:?}");
    }
    for (body, asked) in [("once", 1), ("", 2)] {
        let heard = door.send(&ask("POST /broken-off").body(body)).await;
        assert!(matches!(heard.status, 500..=599), "{heard:?}");
        assert_eq!(door.service.broken_off(), asked, "{heard:?}");
    }
}

/// While the store fails: rules decide what passes, and the service knows.
pub(crate) async fn store_is_lost(door: &mut Door, can: &Can) {
    let claims = ask("GET /api/rides").with("x-tidegate-degraded", "true").with("X-Tidegate-Degraded", "yes");
    let heard = door.send(&claims).await;
    assert_eq!((heard.status, heard.service_saw("x-tidegate-degraded")), (200, vec![]), "{heard:?}");
    door.lose_store();
    // More than the limit: nothing is counted.
    for _ in 0..7 {
        passes_degraded(door).await;
    }
    let heard = door.send(&ask("POST /login?account=a1").body("guess")).await;
    assert_eq!((heard.status, heard.retry_after().is_some()), (503, can.retry_after_failure), "{heard:?}");
    // Where no rule applies, nothing is missing.
    let heard = door.send(&ask("GET /free").with("x-tidegate-degraded", "true")).await;
    assert_eq!((heard.status, heard.service_saw("x-tidegate-degraded")), (200, vec![]), "{heard:?}");
}

/// While Tidegate hangs, and once it is gone: requests pass, and the service knows.
pub(crate) async fn tidegate_is_lost(door: &mut Door) {
    door.hang_tidegate();
    passes_degraded(door).await;
    door.lose_tidegate();
    for _ in 0..7 {
        passes_degraded(door).await;
    }
    let heard = door.send(&ask("POST /login?account=a1").body("guess")).await;
    assert_eq!((heard.status, &heard.json()["body"]), (200, &"guess".into()), "{heard:?}");
}

/// A request passes, and the service hears from Tidegate or the proxy, not from the client, that it was not checked.
pub(crate) async fn passes_degraded(door: &Door) -> Heard {
    let heard = door.send(&ask("GET /api/rides").with("x-tidegate-degraded", "no")).await;
    assert_eq!((heard.status, heard.asked().as_deref()), (200, Some("GET /api/rides")), "{heard:?}");
    assert_eq!(heard.service_saw("x-tidegate-degraded"), ["true"], "{heard:?}");
    assert_eq!(heard.field("ratelimit"), None, "{heard:?}");
    heard
}
