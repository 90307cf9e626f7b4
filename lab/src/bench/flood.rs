//! A flood by one client over its limit, on many connections at once, beside a bystander: what passes, the CPU time of a refusal,
//! and the latency of the bystander.

use std::cell::Cell;

use futures_util::future::{join, join_all};
use tidegate_server::command::Failure;

use super::figure_table::FigureTable;
use super::launcher::ServerUnderTest;
use super::request_template::RequestTemplate;
use super::{Bench, load};
use crate::traffic::{self, Connection, DEFAULT_TIMEOUT};

/// Connections of the flood, each with one request under way.
const FLOOD_CONNECTIONS: u16 = 1000;

/// Connections and requests a second of the bystander.
const BYSTANDER_CONNECTIONS: u16 = 8;
const BYSTANDER_RATE: u32 = 100;

/// Files that this process may need: the flood on two gateways, and some more.
const NEEDED_FILES: u64 = 2 * FLOOD_CONNECTIONS as u64 + 500;

/// One round at one gateway.
struct FloodRound {
    passed: f64,
    other: f64,
    refused_per_second: f64,
    /// CPU time of a request: of the gateway, and of Redis.
    micros: [f64; 2],
    /// The 50th and the 99th percentile of the bystander.
    bystander_micros: [f64; 2],
    bystander_failures: f64,
}

/// Raises the limit of open files as far as the flood needs, which it passes on to the servers.
pub(super) fn raise_file_limit() -> Result<(), Failure> {
    traffic::raise_file_limit("the flood", NEEDED_FILES)
}

/// Floods both gateways in turn.
pub(super) async fn measure(bench: &Bench<'_>, gateways: &[ServerUnderTest; 2]) -> Result<FigureTable, Failure> {
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..bench.arguments.rounds {
        for (gateway, rounds) in gateways.iter().zip(&mut rounds) {
            rounds.push(flood(bench, gateway).await?);
        }
    }
    let figures = rounds.map(|rounds| figures(&rounds));
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
    let [cpu_on_redis, cpu_in_memory] = figures.each_ref().map(|figures| figures[3] + figures[4]);
    let [p99_on_redis, p99_in_memory] = figures.each_ref().map(|figures| figures[6]);
    let ratios = vec![
        ("CPU time of a refusal, on Redis with Redis / in memory".to_owned(), cpu_on_redis / cpu_in_memory),
        ("p99 of the bystander, on Redis / in memory".to_owned(), p99_on_redis / p99_in_memory.max(1.0)),
    ];
    let rows = gateways.iter().map(|gateway| gateway.title).zip(figures).collect();
    let title = format!("A flood by one client over {FLOOD_CONNECTIONS} connections, and a bystander");
    Ok(FigureTable { title, columns, rows, ratios })
}

/// One figure for each column: totals of passes and failures, and the best round of everything else.
fn figures(rounds: &[FloodRound]) -> Vec<f64> {
    let total = |count: fn(&FloodRound) -> f64| rounds.iter().map(count).sum::<f64>();
    let least = |micros: fn(&FloodRound) -> f64| rounds.iter().map(micros).fold(f64::MAX, f64::min);
    let cpu = |round: &FloodRound| round.micros.iter().sum::<f64>();
    let best_cpu = rounds.iter().min_by(|one, other| cpu(one).total_cmp(&cpu(other)));
    let [gateway, redis] = best_cpu.map_or([f64::NAN; 2], |round| round.micros);
    vec![
        total(|round| round.passed),
        total(|round| round.other),
        rounds.iter().map(|round| round.refused_per_second).fold(0.0, f64::max),
        gateway,
        redis,
        least(|round| round.bystander_micros[0]),
        least(|round| round.bystander_micros[1]),
        total(|round| round.bystander_failures),
    ]
}

async fn flood(bench: &Bench<'_>, gateway: &ServerUnderTest) -> Result<FloodRound, Failure> {
    let failed = |reason: String| gateway.no_figures(reason);
    let flooding = RequestTemplate::over_limit(gateway.address);
    let bystander = RequestTemplate::bystander(gateway.address);
    let connections = flooding.connect(FLOOD_CONNECTIONS).await.map_err(failed)?;
    let bystander_connections = bystander.connect(BYSTANDER_CONNECTIONS).await.map_err(failed)?;
    let (is_over, [passed, refused, other]) = (Cell::new(false), [0; 3].map(Cell::new));
    // The next request as soon as the last one is answered.
    let send = async |mut connection: Connection| {
        while !is_over.get() {
            let response = connection.send(flooding.request(0), DEFAULT_TIMEOUT).await;
            let count = match response.map(|response| response.status().as_u16()) {
                Ok(200) => &passed,
                Ok(429) => &refused,
                _ => &other,
            };
            count.set(count.get() + 1);
        }
    };
    let (before, started) = (gateway.spent()?, bench.timer.now());
    let measure = async {
        let (duration, timer) = (bench.arguments.seconds, bench.timer.as_ref());
        let latencies = load::open_loop(bystander_connections, &bystander, BYSTANDER_RATE, duration, timer).await;
        is_over.set(true);
        (latencies, timer.now().since(started).as_secs_f64())
    };
    let ((latencies, seconds), _) = join(measure, join_all(connections.into_iter().map(&send))).await;
    let (latencies, requests) = (latencies.map_err(failed)?, passed.get() + refused.get() + other.get());
    let [p50, _, p99, ..] = latencies.micros();
    let not_ok = latencies.statuses.iter().filter(|(status, _)| **status != 200).map(|(_, count)| count).sum::<u64>();
    Ok(FloodRound {
        passed: passed.get() as f64,
        other: other.get() as f64,
        refused_per_second: refused.get() as f64 / seconds,
        micros: gateway.micros_since(before, requests)?,
        bystander_micros: [p50 as f64, p99 as f64],
        bystander_failures: (latencies.unanswered + not_ok) as f64,
    })
}
