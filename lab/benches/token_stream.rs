//! What counting tokens adds to a stream through the gateway: CPU time for each event, and time to the first byte. Client, gateway and upstream
//! run on one thread, so the CPU time is of all three; the difference between the rows is that of counting.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod common;

use std::net::SocketAddr;
use std::time::Instant;

use common::{Contender, Options, Table, best_of, cpu, report};
use conformance::suite::start_gateway;
use tidegate::{Limiter, MemoryStore};
use tidegate_rules::RuleFile;
use tidegate_tower::LimitLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const EVENT: &str = "data: {\"id\":\"chatcmpl-7Qy\",\"object\":\"chat.completion.chunk\",\"created\":1794800000,\"model\":\"small\",\
                     \"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}],\"usage\":null}\n\n";
const END: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":9}}\n\ndata: [DONE]\n\n";

struct StreamCost {
    nanos_per_event: f64,
    /// From the request to the first byte of the response.
    first_byte_micros: f64,
}

fn main() {
    let options = Options::from_command_line();
    let (streams, events) = if options.quick { (5, 50) } else { (200, 500) };
    let rows = [
        ("not counted", "", "/v1/messages"),
        ("counted", ", usage: total", "/v1/messages"),
        ("counted, and the event with the usage withheld", ", usage: total", "/v1/chat/completions"),
    ];
    let contender = |(name, usage, path)| -> Contender<'_, StreamCost> {
        (name, Box::new(move || round(usage, path, streams, events)))
    };
    let contenders = rows.into_iter().map(contender).collect();
    let best = best_of(options.rounds(), contenders, |one, other| one.nanos_per_event < other.nanos_per_event);
    let title = format!("Streams of {events} events through the gateway");
    let mut table = Table::new(title, ["tokens", "CPU ns an event", "first byte µs"]);
    for (name, cost) in best {
        table.figures(name, [(cost.nanos_per_event, 0), (cost.first_byte_micros, 1)]);
    }
    report(&options, &[table]);
}

fn round(usage: &str, path: &str, streams: usize, events: usize) -> StreamCost {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let gateway = gateway(upstream(events).await, usage).await;
        // Opens the connection to the upstream, and fills the caches.
        stream(gateway, path).await;
        let (before, _) = cpu::thread_nanos();
        let mut first_byte = 0.0;
        for _ in 0..streams {
            first_byte += stream(gateway, path).await;
        }
        let (after, _) = cpu::thread_nanos();
        StreamCost {
            nanos_per_event: (after - before) / (streams * events) as f64,
            first_byte_micros: first_byte / streams as f64,
        }
    })
}

/// Sends a request and reads the whole stream. Returns the microseconds until its first byte.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
async fn stream(gateway: SocketAddr, path: &str) -> f64 {
    let body = r#"{"model":"small","max_tokens":500,"stream":true}"#;
    let mut connection = TcpStream::connect(gateway).await.unwrap();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    let started = Instant::now();
    connection.write_all((head + body).as_bytes()).await.unwrap();
    let mut bytes = vec![0; 65_536];
    assert!(connection.read(&mut bytes).await.unwrap() > 0);
    let first_byte = started.elapsed().as_secs_f64() * 1e6;
    while connection.read(&mut bytes).await.unwrap() > 0 {}
    first_byte
}

async fn gateway(upstream: SocketAddr, usage: &str) -> SocketAddr {
    let rules = format!(
        "version: 1\nrules:\n- {{ id: tokens, per: [], cost: {{ default: 500{usage} }}, \
         token_bucket: {{ capacity: 1_000_000_000, refill: 1_000_000/s }} }}\n"
    );
    let file = RuleFile::parse("rules.yaml", &rules).unwrap_or_else(|report| panic!("{report}"));
    let layer = LimitLayer::new(Limiter::new(file.rules().clone(), MemoryStore::new()));
    start_gateway(upstream, layer).await.0
}

/// An upstream that writes each event by itself.
async fn upstream(events: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(serve(connection, events));
        }
    });
    address
}

async fn serve(mut connection: TcpStream, events: usize) {
    connection.set_nodelay(true).unwrap();
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let mut request = Vec::new();
    while !request.ends_with(b"}") {
        request.push(connection.read_u8().await.unwrap());
    }
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    connection.write_all(head.as_bytes()).await.unwrap();
    let event = chunk(EVENT);
    for _ in 0..events {
        connection.write_all(event.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
    }
    connection.write_all((chunk(END) + "0\r\n\r\n").as_bytes()).await.unwrap();
}
