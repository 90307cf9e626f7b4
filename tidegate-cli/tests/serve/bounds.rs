//! Bounds on clients: file descriptors, connections and requests of one client, bodies that nobody reads. The admin address and
//! health answer during all of it.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;

use serde_json::json;
use tokio::net::TcpSocket;

use crate::serve::hostile_http2::{get_all, is_closed_with_goaway};
use crate::serve::{GATEWAY_REQUESTS, Running, ask, ask_with, serve_with_files};

/// An upstream that answers each request once the test sends a message.
struct HeldUpstream {
    url: String,
    /// A sender for each request that has arrived; a message to it releases the response.
    requests: mpsc::Receiver<mpsc::Sender<()>>,
}

impl HeldUpstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (url, (arrived, requests)) = (format!("http://{}", listener.local_addr().unwrap()), mpsc::channel());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, arrived) = (stream.unwrap(), arrived.clone());
                std::thread::spawn(move || {
                    let (mut head, mut byte) = (Vec::new(), [0]);
                    while stream.read(&mut byte).is_ok_and(|read| read > 0) {
                        head.push(byte[0]);
                        if head.ends_with(b"\r\n\r\n") {
                            let (release, released) = mpsc::channel();
                            let _ = arrived.send(release);
                            let _ = released.recv();
                            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nat last");
                            head.clear();
                        }
                    }
                });
            }
        });
        Self { url, requests }
    }
}

/// Connects from an address of its own in 127.0.0.0/8.
fn connect_from(source: [u8; 4], address: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((source, 0))).unwrap();
        let stream = socket.connect(address.parse().unwrap()).await.unwrap().into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    })
}

