//! Several gateways on one real store share one exact limit, and slots that clients free by hanging up.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use conformance::serve_process::{ANY_PORT, ServeProcess};
use conformance::server::{KINDS, Server};
use conformance::suite::{left, long_timeout_options, serve, start_gateway, until};
use rustix::process::Signal;
use tidegate::limits::{Period, Periods};
use tidegate::rules::UsageKind;
use tidegate::{Limit, Limiter, Rate, Request, Rule, RuleSet};
use tidegate_redis::RedisStore;
use tidegate_tower::{Handle, LimitLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, Semaphore};

const GATEWAYS: usize = 12;
const CAPACITY: u64 = 10;
const REQUESTS: usize = 20;

/// Starts an upstream that counts its requests.
async fn upstream() -> (SocketAddr, Arc<AtomicU32>) {
    let seen = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&seen);
    let page = get(async move || {
        count.fetch_add(1, Ordering::Relaxed);
        "hello"
    });
    (serve(Router::new().route("/", page)).await, seen)
}

/// Starts a gateway with its own limiter and store connection.
async fn gateway(
    upstream: SocketAddr,
    store: &Server,
    rules: impl IntoIterator<Item = Rule>,
) -> (SocketAddr, Handle<RedisStore>) {
    let rules = RuleSet::new(rules).unwrap();
    let layer = LimitLayer::new(Limiter::new(rules, store.store_with(long_timeout_options()).await));
    let handle = layer.handle();
    (start_gateway(upstream, layer).await.0, handle)
}

/// Slots that all gateways share. Clients of a test do not outlast the lease.
fn slots(max: u64) -> Rule {
    Rule::new("exports", Limit::concurrency(max, Duration::from_secs(3600)).unwrap())
}

