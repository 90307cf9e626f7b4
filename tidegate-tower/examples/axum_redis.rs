//! Two axum servers that share one limit through Redis: of twenty requests to both, five are allowed.
//!
//! `cargo run -p tidegate-tower --example axum_redis -- redis://127.0.0.1:6379`

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use axum::{Router, routing::get};
use tidegate::{Clock, Limit, Limiter, Rate, Rule, RuleSet, Secret, SystemClock};
use tidegate_redis::RedisStore;
use tidegate_tower::LimitLayer;
use tokio::net::TcpListener;

/// Starts one of the servers.
async fn start(redis: &str, run: &str) -> Result<SocketAddr, Box<dyn Error>> {
    let rules =
        RuleSet::new([Rule::new("api", Limit::token_bucket(5, Rate::per_hour(1)?)?).with_per(["header:x-api-key"])])?;
    // All servers need the same secret, so that they count the same subjects. Here each run has a new one, so that it
    // starts with full limits.
    let limiter = Limiter::new(rules, RedisStore::connect(redis).await?).with_secret(&Secret::new(run));

    let app = Router::new().route("/", get(async || "hello")).layer(LimitLayer::new(limiter));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(address)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let redis = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let run = SystemClock::new().now().as_micros().to_string();
    let servers = [start(&redis, &run).await?, start(&redis, &run).await?];

    let mut allowed = 0;
    for request in 1..=20 {
        let server = servers[request % 2];
        let response = tokio::task::spawn_blocking(move || get_text(server)).await??;
        let status = response.split(' ').nth(1).unwrap_or_default();
        println!("request {request:2} to server {}: {status}", request % 2);
        allowed += u32::from(status == "200");
    }
    println!("{allowed} of 20 allowed");
    Ok(())
}

/// Sends a request and returns the whole response.
fn get_text(server: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    write!(stream, "GET / HTTP/1.1\r\nhost: localhost\r\nx-api-key: k1\r\nconnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}
