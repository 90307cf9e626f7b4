//! Request smuggling: requests that two servers could read differently must not bypass the limits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::Request;

use crate::gateway::{exchange, gateway, mirror};

/// A second request, for a server that reads the body of the first one differently.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n";

/// A gateway, and the number of requests that reached its upstream.
async fn counting_gateway() -> (SocketAddr, Arc<AtomicU32>) {
    let upstream_requests = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&upstream_requests);
    let app = mirror().layer(axum::middleware::map_request(move |request: Request| {
        count.fetch_add(1, Ordering::Relaxed);
        async { request }
    }));
    (gateway(app).await, upstream_requests)
}

#[tokio::test]
async fn malformed_headers_get_400_and_close_the_connection() {
    let (gateway, upstream_requests) = counting_gateway().await;
    for head in [
        "content-length: 5\r\ncontent-length: 6",
        "content-length: 5, 6",
        "content-length: +5",
        "content-length: 05",
        "content-length: 010",
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
        let response = exchange(gateway, &format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\nhello{HIDDEN}")).await;
        assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head:?}: {response}");
        assert!(!response.contains("/hidden"), "{head:?}: {response}");
    }
    assert_eq!(upstream_requests.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_malformed_chunked_body_gets_400_and_closes_the_connection() {
    let (gateway, _) = counting_gateway().await;
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
        let response = exchange(gateway, &format!("{head}{body}{HIDDEN}")).await;
        assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{body:?}: {response}");
        assert!(!response.contains("/hidden"), "{body:?}: {response}");
    }
}

/// Transfer-Encoding overrides Content-Length (RFC 9112, section 6.3), but a proxy in front of the gateway may not know.
#[tokio::test]
async fn a_content_length_beside_a_transfer_encoding_gets_400_and_closes_the_connection() {
    let (gateway, upstream_requests) = counting_gateway().await;
    for lines in [
        "content-length: 5\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 5",
        "Transfer-Encoding: chunked\r\ncontent-length: 5\r\ncontent-length: 6",
        "content-length: 5\r\ntransfer-encoding: chunked\r\nCONTENT-LENGTH: 5",
    ] {
        for before in ["", "\r\n", "GET /first HTTP/1.1\r\nhost: a\r\n\r\n"] {
            let count_before = upstream_requests.load(Ordering::Relaxed);
            let text = format!("{before}POST / HTTP/1.1\r\nhost: a\r\n{lines}\r\n\r\n2\r\nhi\r\n0\r\n\r\n{HIDDEN}");
            let response = exchange(gateway, &text).await;
            let rejection = response.rfind("HTTP/1.1 ").map(|start| &response[start..]).unwrap();
            assert!(rejection.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{lines:?}: {response}");
            assert!(
                rejection.contains("connection: close\r\n") && rejection.contains("Transfer-Encoding"),
                "{response}"
            );
            let first = u32::from(before.starts_with("GET"));
            assert_eq!(upstream_requests.load(Ordering::Relaxed), count_before + first, "{lines:?}");
        }
    }
}

/// hyper may measure these bodies differently, so an ambiguous request after them could be missed.
#[tokio::test]
async fn no_request_is_served_after_a_body_of_uncertain_length() {
    let (gateway, upstream_requests) = counting_gateway().await;
    let both = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    for first in [
        "transfer-encoding: chunked\r\n\r\n0\r\nx: y\n\nX /\nContent-Length: 99999\n\nz: z\r\n\r\n".to_owned(),
        "transfer-encoding: chunked\r\n\r\n0\r\n\nX /\nContent-Length: 99999\n\nz: z\r\n\r\n".to_owned(),
        format!("transfer-encoding: chunked\r\n\r\n{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(70)),
        format!("content-length:{}5\r\n\r\nhello", " ".repeat(60)),
    ] {
        let before = upstream_requests.load(Ordering::Relaxed);
        let response = exchange(gateway, &format!("POST / HTTP/1.1\r\nhost: a\r\n{first}{both}{HIDDEN}")).await;
        let last = response.rfind("HTTP/1.1 ").map(|start| &response[start..]).unwrap();
        assert!(last.starts_with("HTTP/1.1 400 "), "{first:?}: {response}");
        assert!(upstream_requests.load(Ordering::Relaxed) <= before + 1, "{first:?}: {response}");
    }
}

#[tokio::test]
async fn a_repeated_equal_content_length_is_forwarded_once() {
    let (gateway, _) = counting_gateway().await;
    let lines = "connection: close\r\ncontent-length: 5\r\ncontent-length: 5";
    let response = exchange(gateway, &format!("POST / HTTP/1.1\r\nhost: a\r\n{lines}\r\n\r\nhello")).await;
    assert_eq!(response.matches("\ncontent-length: 5\n").count(), 1, "{response}");
    assert!(response.ends_with("body: hello"), "{response}");
}

#[tokio::test]
async fn a_request_without_a_host_gets_400() {
    let (gateway, upstream_requests) = counting_gateway().await;
    assert!(exchange(gateway, "GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    assert_eq!(upstream_requests.load(Ordering::Relaxed), 0);
}