/// Clients hang up while their requests are decided, forwarded and answered, in any order. At the end all slots are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_hang_up_leave_no_slot_behind_at_any_gateway() {
    const SLOTS: u64 = 5;
    for kind in KINDS {
        let store = Server::start(kind);
        let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = upstream.local_addr().unwrap();
        // It answers never, and its connections are open as long as the gateway wants.
        let open = Arc::new(AtomicU32::new(0));
        let at_upstream = Arc::clone(&open);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = upstream.accept().await {
                let open = Arc::clone(&at_upstream);
                tokio::spawn(async move {
                    let mut bytes = [0; 1024];
                    let request = stream.read(&mut bytes).await.unwrap_or(0);
                    if request > 0 {
                        open.fetch_add(1, Ordering::SeqCst);
                        while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
                        open.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        let mut gateways = Vec::new();
        for _ in 0..3 {
            gateways.push(gateway(address, &store, [slots(SLOTS)]).await);
        }
        let mut connection = store.connection();
        for round in 0..20 {
            // Sometimes the server executes the takes of clients that have hung up by then.
            if round % 4 == 3 {
                let _: () = redis::cmd("CLIENT").arg(&["PAUSE", "10000000", "WRITE"]).query(&mut connection).unwrap();
            }
            let mut clients = Vec::new();
            for (gateway, _) in gateways.iter().cycle().take(12) {
                let mut stream = TcpStream::connect(gateway).await.unwrap();
                stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
                clients.push(stream);
            }
            for _ in 0..round * 3 {
                tokio::task::yield_now().await;
            }
            drop(clients);
            let _: () = redis::cmd("CLIENT").arg("UNPAUSE").query(&mut connection).unwrap();
        }
        until(|| gateways.iter().all(|(_, handle)| handle.held_leases() == 0)).await;
        while left(&gateways[0].1.limiter()).await < SLOTS {
            conformance::poll::pause_task().await;
        }
        until(|| open.load(Ordering::SeqCst) == 0).await;
        let mut patient = TcpStream::connect(gateways[0].0).await.unwrap();
        patient.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        until(|| open.load(Ordering::SeqCst) == 1).await;
        while left(&gateways[1].1.limiter()).await != SLOTS - 1 {
            conformance::poll::pause_task().await;
        }
    }
}

/// A server that is stopped releases what its requests hold: clients that come back to another instance are not denied. The slots of one
/// that is killed run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_releases_its_slots_and_one_that_is_killed_does_not() {
    const RULES: &str = "version: 1\nrules: [{ id: exports, per: [], concurrency: { max: 3, lease: 1h } }]\n";
    let store = Server::start(KINDS[0]);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", silent.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let file = tidegate_rules::RuleFile::load(&rules).unwrap();
    let limiter = Limiter::new(file.rules().clone(), store.store_with(long_timeout_options()).await)
        .with_secret(&tidegate::Secret::new("s1"));
    for (signal, free) in [(Signal::TERM, 3), (Signal::KILL, 0)] {
        let mut command = ServeProcess::command(Path::new(env!("CARGO_BIN_EXE_tidegate-under-test")));
        command.args(["--store", &store.url(), "--secret", "s1", "--upstream", &upstream, "--drain", "0"]);
        command.args(["--gateway", ANY_PORT, "--rules"]).arg(&rules);
        let mut server = ServeProcess::start(&mut command);
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut stream = TcpStream::connect(server.gateway()).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            clients.push(stream);
        }
        while left(&limiter).await > 0 {
            conformance::poll::pause_task().await;
        }
        tokio::task::spawn_blocking(move || server.end_with(signal)).await.unwrap();
        assert_eq!(left(&limiter).await, free, "{signal:?}");
    }
}

/// Sends a request when all others are ready, and returns the status.
async fn status(gateway: SocketAddr, all: Arc<Barrier>) -> String {
    let mut stream = TcpStream::connect(gateway).await.unwrap();
    all.wait().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-key: k1\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_gateways_share_one_exact_limit() {
    for kind in KINDS {
        let store = Server::start(kind);
        let (upstream, seen) = upstream().await;
        let mut gateways = Vec::new();
        for _ in 0..GATEWAYS {
            let limit = Limit::token_bucket(CAPACITY, Rate::per_hour(1).unwrap()).unwrap();
            let rule = Rule::new("shared", limit).with_per(["header:x-key"]);
            gateways.push(gateway(upstream, &store, [rule]).await.0);
        }
        let all = Arc::new(Barrier::new(REQUESTS));
        let spread = gateways.iter().cycle().take(REQUESTS);
        let clients: Vec<_> = spread.map(|gateway| tokio::spawn(status(*gateway, Arc::clone(&all)))).collect();
        let mut answers = Vec::new();
        for client in clients {
            answers.push(client.await.unwrap());
        }
        let count = |status: &str| answers.iter().filter(|answer| *answer == status).count();
        assert_eq!((count("200"), count("429")), (CAPACITY as usize, REQUESTS - CAPACITY as usize), "{kind:?}");
        assert_eq!(u64::from(seen.load(Ordering::Relaxed)), CAPACITY, "{kind:?}");
    }
}

/// Tokens that all gateways share: each request reserves 500 of 10,000.
fn tokens() -> [Rule; 2] {
    let minute = Limit::token_bucket(10_000, Rate::per_hour(1).unwrap()).unwrap();
    let year = Limit::quota(50_000, Periods::utc(Period::Year)).unwrap();
    [("minute", minute), ("year", year)]
        .map(|(id, limit)| Rule::new(id, limit).with_cost(500).with_usage(UsageKind::Total))
}

/// 60 requests at the same time, of which each may use 500 tokens and uses 400: 20 fit into 10,000.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_several_gateways_cannot_pass_a_limit_of_tokens_together() {
    const CLIENTS: usize = 60;
    for kind in KINDS {
        let store = Server::start(kind);
        let (reached, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)));
        let (count, wait) = (Arc::clone(&reached), Arc::clone(&gate));
        let answer = get(async move || {
            count.fetch_add(1, Ordering::Relaxed);
            wait.acquire().await.unwrap().forget();
            r#"{"usage":{"prompt_tokens":100,"completion_tokens":300}}"#
        });
        let address = serve(Router::new().route("/", answer)).await;
        let mut gateways = Vec::new();
        for _ in 0..3 {
            gateways.push(gateway(address, &store, tokens()).await);
        }
        let (all, refused) = (Arc::new(Barrier::new(CLIENTS)), Arc::new(AtomicU32::new(0)));
        let clients: Vec<_> = gateways
            .iter()
            .cycle()
            .take(CLIENTS)
            .map(|(gateway, _)| {
                let (status, refused) = (status(*gateway, Arc::clone(&all)), Arc::clone(&refused));
                tokio::spawn(async move {
                    let status = status.await;
                    refused.fetch_add(u32::from(status == "429"), Ordering::Relaxed);
                    status
                })
            })
            .collect();
        let decided = || reached.load(Ordering::Relaxed) + refused.load(Ordering::Relaxed);
        until(|| decided() == CLIENTS as u32).await;
        gate.add_permits(CLIENTS);
        let mut allowed = 0;
        for client in clients {
            allowed += usize::from(client.await.unwrap() == "200");
        }
        assert_eq!((allowed, reached.load(Ordering::Relaxed)), (20, 20), "{kind:?}");
        for (_, handle) in &gateways {
            let limiter = handle.limiter();
            let decision = limiter.peek(&Request::new("")).await.unwrap();
            let left: Vec<_> = decision.checks().iter().map(|check| check.outcome().remaining).collect();
            assert_eq!(left, [10_000 - 20 * 400, 50_000 - 20 * 400], "{kind:?}");
            let open = limiter.outstanding(&Request::new("")).await.unwrap();
            assert!(open.iter().all(|open| open.reservations == 0), "{kind:?} {open:?}");
        }
    }
}
