//! Servers with foreign data, a password, no process or an old version: each gives an error of its own kind that says what to
//! do, reveals no secret, and destroys nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::{
    count_allowed, key_name, limits_with_window, long_timeout_options, one_limit_of_each_kind, retry_while_transient,
};
use tidegate::limits::{Period, Periods, Window};
use tidegate::spi::{Plan, PlanMode, Store};
use tidegate::{Limit, Limiter, OnFailure, Request, Rule, RuleSet, StoreError, StoreErrorKind};
use tidegate_redis::RedisStore;

/// A key of another type exists under the name of a limit's key.
#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_is_not_overwritten() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for limit in one_limit_of_each_kind(10) {
            let limiter = limiter(limit, &store);
            let name = key_name(limiter.plan(&Request::new("")).checks()[0].key());
            let _: () = redis::cmd("RPUSH").arg(&name).arg("a").arg("b").query(&mut connection).unwrap();
            for error in every_operation(&limiter).await {
                assert_eq!(error.kind(), StoreErrorKind::Unreadable, "{kind:?} {limit:?}: {error}");
                assert!(!error.is_possibly_applied() && !error.is_transient(), "{kind:?} {limit:?}: {error:?}");
            }
            let kept: Vec<String> = redis::cmd("LRANGE").arg(&name).arg(0).arg(-1).query(&mut connection).unwrap();
            assert_eq!(kept, ["a", "b"], "{kind:?} {limit:?}");
        }
    }
}

/// A value that no known version has written, perhaps written by a newer one.
#[tokio::test]
async fn an_unreadable_value_is_an_error_and_is_not_overwritten() {
    let texts = ["v2:whatever", "", "hello", "{\"tokens\":3}", "-5", "3.5", "v2:1789948800000000", "a,b", "\0\0\0"];
    assert_unreadable(|_| texts.map(|text| text.as_bytes().to_vec()).to_vec()).await;
}

/// The same for numbers that no state can have, and for a log with a wrong sum.
#[tokio::test]
async fn a_number_that_is_not_a_valid_state_is_an_error_and_is_not_overwritten() {
    assert_unreadable(|limit| match limit {
        // The last three have sixteen characters, like a bucket's state, and Lua would parse them as numbers.
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
            let moments = ["9999999999999999", "0x65c0123456789a", "178994880000000.", "         1.79e15"];
            moments.map(|text| text.as_bytes().to_vec()).into_iter().chain([b"1".repeat(40)]).collect()
        }
        // Months from July 2255 on begin after 2^53 microseconds.
        Limit::FixedWindow(limit) if limit.months() == Some(1) => {
            vec![b"50000003426".to_vec(), b"59999999999".to_vec()]
        }
        Limit::FixedWindow(limit) if limit.months().is_some() => vec![b"50000000286".to_vec(), b"59999999999".to_vec()],
        Limit::FixedWindow(_) => vec![b"59999999999".to_vec(), b"99999999999999999990000000001".to_vec()],
        Limit::SlidingLog(_) => vec![b"\0\x09\0\x06\x5c\0\0\0\0\0\x01".to_vec(), b"\0\x09".to_vec()],
        // The first two are too short; the others have numbers that are no amounts.
        Limit::Quota(_) => {
            ["12345678", "5,", "712345678,", "712345678,x", "712345678,1,2", "99999999999999999999999999"]
                .map(|text| text.as_bytes().to_vec())
                .to_vec()
        }
        Limit::Concurrency(_) => vec![b"\0\x01\0".to_vec(), b"\0\x09".to_vec()],
        _ => vec![b"99999999999999999999,5".to_vec(), b"29832480,99999999999999999999".to_vec()],
    })
    .await;
}

