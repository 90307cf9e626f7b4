//! The latency of decisions on Redis that arrive one at a time, at a fixed rate, by this program and by another build of it.

use std::sync::Arc;

use tidegate::Timer;
use tidegate_server::command::Failure;

use super::super::options::BenchArgs;
use super::super::request_template::RequestTemplate;
use super::super::{load, no_figures};
use super::figure_table::FigureTable;
use super::servers::SharedServers;

/// Measures the check APIs in turn. The best round of each percentile counts.
pub(super) async fn measure(
    arguments: &BenchArgs,
    servers: &SharedServers,
    timer: &Arc<impl Timer + 'static>,
) -> Result<FigureTable, Failure> {
    let mut best = vec![[u64::MAX; 2]; servers.check_apis.len()];
    for _ in 0..arguments.rounds {
        for (door, best) in servers.check_apis.iter().zip(&mut best) {
            let failed = |reason: String| no_figures(&door.name, &reason);
            let template = Arc::new(RequestTemplate::check(door.address));
            let connections = load::open_warm_connections(&template, arguments.connections).await.map_err(failed)?;
            let latencies = load::open_loop(connections, &template, arguments.rate, arguments.seconds, timer).await;
            let [p50, _, p99, ..] = latencies.map_err(failed)?.micros();
            *best = [p50.min(best[0]), p99.min(best[1])];
        }
    }
    let ratios = match best[..] {
        [new, old] => ["p50", "p99"]
            .into_iter()
            .zip(new)
            .zip(old)
            .map(|((name, new), old)| {
                (format!("{name}, this program / the one of --baseline"), new as f64 / old.max(1) as f64)
            })
            .collect(),
        _ => Vec::new(),
    };
    let rows = servers
        .check_apis
        .iter()
        .zip(&best)
        .map(|(door, best)| (door.name.clone(), best.map(|micros| micros as f64).to_vec()));
    let title = format!("One decision at a time, {} a second", arguments.rate);
    Ok(FigureTable { title, columns: vec![("p50 µs", 0), ("p99 µs", 0)], rows: rows.collect(), ratios })
}
