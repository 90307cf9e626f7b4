//! Bodies pass as they come, in both directions, with what follows them.

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use tidegate::ManualClock;
use tidegate_server::gateway::GatewayOptions;
use tokio::net::TcpListener;

use crate::{START, Wire, exchange, gateway, gateway_with, limits, mirror};

/// Says each part of a body back as it comes, and its trailers at the end.
fn echo() -> Router {
    Router::new().fallback(async |request: Request| {
        let trailer = request.headers().get("trailer").cloned();
        let mut response = Response::new(request.into_body());
        if let Some(trailer) = trailer {
            response.headers_mut().insert("trailer", trailer);
        }
        response
    })
}

/// Were anything kept back, both would wait for each other.
#[tokio::test]
async fn an_answer_begins_before_its_request_has_ended() {
    let mut wire = Wire::to(gateway(echo()).await).await;
    wire.say("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
    wire.hear("\r\n\r\n5\r\nfirst\r\n").await;
    wire.say("6\r\nsecond\r\n").await;
    wire.hear("6\r\nsecond\r\n").await;
    wire.say("0\r\n\r\n").await;
    wire.hear("0\r\n\r\n").await;
}

#[tokio::test]
async fn what_follows_a_body_passes_both_ways() {
    let gateway = gateway(echo()).await;
    let head = "POST / HTTP/1.1\r\nhost: a\r\nconnection: te, close\r\nte: trailers\r\ntrailer: x-sum\r\n";
    let heard =
        exchange(gateway, &format!("{head}transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n")).await;
    assert!(heard.ends_with("2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n"), "{heard}");
}

#[tokio::test]
async fn a_length_that_is_known_stays_known() {
    let gateway = gateway(mirror()).await;
    let heard =
        exchange(gateway, "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello").await;
    assert!(heard.contains("\ncontent-length: 5\n") && heard.ends_with("body: hello"), "{heard}");
}

#[tokio::test]
async fn even_a_get_may_have_a_body() {
    let gateway = gateway(mirror()).await;
    let head = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n";
    let heard = exchange(gateway, &format!("{head}transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")).await;
    assert!(heard.ends_with("body: hi"), "{heard}");
}

/// Who asks first whether to send the body is told to, once the upstream reads it.
#[tokio::test]
async fn a_body_is_sent_when_it_is_asked_for() {
    let mut wire = Wire::to(gateway(mirror()).await).await;
    wire.say("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n").await;
    wire.hear("HTTP/1.1 100 Continue\r\n\r\n").await;
    wire.say("hi").await;
    wire.hear("body: hi").await;
}

/// An upstream that breaks off must not look like one that has ended.
#[tokio::test]
async fn an_answer_that_breaks_off_is_not_taken_for_a_whole_one() {
    for half in ["transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", "content-length: 8\r\n\r\nhalf"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let mut wire = Wire { stream: listener.accept().await.unwrap().0, heard: String::new() };
            wire.hear("\r\n\r\n").await;
            wire.say(&format!("HTTP/1.1 200 OK\r\n{half}")).await;
        });
        let gateway = gateway_with(&upstream, GatewayOptions::new(), limits([], &ManualClock::at(START))).await;
        let heard = exchange(gateway, "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(heard.starts_with("HTTP/1.1 200 OK\r\n") && heard.contains("half"), "{heard}");
        assert!(!heard.contains("\r\n0\r\n"), "{heard}");
    }
}