/// One key of a plan has an unreadable value: the whole plan fails, and the other keys are unchanged.
#[tokio::test]
async fn one_unreadable_value_leaves_the_other_checks_untouched() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for bad in 0..5 {
            let rules = one_limit_of_each_kind(10).into_iter().enumerate();
            let rules = RuleSet::new(rules.map(|(i, limit)| closed(format!("r{i}"), limit))).unwrap();
            let limiter = Limiter::new(rules, store.clone());
            let name = key_name(limiter.plan(&Request::new("")).checks()[bad].key());
            let _: () = redis::cmd("SET").arg(&name).arg("newer").query(&mut connection).unwrap();
            for error in every_operation(&limiter).await {
                assert_eq!(error.kind(), StoreErrorKind::Unreadable, "{kind:?}, check {bad}: {error}");
                assert!(error.to_string().contains(&format!("check {}", bad + 1)), "says which: {error}");
            }
            let keys: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
            assert_eq!(keys, 1, "{kind:?}, check {bad}");
            let kept: String = redis::cmd("GETDEL").arg(&name).query(&mut connection).unwrap();
            assert_eq!(kept, "newer", "{kind:?}, check {bad}");
        }
    }
}

/// Errors reach logs, so they must contain neither the right password nor the wrong one.
#[tokio::test]
async fn a_missing_or_wrong_password_is_reported_without_the_password() {
    for kind in KINDS {
        let server = Server::start_with(kind, &["--requirepass", "correct-horse"]);
        let wrong = server.bare_url().replace("redis://", "redis://:battery-staple@");
        for (url, remedy) in [(server.bare_url(), "put it into the URL"), (wrong, "rejects the user or the password")] {
            let error = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{kind:?}: {error}");
            assert!(error.to_string().contains(remedy) && !error.is_transient(), "{kind:?}: {error}");
            let text = format!("{error} {error:?}");
            assert!(!text.contains("correct-horse") && !text.contains("battery-staple"), "{kind:?}: {text}");
        }
        let store = server.store_with(long_timeout_options()).await;
        assert!(!format!("{store:?}").contains("correct-horse"));
        assert_eq!(count_allowed(&limiter(one_limit_of_each_kind(3)[0], &store), 1, 5).await, 3);
    }
}

/// A server that is not up yet gives a transient error.
#[tokio::test]
async fn an_address_without_a_server_is_reported() {
    let unused = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let error = RedisStore::connect(&format!("redis://:secret@{unused}")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.is_transient() && error.to_string().contains("is it up?"), "{error}");
    assert!(!format!("{error:?}").contains("secret"));
}

/// A typing error in a URL is found at startup, not at the first request.
#[tokio::test]
async fn an_invalid_url_is_refused_at_startup() {
    for url in ["", "http://user:secret@localhost", "redis://localhost:port", "not a url"] {
        let error = RedisStore::connect(url).await.unwrap_err();
        assert!(!error.is_transient() && !error.to_string().contains("secret"), "{url:?}: {error}");
        assert!(error.to_string().contains("URL"), "{url:?}: {error}");
    }
}

/// A plan without checks and a call without keys succeed.
#[tokio::test]
async fn an_empty_plan_is_allowed() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options()).await;
        let nothing = Plan::new([]).unwrap();
        assert_eq!(store.decide(&nothing).await.unwrap().granted(), 1, "{kind:?}");
        assert_eq!(store.decide(&nothing.clone().with_peek()).await.unwrap().granted(), 1, "{kind:?}");
        store.forget(&[]).await.unwrap();
    }
}

/// The server dies between two requests: requests fail at once with a reason, and none is admitted. The store reconnects by
/// itself to a new server at the same address and loads the scripts.
#[tokio::test]
async fn a_dead_server_is_an_error_and_its_replacement_is_used() {
    for kind in KINDS {
        let socket = std::env::temp_dir().join(format!("tidegate-{}-{kind:?}.sock", std::process::id()));
        let socket = socket.to_str().unwrap();
        let mut server = Server::start_with(kind, &["--unixsocket", socket]);
        let store = RedisStore::connect_with(&format!("redis+unix://{socket}"), long_timeout_options()).await.unwrap();
        for limit in one_limit_of_each_kind(5) {
            let limiter = limiter(limit, &store);
            assert_eq!(count_allowed(&limiter, 1, 2).await, 2, "{kind:?} {limit:?}");
            server.kill();
            for _ in 0..3 {
                let error = limiter.check(&Request::new("")).await.unwrap_err();
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{kind:?} {limit:?}: {error}");
                assert!(error.is_transient(), "{kind:?} {limit:?}: {error:?}");
            }
            server = Server::start_with(kind, &["--unixsocket", socket]);
            let decision = retry_while_transient(async || limiter.check(&Request::new("")).await).await;
            assert_eq!(decision.remaining(), Some(4), "{kind:?} {limit:?}");
        }
        let _ = std::fs::remove_file(socket);
    }
}

