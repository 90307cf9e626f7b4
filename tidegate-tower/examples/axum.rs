//! Limits in axum: one for every caller of the API, a stricter one for exports, both kept in this process.
//!
//! `cargo run -p tidegate-tower --example axum` starts it on a free port, asks a few times, and shows what was answered.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use axum::extract::ConnectInfo;
use axum::{Router, routing::get};
use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
use tidegate_tower::LimitLayer;
use tokio::net::TcpListener;

fn app() -> Result<Router, Box<dyn Error>> {
    let rules = RuleSet::new([
        Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?).per(["ip"]),
        Rule::new("exports", Limit::token_bucket(2, Rate::per_minute(1)?)?)
            .action("export")
            .per(["ip"])
            .message("Two exports at once, then one a minute."),
    ])?;
    let limits = LimitLayer::new(Limiter::new(rules, MemoryStore::new()))
        .peer(|parts| Some(parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));

    // All routes share one limiter; the rule "api" counts exports too.
    Ok(Router::new()
        .route("/rides", get(async || "a ride\n").layer(limits.clone()))
        .route("/exports", get(async || "an export\n").layer(limits.action("export"))))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let app = app()?.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });

    for path in ["/rides", "/exports", "/exports", "/exports"] {
        println!("> GET {path}\n{}\n", tokio::task::spawn_blocking(move || ask(server, path)).await??);
    }
    Ok(())
}

/// A client of a few lines, to show an answer as it comes.
fn ask(server: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
