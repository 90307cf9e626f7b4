//! Requests that two servers could read in two ways. Whoever gets one past the gateway has a request that nobody counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::Request;

use crate::{exchange, gateway, mirror};

/// What would be a second request, to a server that reads the first one in another way.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n";

/// A gateway, and how many requests have come to its upstream.
async fn watched() -> (SocketAddr, Arc<AtomicU32>) {
    let seen = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&seen);
    let app = mirror().layer(axum::middleware::map_request(move |request: Request| {
        count.fetch_add(1, Ordering::Relaxed);
        async { request }
    }));
    (gateway(app).await, seen)
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_the_connection_closed() {
    let (gateway, seen) = watched().await;
    for head in [
        "content-length: 5\r\ncontent-length: 6",
        "content-length: 5, 6",
        "content-length: +5",
        "content-length: -5",
        "content-length: 5 5",
        "content-length: 0x5",
        "content-length: 99999999999999999999",
        "transfer-encoding: gzip",
        "transfer-encoding: chunked, gzip",
        "transfer-encoding: xchunked",
        "transfer-encoding: \u{b}chunked",
        "transfer-encoding : chunked",
        "transfer-encoding:\r\n chunked",
        "x-folded: a\r\n content-length: 5",
        "x-folded: a\r\n\tcontent-length: 5",
        " content-length: 5",
        "x-bare: a\rcontent-length: 5",
        "x-zero: a\0b",
        "no colon",
        ": no name",
        "host: b",
        "host: a/b",
    ] {
        let heard = exchange(gateway, &format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\nhello{HIDDEN}")).await;
        assert!(heard.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head:?}: {heard}");
        assert!(!heard.contains("/hidden"), "{head:?}: {heard}");
    }
    assert_eq!(seen.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_body_whose_end_cannot_be_told_is_refused_and_the_connection_closed() {
    let (gateway, _) = watched().await;
    for body in [
        "x\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "4\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
    ] {
        let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        let heard = exchange(gateway, &format!("{head}{body}{HIDDEN}")).await;
        assert!(heard.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{body:?}: {heard}");
        assert!(!heard.contains("/hidden"), "{body:?}: {heard}");
    }
}

/// Of a length and an encoding, the encoding is right (RFC 9112, section 6.3). Whoever stands in front of the gateway may think
/// otherwise.
#[tokio::test]
async fn a_length_beside_an_encoding_is_refused_and_the_connection_closed() {
    let (gateway, seen) = watched().await;
    for lines in [
        "content-length: 5\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 5",
        "Transfer-Encoding: chunked\r\ncontent-length: 5\r\ncontent-length: 6",
        "content-length: 5\r\ntransfer-encoding: chunked\r\nCONTENT-LENGTH: 5",
    ] {
        for before in ["", "\r\n", "GET /first HTTP/1.1\r\nhost: a\r\n\r\n"] {
            let asked = seen.load(Ordering::Relaxed);
            let text = format!("{before}POST / HTTP/1.1\r\nhost: a\r\n{lines}\r\n\r\n2\r\nhi\r\n0\r\n\r\n{HIDDEN}");
            let heard = exchange(gateway, &text).await;
            let refused = heard.rfind("HTTP/1.1 ").map(|start| &heard[start..]).unwrap();
            assert!(refused.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{lines:?}: {heard}");
            assert!(refused.contains("connection: close\r\n") && refused.contains("Transfer-Encoding"), "{heard}");
            let first = u32::from(before.starts_with("GET"));
            assert_eq!(seen.load(Ordering::Relaxed), asked + first, "{lines:?}");
        }
    }
}

/// What a body looks like and how it is read differ here: a head behind it would not be seen.
#[tokio::test]
async fn behind_a_body_that_cannot_be_measured_nothing_is_served() {
    let (gateway, seen) = watched().await;
    let both = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    for first in [
        "transfer-encoding: chunked\r\n\r\n0\r\nx: y\n\nX /\nContent-Length: 99999\n\nz: z\r\n\r\n".to_owned(),
        "transfer-encoding: chunked\r\n\r\n0\r\n\nX /\nContent-Length: 99999\n\nz: z\r\n\r\n".to_owned(),
        format!("transfer-encoding: chunked\r\n\r\n{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(70)),
        format!("content-length:{}5\r\n\r\nhello", " ".repeat(60)),
    ] {
        let before = seen.load(Ordering::Relaxed);
        let heard = exchange(gateway, &format!("POST / HTTP/1.1\r\nhost: a\r\n{first}{both}{HIDDEN}")).await;
        let last = heard.rfind("HTTP/1.1 ").map(|start| &heard[start..]).unwrap();
        assert!(last.starts_with("HTTP/1.1 400 "), "{first:?}: {heard}");
        assert!(seen.load(Ordering::Relaxed) <= before + 1, "{first:?}: {heard}");
    }
}

/// Two lengths that agree are one.
#[tokio::test]
async fn a_length_that_was_said_twice_is_passed_on_once() {
    let (gateway, _) = watched().await;
    let lines = "connection: close\r\ncontent-length: 5\r\ncontent-length: 5";
    let heard = exchange(gateway, &format!("POST / HTTP/1.1\r\nhost: a\r\n{lines}\r\n\r\nhello")).await;
    assert_eq!(heard.matches("\ncontent-length: 5\n").count(), 1, "{heard}");
    assert!(heard.ends_with("body: hello"), "{heard}");
}

#[tokio::test]
async fn a_request_without_a_host_is_refused() {
    let (gateway, seen) = watched().await;
    assert!(exchange(gateway, "GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    assert_eq!(seen.load(Ordering::Relaxed), 0);
}