const GET: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// The whole response to a request on this connection; empty if the server closes the connection.
fn response(mut stream: TcpStream, request: &[u8]) -> String {
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Connections that a client holds.
fn idle_connections(address: &str, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
}

#[test]
fn clients_of_one_address_do_not_use_up_the_descriptors_of_others() {
    let upstream = HeldUpstream::start();
    let mut server = Running::start_command(serve_with_files(
        160,
        &["--gateway", "127.0.0.1:0", "--upstream", &upstream.url, "--header-timeout", "600"],
    ));
    server.wait_for_log("the process may open only 160 files");
    let mut held = idle_connections(&server.gateway, 60);
    server.wait_for_log("--gateway: all connections are in use");
    held.extend(idle_connections(&server.grpc, 60));
    server.wait_for_log("--grpc: all connections are in use");
    for address in [&server.http, &server.admin] {
        assert_eq!(ask(address, "GET", "/healthz", ""), (200, "ok\n".to_owned()), "{address}");
    }
    assert_eq!(server.check("{}")["allowed"], json!(true));
    held.extend(idle_connections(&server.http, 60));
    server.wait_for_log("--http: all connections are in use");
    assert_eq!(ask(&server.admin, "GET", "/readyz", "").0, 200);
    assert!(server.metric("tidegate_bound_reached_total{address=\"gateway\",bound=\"max_connections\"} ") >= 1);
    drop(held);
    assert_eq!(server.check("{}")["allowed"], json!(true), "all of them accept again");
}

#[test]
fn connections_that_cannot_be_accepted_are_logged_once_and_accepted_later() {
    let mut server = Running::start(&[]);
    let pid = server.child.id().to_string();
    let set_files = |files: &str| {
        assert!(Command::new("prlimit").args(["--pid", &pid, files]).status().unwrap().success());
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    set_files(&format!("--nofile={descriptors}:"));
    let held = idle_connections(&server.http, 20);
    let line = server.wait_for_log("--http: connections cannot be accepted: ");
    assert!(line.contains("Too many open files"), "{line}");
    set_files("--nofile=1000:");
    assert_eq!(server.check("{}")["allowed"], json!(true));
    let line = server.wait_for_log("--http");
    assert!(line.contains("the bound is no longer reached"), "no line for each attempt: {line}");
    drop(held);
}

#[test]
fn one_client_cannot_have_all_connections() {
    let server = Running::start(&["--max-connections", "20", "--exempt-clients", "none", "--header-timeout", "600"]);
    let held: Vec<_> = (0..10).map(|_| connect_from([127, 0, 0, 2], &server.http)).collect();
    for _ in 0..30 {
        assert_eq!(response(connect_from([127, 0, 0, 2], &server.http), GET), "", "it has half of the connections");
    }
    for client in 3..6 {
        let answer = response(connect_from([127, 0, 0, client], &server.http), GET);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let refused = "tidegate_bound_reached_total{address=\"http\",bound=\"max_connections_per_client\"} ";
    assert_eq!(server.metric(refused), 30);
    drop(held);
    // The server notices the end of these connections at some time.
    while response(connect_from([127, 0, 0, 2], &server.http), GET).is_empty() {}
}

#[test]
fn requests_under_way_are_bounded_for_each_client_behind_a_trusted_proxy() {
    let (upstream, folder) = (HeldUpstream::start(), tempfile::tempdir().unwrap());
    let path = folder.path().join("rules.yaml");
    fs::write(
        &path,
        "version: 1\nidentify: { trusted_proxies: 127.0.0.1 }\nrules: [{ id: a, per: [client], fixed_window: { limit: 99, window: 1h }, on_failure: share }]\n",
    )
    .unwrap();
    let flags = ["--exempt-clients", "none", "--max-requests-per-client", "2", "--max-requests", "5"];
    let gateway = ["--rules", path.to_str().unwrap(), "--gateway", "127.0.0.1:0", "--upstream", &upstream.url];
    let server = Running::start(&[&flags[..], &gateway[..]].concat());
    let send = |source: [u8; 4], client: &str| {
        let mut stream = connect_from(source, &server.gateway);
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-forwarded-for: {client}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let (proxy, stranger) = ([127, 0, 0, 1], [127, 0, 0, 9]);
    let mut held = Vec::new();
    let mut hold = |source, client| {
        let stream = send(source, client);
        held.push((stream, upstream.requests.recv().unwrap()));
    };
    hold(proxy, "203.0.113.1");
    hold(proxy, "203.0.113.1");
    for _ in 0..3 {
        let refused = response(send(proxy, "203.0.113.1"), b"");
        assert!(refused.starts_with("HTTP/1.1 429 ") && refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    }
    hold(proxy, "203.0.113.2");
    // A client that is no proxy cannot name another one.
    hold(stranger, "203.0.113.3");
    hold(stranger, "203.0.113.4");
    let refused = response(send(stranger, "203.0.113.5"), b"");
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    let full = response(send(proxy, "203.0.113.6"), b"");
    assert!(full.starts_with("HTTP/1.1 503 ") && full.contains("\r\nretry-after: 1\r\n"), "{full}");
    assert_eq!(server.metric(GATEWAY_REQUESTS), 5);
    for (stream, release) in held {
        release.send(()).unwrap();
        assert!(response(stream, b"").ends_with("at last"));
    }
    let reached =
        |bound: &str| server.metric(&format!("tidegate_bound_reached_total{{address=\"gateway\",bound=\"{bound}\"}} "));
    assert_eq!((reached("max_requests_per_client"), reached("max_requests")), (4, 1));
}

/// Bodies are read before the decision, so anybody could fill their memory.
#[test]
fn one_client_cannot_take_the_memory_for_bodies_from_others() {
    let (upstream, folder) = (HeldUpstream::start(), tempfile::tempdir().unwrap());
    let path = folder.path().join("rules.yaml");
    fs::write(
        &path,
        "version: 1\nmax_body: 16777216\nidentify: { trusted_proxies: 127.0.0.1 }\n\
         rules: [{ id: a, per: ['body:a'], fixed_window: { limit: 99, window: 1h }, on_failure: share }]\n",
    )
    .unwrap();
    let gateway = ["--rules", path.to_str().unwrap(), "--gateway", "127.0.0.1:0", "--upstream", &upstream.url];
    let server = Running::start(&[&["--exempt-clients", "none"], &gateway[..]].concat());
    let send = |client: &str, length: usize| {
        let mut stream = TcpStream::connect(&server.gateway).unwrap();
        let lines = format!("connection: close\r\nx-forwarded-for: {client}\r\ncontent-length: {length}");
        let body = format!("{{{}}}", " ".repeat(length - 2));
        stream.write_all(format!("POST / HTTP/1.1\r\nhost: a\r\n{lines}\r\n\r\n{body}").as_bytes()).unwrap();
        stream
    };
    // The upstream does not read it, so that it stays in memory.
    let held = (send("203.0.113.1", 16 << 20), upstream.requests.recv().unwrap());
    for _ in 0..3 {
        let refused = response(send("203.0.113.1", 200_000), b"");
        assert!(refused.starts_with("HTTP/1.1 429 ") && refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    }
    let small = (send("203.0.113.1", 65_536), upstream.requests.recv().unwrap());
    let other = (send("203.0.113.2", 16 << 20), upstream.requests.recv().unwrap());
    let refused = "tidegate_bound_reached_total{address=\"gateway\",bound=\"large_bodies\"} ";
    assert_eq!(server.metric(refused), 3);
    drop((held, small, other));
}

/// Idle upstream connections are not held by clients that take nothing of their responses.
#[test]
fn an_http2_client_that_takes_nothing_is_disconnected() {
    let upstream = HeldUpstream::start();
    let flags = ["--exempt-clients", "none", "--client-timeout", "1"];
    let gateway = ["--gateway", "127.0.0.1:0", "--upstream", &upstream.url];
    let mut server = Running::start(&[&flags[..], &gateway[..]].concat());
    let client = get_all(TcpStream::connect(&server.gateway).unwrap(), 0, 50);
    for _ in 0..50 {
        upstream.requests.recv().unwrap().send(()).unwrap();
    }
    assert!(is_closed_with_goaway(client));
    server.wait_for_log("--gateway: clients read too slowly");
    while server.metric(GATEWAY_REQUESTS) > 0 || server.metric("tidegate_upstream_requests ") > 0 {}
}

/// The answers would stay in memory for as long as the connection.
#[test]
fn an_http2_client_that_takes_no_page_of_the_admin_address_is_disconnected() {
    let mut server = Running::start(&["--exempt-clients", "none", "--client-timeout", "1"]);
    let client = get_all(TcpStream::connect(&server.admin).unwrap(), 0, 50);
    assert!(is_closed_with_goaway(client));
    server.wait_for_log("--admin: clients read too slowly");
}

/// Joining header lines by name took seconds for as many names as a body can have.
#[test]
fn a_check_with_too_many_entries_is_a_bad_request() {
    let server = Running::start(&[]);
    let object = |count: usize| {
        let mut text = String::new();
        for number in 0..count {
            write!(text, "{}\"n{number}\":\"\"", if number == 0 { "" } else { "," }).unwrap();
        }
        text
    };
    for field in ["headers", "attributes"] {
        let (status, answer) = server.post("/v1/check", &format!("{{\"{field}\":{{{}}}}}", object(70_000)));
        assert_eq!(status, 400, "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("at most 256 entries"), "{answer}");
        assert_eq!(server.post("/v1/check", &format!("{{\"{field}\":{{{}}}}}", object(256))).0, 200);
        assert_eq!(server.post("/v1/check", &format!("{{\"{field}\":{{{}}}}}", object(257))).0, 400);
    }
    let values = |count: usize| format!("{{\"headers\":{{\"x-a\":[{}]}}}}", vec!["\"v\""; count].join(","));
    assert_eq!((server.post("/v1/check", &values(256)).0, server.post("/v1/check", &values(257)).0), (200, 400));
    let two = |count: usize| {
        let list = vec!["\"v\""; count].join(",");
        format!("{{\"headers\":{{\"x-a\":[{list}],\"x-b\":[{list}]}}}}")
    };
    assert_eq!((server.post("/v1/check", &two(128)).0, server.post("/v1/check", &two(129)).0), (200, 400));
    let checks = format!("{{\"checks\":[{}]}}", vec!["{}"; 300_000].join(","));
    assert_eq!(server.post("/v1/check/batch", &checks).0, 400);
}

/// Clients on keep-alive got a broken pipe, or the next response.
#[test]
fn a_response_before_the_body_is_read_keeps_the_connection_or_announces_its_end() {
    let server = Running::start(&[]);
    let mut stream = TcpStream::connect(&server.http).unwrap();
    let body = "x".repeat(200_000);
    for _ in 0..20 {
        let head = "POST /nowhere HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&head));
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 404 ") && !head.contains("connection: close"), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
        let mut response = vec![0; length];
        stream.read_exact(&mut response).unwrap();
        assert!(response.starts_with(br#"{"error":"not_found","#));
    }
    drop(stream);
    let (status, _) = ask_with(&server.http, "POST", "/v1/check", &[], "{}");
    assert_eq!(status, 200);
    let stream = TcpStream::connect(&server.http).unwrap();
    let declared = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2000000\r\n\r\n{";
    let answer = response(stream, declared);
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
}
