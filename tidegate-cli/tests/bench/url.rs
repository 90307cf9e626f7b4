//! Load for any address.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use serde_json::json;

use crate::{bench, ran};

/// A server whose connections do what `answer` says with each head: write something, and go on or not. It ends with the
/// test.
fn server(answer: impl Fn(&[String], &mut TcpStream) -> bool + Send + Sync + Clone + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/search?q=tide", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let lines: Vec<String> =
                        reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                    if lines.is_empty() || !answer(&lines, &mut stream) {
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
fn answers_are_counted_by_status_and_a_429_is_one() {
    let asked = Arc::new(AtomicUsize::new(0));
    let url = server(move |_, stream| {
        let status = if asked.fetch_add(1, Ordering::Relaxed) < 5 { "200 OK" } else { "429 Too Many Requests" };
        write(stream, status, "")
    });
    let found = crate::json(&format!("--url {url} --rate 200 --seconds 0.1 --json"));
    assert_eq!(found["latency"]["statuses"], json!({ "200": 5, "429": 15 }));
    assert_eq!((&found["latency"]["requests"], &found["latency"]["unanswered"]), (&json!(20), &json!(0)));
    let url = server(|_, stream| write(stream, "429 Too Many Requests", "retry-after: 1\r\n"));
    let (code, out, err) = ran(bench(&format!("--url {url} --rate 200 --seconds 0.1")).output().unwrap());
    assert_eq!(code, Some(0), "an answer is an answer: {err}");
    assert!(out.contains("status 429     20\n") && out.contains("\np99.9 µs "), "{out}");
}

#[test]
fn what_is_asked_is_what_was_said() {
    let (tell, told) = mpsc::channel();
    let url = server(move |lines, stream| {
        tell.send(lines.to_vec()).unwrap();
        write(stream, "200 OK", "connection: close\r\n");
        false
    });
    let mut command = bench(&format!("--url {url} --rate 1 --seconds 0.01 --connections 1"));
    let (code, _, err) = ran(command.args(["-H", "x-api-key: k1", "-d", "{}"]).output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    let head = told.recv().unwrap();
    assert_eq!(head[0], "POST /search?q=tide HTTP/1.1");
    assert!(head.contains(&"x-api-key: k1".to_owned()) && head.contains(&"content-length: 2".to_owned()), "{head:?}");
    assert_eq!(told.try_iter().count(), 0, "one request was due");
}

#[test]
fn a_connection_that_the_server_closes_is_opened_again() {
    let url = server(|_, stream| {
        write(stream, "200 OK", "connection: close\r\n");
        false
    });
    let found = crate::json(&format!("--url {url} --rate 200 --seconds 0.2 --connections 2 --json"));
    assert_eq!(found["latency"]["statuses"], json!({ "200": 40 }));
}

#[test]
fn requests_without_an_answer_are_a_no() {
    let url = server(|_, _| false);
    let (code, out, err) = ran(bench(&format!("--url {url} --rate 100 --seconds 0.1 --json")).output().unwrap());
    assert_eq!(code, Some(1), "{err}");
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&found["latency"]["unanswered"], &found["latency"]["requests"]), (&json!(10), &json!(10)));
}

#[test]
fn an_address_that_cannot_be_loaded_is_not_repeated() {
    for (line, expected) in [
        ("--url http://127.0.0.1:1/?key=hunter2", "error: --url: nobody listens there\n"),
        ("--url https://127.0.0.1:1/?key=hunter2", "error: --url: write a URL that begins with http://"),
        ("--url /hunter2", "error: --url: write a URL that begins with http://"),
        ("--url http://127.0.0.1:1/ -H hunter2", "error: --header: a header is written 'name: value'; number 1 is not"),
    ] {
        let (code, out, err) = ran(bench(line).output().unwrap());
        assert!(code == Some(2) && out.is_empty() && err.starts_with(expected), "{line}: {err}");
        assert!(!err.contains("hunter2"), "{line}: {err}");
    }
}