/// No server this old is installed, so the test fakes one; it is the only fake server.
#[tokio::test]
async fn a_server_with_an_old_version_is_refused() {
    for (info, version) in [
        ("# Server\r\nredis_version:6.2.14\r\nredis_mode:standalone\r\n", "6.2.14"),
        ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:7.0.1\r\n", "7.0.1"),
        ("# Server\r\n", "does not report its version"),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        thread::spawn(move || listener.incoming().for_each(|stream| fake_server(&stream.unwrap(), info)));
        let error = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(version) && !error.is_transient(), "{error}");
    }
}

// === Helpers ===

fn limiter(limit: Limit, store: &RedisStore) -> Limiter<RedisStore> {
    Limiter::new(RuleSet::new([closed("api", limit)]).unwrap(), store.clone())
}

/// A rule that turns a store failure into an error.
fn closed(name: impl Into<String>, limit: Limit) -> Rule {
    Rule::new(name.into(), limit).with_on_failure(OnFailure::Closed)
}

/// The errors of every operation; none may succeed.
async fn every_operation(limiter: &Limiter<RedisStore>) -> Vec<StoreError> {
    let request = Request::new("");
    let each = limiter.plan(&request).with_mode(PlanMode::CountEach);
    vec![
        limiter.check(&request).await.unwrap_err(),
        limiter.take_up_to(&request, 3).await.unwrap_err(),
        limiter.peek(&request).await.unwrap_err(),
        limiter.charge(&request).await.unwrap_err(),
        limiter.store().decide(&each).await.unwrap_err(),
    ]
}

/// Every operation on a key with one of these values fails with the right error and keeps the value.
async fn assert_unreadable(values: impl Fn(&Limit) -> Vec<Vec<u8>>) {
    let mut wrong = Vec::new();
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        let calendar = [Window::MONTH, Window::YEAR].map(|window| Limit::fixed_window(10, window).unwrap());
        let quota = Limit::quota(10, Periods::utc(Period::Month)).unwrap();
        for limit in limits_with_window(10, Duration::from_secs(60)).into_iter().chain(calendar).chain([quota]) {
            let limiter = limiter(limit, &store);
            let request = Request::new("");
            let name = key_name(limiter.plan(&request).checks()[0].key());
            for value in values(&limit) {
                let _: () = redis::cmd("SET").arg(&name).arg(&value).query(&mut connection).unwrap();
                let answers = [
                    ("peek", limiter.peek(&request).await.map(drop)),
                    ("check", limiter.check(&request).await.map(drop)),
                    ("take_up_to", limiter.take_up_to(&request, 3).await.map(drop)),
                    ("charge", limiter.charge(&request).await),
                ];
                let kept: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
                let case = format!("{kind:?} {} {:?}", limit.algorithm(), value.escape_ascii().to_string());
                for (operation, answer) in answers {
                    match answer {
                        Err(error) if error.kind() == StoreErrorKind::Unreadable && !error.is_possibly_applied() => {}
                        other => wrong.push(format!("{case}: {operation} said {other:?}")),
                    }
                }
                if kept != value {
                    wrong.push(format!("{case}: became {:?}", kept.escape_ascii().to_string()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Answers `info` to INFO and OK to anything else.
fn fake_server(stream: &TcpStream, info: &str) {
    let (mut lines, mut writer) = (BufReader::new(stream), stream);
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        let words: usize = line.trim().trim_start_matches('*').parse().unwrap();
        let mut command = Vec::new();
        for _ in 0..words {
            line.clear();
            lines.read_line(&mut line).unwrap();
            let mut word = vec![0; line.trim().trim_start_matches('$').parse::<usize>().unwrap() + 2];
            lines.read_exact(&mut word).unwrap();
            command.push(String::from_utf8(word).unwrap().trim().to_uppercase());
        }
        line.clear();
        let reply = if command[0] == "INFO" { format!("${}\r\n{info}\r\n", info.len()) } else { "+OK\r\n".into() };
        writer.write_all(reply.as_bytes()).unwrap();
    }
}
