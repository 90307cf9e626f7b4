//! Limits in axum from a rule file, counted in memory, and changed while the server runs.
//!
//! `cargo run -p tidegate-tower --example axum` starts it on a free port, sends a few requests and prints the
//! responses.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use axum::extract::ConnectInfo;
use axum::{Router, routing::get};
use tidegate::{Limiter, MemoryStore};
use tidegate_rules::RuleFile;
use tidegate_tower::{Handle, LimitLayer};
use tokio::net::TcpListener;

/// Usually a file: `RuleFile::load("rules.yaml")`.
const RULES: &str = "
version: 1
rules:
  - id: api
    per: [client]
    token_bucket: { capacity: 20, refill: 10/s }
  - id: exports
    match: { path: /exports }
    per: [client]
    token_bucket: { capacity: 2, refill: 1/m }
    message: Two exports at once, then one a minute.
";

type Store = Arc<MemoryStore>;

fn app() -> Result<(Router, Handle<Store>), Box<dyn Error>> {
    let file = RuleFile::parse("rules.yaml", RULES)?;
    let limiter = Limiter::new(file.rules().clone(), Arc::new(MemoryStore::new()));
    let limits =
        LimitLayer::new(limiter).with_peer(|parts| Some(parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));
    let handle = limits.handle();
    let routes = Router::new().route("/rides", get(async || "a ride\n")).route("/exports", get(async || "an export\n"));
    Ok((routes.layer(limits), handle))
}

/// Applies a changed file. Consumed units stay consumed; an invalid file changes nothing.
fn reload(handle: &Handle<Store>, text: &str) {
    match RuleFile::parse("rules.yaml", text) {
        Ok(file) => handle.replace(handle.limiter().with_rules(file.rules().clone())),
        Err(report) => eprintln!("{report}"),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (app, handle) = app()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await });

    for path in ["/rides", "/exports", "/exports", "/exports"] {
        println!("> GET {path}\n{}\n", tokio::task::spawn_blocking(move || get_text(server, path)).await??);
    }
    reload(&handle, &RULES.replace("capacity: 2,", "capacity: 3,").replace("Two exports", "Three exports"));
    println!("(Three exports instead of two.)\n");
    println!("> GET /exports\n{}", tokio::task::spawn_blocking(move || get_text(server, "/exports")).await??);
    Ok(())
}

/// Sends a request and returns the whole response.
fn get_text(server: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}
