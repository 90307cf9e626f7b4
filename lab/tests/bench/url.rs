//! Load for any URL.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use serde_json::json;

use crate::bench::bench;
use crate::parse_output;

/// Starts a server that calls `respond` with the head of each request; `false` closes the connection. It ends with the test.
fn server(respond: impl Fn(&[String], &mut TcpStream) -> bool + Send + Sync + Clone + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/search?q=tide", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, respond) = (stream.unwrap(), respond.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let lines: Vec<String> =
                        reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                    if lines.is_empty() || !respond(&lines, &mut stream) {
                        return;
                    }
                }
            });
        }
    });
    url
}

fn write(stream: &mut TcpStream, status: &str, fields: &str) -> bool {
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 2\r\n{fields}\r\nok").is_ok()
}

#[test]
fn responses_are_counted_by_status_and_429_is_not_an_error() {
    let requests = Arc::new(AtomicUsize::new(0));
    let url = server(move |_, stream| {
        let status = if requests.fetch_add(1, Ordering::Relaxed) < 5 { "200 OK" } else { "429 Too Many Requests" };
        write(stream, status, "")
    });
    let report = crate::bench::json(&format!("--url {url} --rate 200 --seconds 0.1 --json"));
    assert_eq!(report["latency"]["statuses"], json!({ "200": 5, "429": 15 }));
    assert_eq!((&report["latency"]["requests"], &report["latency"]["unanswered"]), (&json!(20), &json!(0)));
    let url = server(|_, stream| write(stream, "429 Too Many Requests", "retry-after: 1\r\n"));
    let (code, out, err) = parse_output(bench(&format!("--url {url} --rate 200 --seconds 0.1")).output().unwrap());
    assert_eq!(code, Some(0), "a 429 is a response: {err}");
    assert!(out.contains("status 429     20\n") && out.contains("\np99.9 µs "), "{out}");
}

#[test]
fn the_request_has_the_method_path_headers_and_body_of_the_flags() {
    let (sender, heads) = mpsc::channel();
    let url = server(move |lines, stream| {
        sender.send(lines.to_vec()).unwrap();
        write(stream, "200 OK", "connection: close\r\n");
        false
    });
    let mut command = bench(&format!("--url {url} --rate 1 --seconds 0.01 --connections 1"));
    let (code, _, err) = parse_output(command.args(["-H", "x-api-key: k1", "-d", "{}"]).output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    let head = heads.recv().unwrap();
    assert_eq!(head[0], "POST /search?q=tide HTTP/1.1");
    assert!(head.contains(&"x-api-key: k1".to_owned()) && head.contains(&"content-length: 2".to_owned()), "{head:?}");
    assert_eq!(heads.try_iter().count(), 0, "one request was due");
}

#[test]
fn a_connection_closed_by_the_server_is_reopened() {
    let url = server(|_, stream| {
        write(stream, "200 OK", "connection: close\r\n");
        false
    });
    let report = crate::bench::json(&format!("--url {url} --rate 200 --seconds 0.2 --connections 2 --json"));
    assert_eq!(report["latency"]["statuses"], json!({ "200": 40 }));
}

#[test]
fn requests_without_a_response_cause_exit_code_1() {
    let url = server(|_, _| false);
    let (code, out, err) =
        parse_output(bench(&format!("--url {url} --rate 100 --seconds 0.1 --json")).output().unwrap());
    assert_eq!(code, Some(1), "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["latency"]["unanswered"], &report["latency"]["requests"]), (&json!(10), &json!(10)));
}

#[test]
fn an_unusable_url_is_rejected_without_repeating_it() {
    for (line, expected) in [
        ("--url http://127.0.0.1:1/?key=hunter2", "error: --url: cannot connect: nothing listens at this address\n"),
        ("--url https://127.0.0.1:1/?key=hunter2", "error: --url: only http:// URLs are supported"),
        ("--url /hunter2", "error: --url: only http:// URLs are supported"),
        ("--url http://127.0.0.1:1/ -H hunter2", "error: --header: write 'name: value'; number 1 is different"),
    ] {
        let (code, out, err) = parse_output(bench(line).output().unwrap());
        assert!(code == Some(2) && out.is_empty() && err.starts_with(expected), "{line}: {err}");
        assert!(!err.contains("hunter2"), "{line}: {err}");
    }
}
