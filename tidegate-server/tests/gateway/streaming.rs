//! Bodies and trailers are streamed in both directions.

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use tidegate::ManualClock;
use tidegate_server::gateway::GatewayOptions;
use tokio::net::TcpListener;

use crate::gateway::{RawConnection, START, exchange, gateway, gateway_with, limits, mirror};

/// An upstream that returns each body frame as it arrives, and then the trailers.
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

/// With any buffering, client and upstream would wait for each other.
#[tokio::test]
async fn a_response_can_begin_before_its_request_ends() {
    let mut connection = RawConnection::connect(gateway(echo()).await).await;
    connection.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
    connection.receive_until("\r\n\r\n5\r\nfirst\r\n").await;
    connection.send("6\r\nsecond\r\n").await;
    connection.receive_until("6\r\nsecond\r\n").await;
    connection.send("0\r\n\r\n").await;
    connection.receive_until("0\r\n\r\n").await;
}

#[tokio::test]
async fn trailers_are_forwarded_both_ways() {
    let gateway = gateway(echo()).await;
    let head = "POST / HTTP/1.1\r\nhost: a\r\nconnection: te, close\r\nte: trailers\r\ntrailer: x-sum\r\n";
    let response =
        exchange(gateway, &format!("{head}transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n")).await;
    assert!(response.ends_with("2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n"), "{response}");
}

#[tokio::test]
async fn a_content_length_is_forwarded() {
    let gateway = gateway(mirror()).await;
    let response =
        exchange(gateway, "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello").await;
    assert!(response.contains("\ncontent-length: 5\n") && response.ends_with("body: hello"), "{response}");
}

#[tokio::test]
async fn the_body_of_a_get_is_forwarded() {
    let gateway = gateway(mirror()).await;
    let head = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n";
    let response = exchange(gateway, &format!("{head}transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")).await;
    assert!(response.ends_with("body: hi"), "{response}");
}

/// The gateway sends 100 Continue once the upstream reads the body.
#[tokio::test]
async fn a_request_with_expect_continue_is_answered_with_100() {
    let mut connection = RawConnection::connect(gateway(mirror()).await).await;
    connection.send("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n").await;
    connection.receive_until("HTTP/1.1 100 Continue\r\n\r\n").await;
    connection.send("hi").await;
    connection.receive_until("body: hi").await;
}

/// The client must be able to see that the response is incomplete.
#[tokio::test]
async fn a_truncated_response_stays_truncated() {
    for half in ["transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", "content-length: 8\r\n\r\nhalf"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let mut connection = RawConnection::new(listener.accept().await.unwrap().0);
            connection.receive_until("\r\n\r\n").await;
            connection.send(&format!("HTTP/1.1 200 OK\r\n{half}")).await;
        });
        let gateway =
            gateway_with(&upstream, GatewayOptions::new(), limits([], &ManualClock::starting_at(START))).await;
        let response = exchange(gateway, "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("half"), "{response}");
        assert!(!response.contains("\r\n0\r\n"), "{response}");
    }
}
