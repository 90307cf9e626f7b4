//! The promises of every proxy recipe, and where the proxies differ.

use serde_json::Value;

use crate::doors::backend::ProxyResponse;
use crate::doors::client::request;
use crate::doors::setup::Setup;
use conformance::http_client::HttpResponse;

/// What a proxy supports.
pub(crate) struct ProxyCapabilities {
    /// Responses of the backend carry the rate-limit headers.
    pub(crate) fields: bool,
    /// Rejections have Tidegate's own body, not one of the proxy's configuration.
    pub(crate) body: bool,
    /// A rejection because the store failed has `Retry-After`.
    pub(crate) retry_after_failure: bool,
}

/// All promises while everything works.
pub(crate) async fn limits(setup: &Setup, can: &ProxyCapabilities) {
    one_client_is_limited(setup, can).await;
    other_clients_are_unaffected(setup).await;
    a_spoofed_address_has_no_effect(setup).await;
    a_client_cannot_forge_the_forwarded_request(setup).await;
    no_spelling_of_a_path_avoids_its_limit(setup).await;
    a_connection_field_hides_neither_a_key_nor_an_address(setup).await;
    malformed_requests_are_refused(setup).await;
    method_and_query_select_the_rule(setup, can).await;
    backend_statuses_pass_through_unchanged(setup).await;
}

