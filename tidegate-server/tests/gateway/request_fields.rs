//! Header fields with more than one reading: what is judged is what the upstream receives.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate::{Limit, ManualClock, Rate, Rule};
use tidegate_server::gateway::GatewayOptions;

use crate::gateway::{START, exchange, gateway_with, get, limits, mirror, serve};

/// A gateway whose rules allow one request for each API key, host and cookie.
async fn limited_gateway() -> SocketAddr {
    let limit = Limit::token_bucket(1, Rate::per_hour(1).unwrap()).unwrap();
    let rules = [Rule::new("key", limit).with_per(["header:x-api-key"])];
    let upstream = format!("http://{}", serve(mirror()).await);
    gateway_with(&upstream, GatewayOptions::new(), limits(rules, &ManualClock::starting_at(START))).await
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or(response)
}

/// Otherwise every request has a fresh key for the rules, and the upstream sees none.
#[tokio::test]
async fn a_connection_field_that_names_a_field_of_the_rules_gets_400() {
    let gateway = limited_gateway().await;
    for names in ["x-api-key", "close, X-Api-Key", "host", "x-forwarded-for", "X-Forwarded-Host", "content-length"] {
        for key in 0..3 {
            let response = get(gateway, "/", &format!("connection: {names}\r\nx-api-key: made-up-{key}\r\n")).await;
            assert_eq!(status(&response), "400", "{names}: {response}");
            assert!(response.contains("Connection"), "{response}");
        }
    }
    let response = get(gateway, "/", "connection: x-other\r\nx-other: 1\r\nx-api-key: k\r\n").await;
    assert!(status(&response) == "200" && !response.contains("x-other"), "{response}");
}

#[tokio::test]
async fn a_repeated_key_gets_400_and_counts_for_nobody() {
    let gateway = limited_gateway().await;
    let response = get(gateway, "/", "x-api-key: a\r\nx-api-key: b\r\n").await;
    assert_eq!(status(&response), "400", "{response}");
    assert!(response.contains("header:x-api-key") && !response.contains("ratelimit"), "{response}");
    for key in ["a", "b"] {
        assert_eq!(status(&get(gateway, "/", &format!("x-api-key: {key}\r\n")).await), "200");
    }
}

#[tokio::test]
async fn keys_that_differ_only_in_invalid_utf8_have_limits_of_their_own() {
    let gateway = limited_gateway().await;
    for key in [b"\xff", b"\xfe"] {
        for expected in ["200", "429"] {
            let mut connection = crate::gateway::RawConnection::connect(gateway).await;
            let head = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-api-key: k";
            let bytes = [&head[..], key, b"\r\n\r\n"].concat();
            tokio::io::AsyncWriteExt::write_all(&mut connection.stream, &bytes).await.unwrap();
            let response = connection.receive_to_end().await;
            assert_eq!(status(&response), expected, "{key:?}: {response}");
        }
    }
}

#[tokio::test]
async fn another_spelling_of_a_name_does_not_reach_the_upstream() {
    let gateway = limited_gateway().await;
    let response = get(gateway, "/", "x_api_key: other\r\nx-api-key: k\r\nx_forwarded_for: 1\r\n").await;
    assert!(response.contains("\nx-api-key: k\n"), "{response}");
    assert!(!response.contains("x_api_key") && !response.contains("x_forwarded_for"), "{response}");
}

#[tokio::test]
async fn fields_that_would_redirect_an_upstream_do_not_reach_it() {
    let gateway = limited_gateway().await;
    let lines = "proxy: http://evil\r\nx-original-url: /admin\r\nx-rewrite-url: /admin\r\nforwarded: for=1\r\n\
                 x-real-ip: 1.2.3.4\r\nx-forwarded-prefix: /admin\r\nx-forwarded-port: 1\r\n";
    let response = get(gateway, "/", lines).await;
    assert_eq!(status(&response), "200", "{response}");
    for removed in ["evil", "/admin", "forwarded: for", "x-real-ip", "x-forwarded-port"] {
        assert!(!response.contains(removed), "{removed}: {response}");
    }
}

#[tokio::test]
async fn fields_of_a_trusted_proxy_reach_the_upstream() {
    let upstream = format!("http://{}", serve(mirror()).await);
    let options = GatewayOptions::new().with_trust_forwarded(true);
    let gateway = gateway_with(&upstream, options, limits([], &ManualClock::starting_at(START))).await;
    let response =
        get(gateway, "/", "forwarded: for=192.0.2.1\r\nx-real-ip: 192.0.2.1\r\nx-original-url: /admin\r\n").await;
    assert!(response.contains("\nforwarded: for=192.0.2.1, for=127.0.0.1\n"), "{response}");
    assert!(response.contains("\nx-real-ip: 192.0.2.1\n") && !response.contains("/admin"), "{response}");
}

/// In HTTP/1.1 such a request is refused.
#[tokio::test]
async fn a_length_is_forwarded_in_its_shortest_form() {
    let gateway = limited_gateway().await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let request = http::Request::post(format!("http://{gateway}/")).header("content-length", "005");
    let response = client.request(request.body("hello".into()).unwrap()).await.unwrap();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("\ncontent-length: 5\n") && text.ends_with("body: hello"), "{text}");
}

#[tokio::test]
async fn a_transfer_coding_other_than_chunked_gets_501() {
    let gateway = limited_gateway().await;
    for codings in ["gzip, chunked", "chunked, chunked", "identity, chunked"] {
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: {codings}\r\n\r\n");
        let response = exchange(gateway, &format!("{head}5\r\nhello\r\n0\r\n\r\n")).await;
        assert!(matches!(status(&response), "501" | "400"), "{codings}: {response}");
    }
}

/// A client of HTTP/2 sends each cookie in a line of its own.
#[tokio::test]
async fn cookies_of_http_2_reach_the_upstream_in_one_line() {
    let gateway = limited_gateway().await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Empty<Bytes>>();
    let request = http::Request::get(format!("http://{gateway}/")).header("cookie", "a=1").header("cookie", "b=2");
    let response = client.request(request.body(Empty::new()).unwrap()).await.unwrap();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("\ncookie: a=1; b=2\n"), "{text}");
}
