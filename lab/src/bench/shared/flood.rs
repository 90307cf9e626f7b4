//! A flood by one client over its limit, on many connections at once, beside a bystander: what passes, the CPU time of a refusal,
//! and the latency of the bystander.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::Timer;
use tidegate_server::command::Failure;

use super::super::options::BenchArgs;
use super::super::request_template::RequestTemplate;
use super::super::{load, no_figures};
use super::figure_table::FigureTable;
use super::servers::{FrontDoor, SharedServers};
use crate::traffic::{self, Connection, DEFAULT_TIMEOUT, Pace, Protocol, Workers};

/// Connections of the flood, each with one request under way.
const FLOOD_CONNECTIONS: u16 = 1000;

/// Connections and requests a second of the bystander.
const BYSTANDER_CONNECTIONS: u16 = 8;
const BYSTANDER_RATE: u32 = 100;

/// Files that this process may need: the flood on two gateways, and some more.
const NEEDED_FILES: u64 = 2 * FLOOD_CONNECTIONS as u64 + 500;

/// The responses to a flood.
#[derive(Default)]
struct FloodCounts {
    passed: AtomicU64,
    refused: AtomicU64,
    other: AtomicU64,
}

/// The results of one gateway: totals of passes and other responses, and the best round of everything else.
struct FloodResult {
    passed: u64,
    other: u64,
    refused_per_second: f64,
    micros: [f64; 2],
    bystander_micros: [u64; 2],
    bystander_failures: u64,
}

/// Raises the limit of open files as far as the flood needs, which it passes on to the servers.
pub(super) fn raise_file_limit() -> Result<(), Failure> {
    traffic::raise_file_limit(NEEDED_FILES).map_err(|allowed| {
        Failure::usage(format!(
            "the flood needs {NEEDED_FILES} open files, and this system allows {allowed}; raise the limit (`ulimit -n`)"
        ))
    })
}

/// Floods both gateways in turn.
pub(super) async fn measure(
    arguments: &BenchArgs,
    servers: &SharedServers,
    timer: &Arc<impl Timer + 'static>,
) -> Result<FigureTable, Failure> {
    let doors = [&servers.gateway_on_redis, &servers.gateway_in_memory];
    let mut results = [(); 2].map(|()| FloodResult::new());
    for _ in 0..arguments.rounds {
        for (door, result) in doors.iter().zip(&mut results) {
            flood(arguments, servers, door, timer, result).await?;
        }
    }
    let columns = vec![
        ("passed", 0),
        ("neither 200 nor 429", 0),
        ("refused a second", 0),
        ("µs CPU of the gateway", 2),
        ("of Redis", 2),
        ("bystander's p50 µs", 0),
        ("p99 µs", 0),
        ("not 200", 0),
    ];
    let cpu = |result: &FloodResult| result.micros.iter().sum::<f64>();
    let ratios = vec![
        ("CPU time of a refusal, on Redis with Redis / in memory".to_owned(), cpu(&results[0]) / cpu(&results[1])),
        (
            "p99 of the bystander, on Redis / in memory".to_owned(),
            results[0].bystander_micros[1] as f64 / results[1].bystander_micros[1].max(1) as f64,
        ),
    ];
    let rows = doors.iter().zip(&results).map(|(door, result)| (door.name.clone(), result.figures()));
    let title = format!("A flood by one client over {FLOOD_CONNECTIONS} connections, and a bystander");
    Ok(FigureTable { title, columns, rows: rows.collect(), ratios })
}

/// One round at one gateway.
async fn flood(
    arguments: &BenchArgs,
    servers: &SharedServers,
    door: &FrontDoor,
    timer: &Arc<impl Timer + 'static>,
    result: &mut FloodResult,
) -> Result<(), Failure> {
    let failed = |reason: String| no_figures(&door.name, &reason);
    let open = async |count| {
        let opened = Connection::open_many(Protocol::Http1, &door.address.to_string(), count).await;
        opened.map_err(|error| failed(error.to_string()))
    };
    let (flooding, bystander) = (open(FLOOD_CONNECTIONS).await?, open(BYSTANDER_CONNECTIONS).await?);
    let (template, counts) = (Arc::new(RequestTemplate::over_limit(door.address)), Arc::new(FloodCounts::default()));
    let (before, started) = (servers.spent(door)?, timer.now());
    let mut workers = Workers::default();
    for connection in flooding {
        let (template, counts) = (Arc::clone(&template), Arc::clone(&counts));
        // The answers set the pace.
        workers.spawn(Duration::MAX, |pace| send_until_stopped(connection, template, counts, pace));
    }
    let template = Arc::new(RequestTemplate::bystander(door.address));
    let latencies =
        load::open_loop(bystander, &template, BYSTANDER_RATE, arguments.seconds, timer).await.map_err(failed)?;
    let seconds = timer.now().since(started).as_secs_f64();
    workers.stop().await;
    let [passed, refused, other] =
        [&counts.passed, &counts.refused, &counts.other].map(|count| count.load(Ordering::Relaxed));
    let micros = servers.spent(door)?.micros_since(before, passed + refused + other);
    let [p50, _, p99, ..] = latencies.micros();
    let failures = latencies.unanswered()
        + latencies.statuses().iter().filter(|(status, _)| **status != 200).map(|(_, count)| count).sum::<u64>();
    result.add(&FloodResult {
        passed,
        other,
        refused_per_second: refused as f64 / seconds,
        micros,
        bystander_micros: [p50, p99],
        bystander_failures: failures,
    });
    Ok(())
}

/// Sends the next request as soon as the last one is answered.
async fn send_until_stopped(
    mut connection: Connection,
    template: Arc<RequestTemplate>,
    counts: Arc<FloodCounts>,
    pace: Pace,
) {
    while !pace.is_stopped() {
        let response = connection.send(template.request(0), DEFAULT_TIMEOUT).await;
        let count = match response.map(|response| response.status.as_u16()) {
            Ok(200) => &counts.passed,
            Ok(429) => &counts.refused,
            _ => &counts.other,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl FloodResult {
    const fn new() -> Self {
        Self {
            passed: 0,
            other: 0,
            refused_per_second: 0.0,
            micros: [f64::MAX; 2],
            bystander_micros: [u64::MAX; 2],
            bystander_failures: 0,
        }
    }

    /// Adds a round.
    fn add(&mut self, round: &Self) {
        self.passed += round.passed;
        self.other += round.other;
        self.bystander_failures += round.bystander_failures;
        self.refused_per_second = self.refused_per_second.max(round.refused_per_second);
        if round.micros.iter().sum::<f64>() < self.micros.iter().sum() {
            self.micros = round.micros;
        }
        for (best, micros) in self.bystander_micros.iter_mut().zip(round.bystander_micros) {
            *best = micros.min(*best);
        }
    }

    fn figures(&self) -> Vec<f64> {
        let [p50, p99] = self.bystander_micros;
        let [door, redis] = self.micros;
        let (passed, other, failures) = (self.passed as f64, self.other as f64, self.bystander_failures as f64);
        vec![passed, other, self.refused_per_second, door, redis, p50 as f64, p99 as f64, failures]
    }
}