/// Five rides per API key, then a complete rejection.
async fn one_client_is_limited(setup: &Setup, can: &ProxyCapabilities) {
    for left in (0..5).rev() {
        let ride = request("POST /api/rides?to=harbour").with("x-api-key", "k1").body("two seats");
        let response = setup.send(&ride).await;
        assert_eq!(
            (response.status, response.backend_request_line().as_deref()),
            (200, Some("POST /api/rides?to=harbour")),
            "{response:?}"
        );
        assert_eq!(response.json()["body"], "two seats", "{response:?}");
        assert_eq!(response.backend_values("x-api-key"), ["k1"]);
        assert_eq!(response.backend_values("x-tidegate-degraded"), [""; 0]);
        let shows = |name, start: &str| response.field(name).map(|field| field.starts_with(start));
        let expected = can.fields.then_some(true);
        assert_eq!(shows("ratelimit", &format!("\"rides\";r={left};t=")), expected, "{response:?}");
        assert_eq!(shows("ratelimit-policy", "\"rides\";q=5;w=3600, "), expected, "{response:?}");
        for (name, value) in [("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", &left.to_string())] {
            assert_eq!(response.field(name), can.fields.then_some(value), "{response:?}");
        }
        assert_eq!(response.field("x-ratelimit-reset").is_some(), can.fields, "{response:?}");
    }
    let response = setup.send(&request("GET /api/rides").with("x-api-key", "k1")).await;
    assert_eq!(response.status, 429, "{response:?}");
    assert!(response.retry_after().is_some_and(|seconds| (1..=720).contains(&seconds)), "{response:?}");
    assert!(response.has_both_retry_times(), "{response:?}");
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

async fn other_clients_are_unaffected(setup: &Setup) {
    for other in [request("GET /api/rides").with("x-api-key", "k2"), request("GET /api/rides").from(9)] {
        let response = setup.send(&other).await;
        assert_eq!(response.status, 200, "{response:?}");
    }
    // A request that no rule matches gets no headers.
    let response = setup.send(&request("GET /free").with("x-api-key", "k1")).await;
    assert_eq!((response.status, response.field("ratelimit")), (200, None), "{response:?}");
}

/// Without an API key the address counts, as the proxy saw it.
async fn a_spoofed_address_has_no_effect(setup: &Setup) {
    for made_up in 1..=5 {
        let spoofed = format!("198.51.100.{made_up}");
        let ride = request("GET /api/rides").from(3).with("x-forwarded-for", &spoofed).with("x-real-ip", &spoofed);
        let response = setup.send(&ride).await;
        assert_eq!(response.status, 200, "{response:?}");
    }
    let ride = request("GET /api/rides").from(3).with("x-forwarded-for", "198.51.100.6");
    assert_eq!(setup.send(&ride).await.status, 429);
    // Claiming the address of the proxy has no effect, and neither has being named by another client.
    let ride = request("GET /api/rides").from(3).with("x-forwarded-for", "198.51.100.7, 127.0.0.1");
    assert_eq!(setup.send(&ride).await.status, 429);
    let ride = request("GET /api/rides").from(4).with("x-forwarded-for", "127.0.0.3");
    assert_eq!(setup.send(&ride).await.status, 200);
}

/// A client cannot override the proxy's description of its request.
async fn a_client_cannot_forge_the_forwarded_request(setup: &Setup) {
    let rides = [
        request("GET /api/rides").with("x-forwarded-uri", "/free").with("x-forwarded-method", "PUT"),
        request("GET /api/rides").with("x-original-uri", "/free").with("x-original-method", "PUT"),
        request("GET /api/rides").with("x-original-url", "/free").with("x-forwarded-host", "free.example.com"),
        request("GET /api/%72ides?to=sea"),
    ];
    for ride in rides {
        let response = setup.send(&ride.with("x-api-key", "k1")).await;
        assert_eq!(response.status, 429, "{response:?}");
    }
}

/// However the proxy reads and forwards a path, one that a server may read as `/api/rides` counts as that. Some proxies answer some
/// of these by themselves.
async fn no_spelling_of_a_path_avoids_its_limit(setup: &Setup) {
    for path in [
        "/api%2Frides",
        "/api%2frides",
        "/api%252Frides",
        "/%2Fapi/rides",
        "/x%2F..%2Fapi%2Frides",
        "/x/..%2fapi/rides",
        "//api/rides",
        "/api//rides",
        "/x/../api/rides",
        "/x/%2e%2e/api/rides",
        "/api/./rides",
        "/api/rides/.",
        "/api;x/rides",
        "/api/rides;x=1",
        "/x/..;/api/rides",
        "/api\\rides",
        "/api%5Crides",
    ] {
        let response = setup.send(&request(&format!("GET {path}")).with("x-api-key", "k1")).await;
        assert!(
            (300..500).contains(&response.status) && response.backend_request_line().is_none(),
            "{path}: {response:?}"
        );
    }
}

/// What is counted is what the service receives: `Connection` must not take a key away after the check, nor the address at the next
/// server.
async fn a_connection_field_hides_neither_a_key_nor_an_address(setup: &Setup) {
    let mut without_key = 0;
    for number in 0..8 {
        let ride = request("GET /api/rides").from(20).with("connection", "x-api-key, x-forwarded-for");
        let response = setup.send(&ride.with("x-api-key", &format!("made-up-{number}"))).await;
        if response.status != 200 {
            continue;
        }
        without_key += u32::from(response.backend_values("x-api-key").is_empty());
        let connection = response.backend_values("connection").concat().to_ascii_lowercase();
        assert!(!connection.contains("x-"), "{response:?}");
    }
    assert!(without_key <= 5, "{without_key} requests without a key passed the limit of their address");
}

/// A key that comes twice is refused: the service may read another one than the rules.
pub(crate) async fn assert_repeated_keys_are_refused(setup: &Setup) {
    let ride = request("GET /api/rides").from(21).with("x-api-key", "a").with("X-Api-Key", "b");
    let login = request("POST /login?account=a&account=b").from(21);
    for repeated in [ride, login] {
        let response = setup.send(&repeated).await;
        assert_eq!((response.status, response.backend_request_line()), (400, None), "{response:?}");
    }
}

/// A request that Tidegate or the proxy cannot handle is refused: otherwise a client could break the check and pass as if Tidegate
/// were down. HAProxy 2.6 exits if its Lua client gets a hundred header fields.
async fn malformed_requests_are_refused(setup: &Setup) {
    let many =
        |count| (0..count).fold(request("GET /api/rides"), |request, number| request.with(&format!("x-{number}"), "a"));
    let long = |length| request("GET /api/rides").with("cookie", &"a".repeat(length));
    let odd = |target| request(&format!("GET /api/rides?to={target}"));
    let spoiled = [70, 95, 96, 97, 98, 99, 300].map(many).into_iter();
    let spoiled = spoiled.chain([15_000, 15_100, 15_200].map(long)).chain(["<\"sea\">", "{a|b}", "\u{7f}"].map(odd));
    for ride in spoiled {
        let response = setup.send(&ride.from(3)).await;
        assert!(
            matches!(response.status, 400 | 429 | 431) && response.backend_request_line().is_none(),
            "{response:?}"
        );
    }
    assert_eq!(setup.send(&request("GET /free")).await.status, 200);
}

/// Three POST logins per account in the query, from any address.
async fn method_and_query_select_the_rule(setup: &Setup, can: &ProxyCapabilities) {
    for from in 5..8 {
        let response = setup.send(&request("POST /login?account=a1").from(from).body("guess")).await;
        assert_eq!((response.status, response.field("ratelimit")), (200, None), "{response:?}");
    }
    let response = setup.send(&request("POST /login?account=a1").from(8).body("guess")).await;
    assert_eq!((response.status, response.field("ratelimit")), (429, None), "{response:?}");
    assert!(response.retry_after().is_some(), "{response:?}");
    assert!(!can.body || response.json()["rule_id"].is_null(), "{response:?}");
    let response = setup.send(&request("post /login?account=a1").from(8).body("guess")).await;
    assert!((400..500).contains(&response.status) && response.backend_request_line().is_none(), "{response:?}");
    for other in ["GET /login?account=a1", "POST /login?account=a2"] {
        let response = setup.send(&request(other).from(8)).await;
        assert_eq!((response.status, response.backend_request_line().as_deref()), (200, Some(other)), "{response:?}");
    }
}

/// Error statuses of the backend pass through, and a request that the backend aborted is not sent again.
async fn backend_statuses_pass_through_unchanged(setup: &Setup) {
    for status in [401, 403, 404, 429, 500, 502, 503] {
        let path = format!("GET /status/{status}");
        let response = setup.send(&request(&path)).await;
        assert_eq!((response.status, response.backend_request_line()), (status, Some(path)), "{response:?}");
    }
    for (body, expected) in [("once", 1), ("", 2)] {
        let response = setup.send(&request("POST /broken-off").body(body)).await;
        assert!(matches!(response.status, 500..=599), "{response:?}");
        assert_eq!(setup.service.aborted_requests(), expected, "{response:?}");
    }
}

/// While the store fails, the failure policies decide, and the backend gets `x-tidegate-degraded`.
pub(crate) async fn assert_store_outage(setup: &mut Setup, can: &ProxyCapabilities) {
    let claims = request("GET /api/rides").with("x-tidegate-degraded", "true").with("X-Tidegate-Degraded", "yes");
    let response = setup.send(&claims).await;
    assert_eq!((response.status, response.backend_values("x-tidegate-degraded")), (200, vec![]), "{response:?}");
    setup.kill_store();
    // The instance applies the whole limit by itself, whatever the store has counted.
    for _ in 0..5 {
        assert_passes_degraded(setup).await;
    }
    assert_eq!(setup.send(&request("GET /api/rides")).await.status, 429);
    let response = setup.send(&request("POST /login?account=a1").body("guess")).await;
    assert_eq!((response.status, response.retry_after().is_some()), (503, can.retry_after_failure), "{response:?}");
    assert!(response.has_both_retry_times() == can.retry_after_failure, "{response:?}");
    // Without a rule, a request is not degraded.
    let response = setup.send(&request("GET /free").with("x-tidegate-degraded", "true")).await;
    assert_eq!((response.status, response.backend_values("x-tidegate-degraded")), (200, vec![]), "{response:?}");
}

/// While Tidegate hangs or is down, requests pass, and the backend gets `x-tidegate-degraded`.
pub(crate) async fn assert_tidegate_outage(setup: &mut Setup) {
    setup.hang_tidegate();
    assert_passes_degraded(setup).await;
    setup.kill_tidegate();
    for _ in 0..7 {
        assert_passes_degraded(setup).await;
    }
    let response = setup.send(&request("POST /login?account=a1").body("guess")).await;
    assert_eq!((response.status, &response.json()["body"]), (200, &"guess".into()), "{response:?}");
}

/// A request passes, and the backend gets `x-tidegate-degraded` from Tidegate or the proxy, not from the client.
pub(crate) async fn assert_passes_degraded(setup: &Setup) -> HttpResponse {
    let response = setup.send(&request("GET /api/rides").with("x-tidegate-degraded", "no")).await;
    assert_eq!(
        (response.status, response.backend_request_line().as_deref()),
        (200, Some("GET /api/rides")),
        "{response:?}"
    );
    assert_eq!(response.backend_values("x-tidegate-degraded"), ["true"], "{response:?}");
    assert_eq!(response.field("ratelimit"), None, "{response:?}");
    response
}
