//! The CPU time of a request, of the front end and of Redis: a client over its limit at the gateway, and calls of Envoy's rate limit
//! service.

use std::sync::Arc;

use tidegate_server::command::Failure;

use super::super::options::BenchArgs;
use super::super::request_template::RequestTemplate;
use super::super::{load, no_figures};
use super::figure_table::{FigureColumn, FigureTable};
use super::servers::{FLOOD_LIMIT, FrontDoor, SharedServers};
use crate::traffic::Connection;

/// Connections of an Envoy fleet, and calls under way on each.
const ENVOY_CONNECTIONS: usize = 4;
const CALLS_PER_CONNECTION: u16 = 16;

const COLUMNS: [FigureColumn; 2] = [("µs CPU of the server", 2), ("of Redis", 2)];

/// A front end with its requests, and how they are sent.
struct CpuContender<'s> {
    door: &'s FrontDoor,
    template: Arc<RequestTemplate>,
    connections: usize,
    calls_per_connection: u16,
}

/// A client over its limit, at the gateway on Redis and at that in memory with a limit of 0.
pub(super) async fn measure_offender(arguments: &BenchArgs, servers: &SharedServers) -> Result<FigureTable, Failure> {
    use_up_limit(&servers.gateway_on_redis).await?;
    let contenders = [&servers.gateway_on_redis, &servers.gateway_in_memory].map(|door| CpuContender {
        template: Arc::new(RequestTemplate::denied(door.address)),
        connections: usize::from(arguments.connections),
        calls_per_connection: 1,
        door,
    });
    let best = measure(arguments, servers, &contenders).await?;
    let ratio = best[0].iter().sum::<f64>() / best[1].iter().sum::<f64>();
    let ratios = vec![("CPU time, on Redis with Redis / in memory".to_owned(), ratio)];
    Ok(table("A client that has used up its limit, at the gateway", &contenders, best, ratios))
}

/// The rate limit service on Redis, and a gRPC server that does nothing.
pub(super) async fn measure_rate_limit_service(
    arguments: &BenchArgs,
    servers: &SharedServers,
) -> Result<FigureTable, Failure> {
    let doors = [&servers.do_nothing].into_iter().chain(&servers.rate_limit_services);
    let contenders: Vec<CpuContender<'_>> = doors
        .map(|door| CpuContender {
            template: Arc::new(RequestTemplate::rate_limits(door.address)),
            connections: ENVOY_CONNECTIONS,
            calls_per_connection: CALLS_PER_CONNECTION,
            door,
        })
        .collect();
    let best = measure(arguments, servers, &contenders).await?;
    let ratio = |index: usize| {
        (format!("{} / {}", contenders[index].door.name, contenders[0].door.name), best[index][0] / best[0][0])
    };
    let ratios = vec![ratio(1), ratio(2)];
    let title =
        format!("Envoy's rate limit service, {ENVOY_CONNECTIONS} connections with {CALLS_PER_CONNECTION} calls each");
    Ok(table(&title, &contenders, best, ratios))
}

/// The best round of each, in turn.
async fn measure(
    arguments: &BenchArgs,
    servers: &SharedServers,
    contenders: &[CpuContender<'_>],
) -> Result<Vec<[f64; 2]>, Failure> {
    let mut best = vec![[f64::MAX; 2]; contenders.len()];
    for _ in 0..arguments.rounds {
        for (contender, best) in contenders.iter().zip(&mut best) {
            let micros = contender.measure_round(servers, arguments.requests).await?;
            if micros.iter().sum::<f64>() < best.iter().sum() {
                *best = micros;
            }
        }
    }
    Ok(best)
}

impl CpuContender<'_> {
    async fn measure_round(&self, servers: &SharedServers, requests: u64) -> Result<[f64; 2], Failure> {
        let failed = |reason: String| no_figures(&self.door.name, &reason);
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            let opened = load::open_warm_connections(&self.template, self.calls_per_connection).await;
            connections.extend(opened.map_err(failed)?);
        }
        let before = servers.spent(self.door)?;
        load::closed_loop(connections, &self.template, requests).await.map_err(failed)?;
        Ok(servers.spent(self.door)?.micros_since(before, requests))
    }
}

/// Sends requests until the limit is used up, so that the measured ones are denied.
async fn use_up_limit(door: &FrontDoor) -> Result<(), Failure> {
    let template = Arc::new(RequestTemplate::over_limit(door.address));
    let opened = Connection::open_many(template.protocol, &template.authority, 1).await;
    let failed = |reason: String| no_figures(&door.name, &reason);
    let connections = opened.map_err(|error| failed(error.to_string()))?;
    load::closed_loop(connections, &template, FLOOD_LIMIT).await.map_err(failed)?;
    Ok(())
}

fn table(title: &str, contenders: &[CpuContender<'_>], best: Vec<[f64; 2]>, ratios: Vec<(String, f64)>) -> FigureTable {
    let rows = contenders.iter().zip(best).map(|(contender, micros)| (contender.door.name.clone(), micros.to_vec()));
    FigureTable { title: title.to_owned(), columns: COLUMNS.to_vec(), rows: rows.collect(), ratios }
}
