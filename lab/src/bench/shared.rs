//! `tidegate-lab bench shared`: the front ends on a Redis server, compared with the memory store and with a server that does nothing.
//!
//! | part | compared |
//! |---|---|
//! | [flood](super::flood) | a client over its limit, over many connections, and a bystander |
//! | CPU per request | a client over its limit, and Envoy's rate limit service |
//! | idle latency | one decision at a time, with another build of this program |
//!
//! The servers, and Redis, are processes on one CPU core; the load is one thread on another. No measurement is judged.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;
use tidegate_server::command::{Failure, Output};

use super::cpu_per_request::{self, Contender};
use super::figure_table::FigureTable;
use super::launcher::{Launcher, RULES, ServerUnderTest};
use super::options::BenchArgs;
use super::request_template::RequestTemplate;
use super::{Bench, flood, load};
use crate::traffic::RedisServer;

/// The units that a client over its limit gets. On the memory store the limit is 0.
const FLOOD_LIMIT: u64 = 100;

/// Connections of an Envoy fleet, and calls under way on each.
const ENVOY_CONNECTIONS: u16 = 4;
const CALLS_PER_CONNECTION: u16 = 16;

/// All servers of a run.
pub(super) struct SharedServers {
    redis: Arc<RedisServer>,
    /// On Redis, and in memory.
    gateways: [ServerUnderTest; 2],
    /// The first does nothing.
    rate_limit_services: [ServerUnderTest; 3],
    /// The check API of this program, and of the one of `--baseline`.
    check_apis: Vec<ServerUnderTest>,
}

impl SharedServers {
    pub(super) fn start(arguments: &BenchArgs, launcher: &Launcher, _: &mut Output<'_>) -> Result<Self, Failure> {
        let Some(redis) = RedisServer::start().map(Arc::new) else {
            return Err(Failure::usage("neither redis-server nor valkey-server is installed; install one of them"));
        };
        let url = redis.server.url();
        let store = ["--store", &url];
        // Calls that fail on a busy machine would end the measurement.
        let patient = ["--store", &url, "--store-budget", "2000", "--queue-wait", "2000"];
        let on_redis = |server| ServerUnderTest { redis: Some(Arc::clone(&redis)), ..server };
        let check_api = |title, launcher: &Launcher| launcher.serve(title, "check API", RULES, &store).map(on_redis);
        let baseline = arguments.baseline.as_ref().map(|program| launcher.with_program(program));
        let baseline = baseline.map(|launcher| check_api("the same of --baseline", &launcher));
        Ok(Self {
            gateways: [
                on_redis(launcher.gateway("gateway on Redis", &gateway_rules(FLOOD_LIMIT), &store)?),
                launcher.gateway("gateway in memory, limit 0", &gateway_rules(0), &[])?,
            ],
            rate_limit_services: [
                launcher.do_nothing()?,
                on_redis(launcher.envoy_files("rate limit service on Redis, Envoy's files", &patient)?),
                on_redis(launcher.serve("rate limit service on Redis, rule file", "Envoy RLS", RULES, &patient)?),
            ],
            check_apis: [check_api("check API on Redis", launcher)]
                .into_iter()
                .chain(baseline)
                .collect::<Result<_, _>>()?,
            redis,
        })
    }
}

/// Measures everything, one after the other.
pub(super) async fn measure(
    bench: &Bench<'_>,
    servers: &SharedServers,
    output: &mut Output<'_>,
) -> Result<[FigureTable; 4], Failure> {
    output.progress("a flood");
    let flood = flood::measure(bench, &servers.gateways).await?;
    let offender = measure_offender(bench, &servers.gateways, output).await?;
    let rate_limit_service = measure_rate_limit_service(bench, &servers.rate_limit_services, output).await?;
    output.progress("one decision at a time");
    let idle = measure_idle_latency(bench, &servers.check_apis).await?;
    output.progress("");
    Ok([flood, offender, rate_limit_service, idle])
}

pub(super) fn print(arguments: &BenchArgs, servers: &SharedServers, tables: &[FigureTable], output: &mut Output<'_>) {
    if arguments.json {
        output.json(&json!({
            "store": servers.redis.version,
            "rounds": arguments.rounds,
            "requests": arguments.requests,
            "debug_build": cfg!(debug_assertions),
            "tables": tables.iter().map(FigureTable::json).collect::<Vec<_>>(),
        }));
        return;
    }
    for (index, table) in tables.iter().enumerate() {
        if index > 0 {
            output.line("");
        }
        table.print(output);
    }
}

/// A client over its limit, at the gateway on Redis and at that in memory with a limit of 0.
async fn measure_offender(
    bench: &Bench<'_>,
    gateways: &[ServerUnderTest; 2],
    output: &mut Output<'_>,
) -> Result<FigureTable, Failure> {
    let failed = |reason: String| gateways[0].no_figures(reason);
    let template = RequestTemplate::over_limit(gateways[0].address);
    let connection = template.connect(1).await.map_err(failed)?;
    // So that the measured requests are denied.
    load::closed_loop(connection, &template, FLOOD_LIMIT).await.map_err(failed)?;
    let title = "A client that has used up its limit, at the gateway".to_owned();
    let connections = (1, bench.arguments.connections);
    let mut table = cpu_table(title, bench, gateways, RequestTemplate::denied, connections, output).await?;
    let cpu = |row: usize| table.rows[row].1.iter().sum::<f64>();
    table.ratios = vec![("CPU time, on Redis with Redis / in memory".to_owned(), cpu(0) / cpu(1))];
    Ok(table)
}

/// The rate limit service on Redis, and a gRPC server that does nothing.
async fn measure_rate_limit_service(
    bench: &Bench<'_>,
    services: &[ServerUnderTest; 3],
    output: &mut Output<'_>,
) -> Result<FigureTable, Failure> {
    let title =
        format!("Envoy's rate limit service, {ENVOY_CONNECTIONS} connections with {CALLS_PER_CONNECTION} calls each");
    let connections = (ENVOY_CONNECTIONS, CALLS_PER_CONNECTION);
    let mut table = cpu_table(title, bench, services, RequestTemplate::rate_limits, connections, output).await?;
    let (nothing, cpu) = &table.rows[0];
    let ratio = |(name, micros): &(&str, Vec<f64>)| (format!("{name} / {nothing}"), micros[0] / cpu[0]);
    table.ratios = table.rows[1..].iter().map(ratio).collect();
    Ok(table)
}

/// The CPU time of the same requests at each server, from clients with requests under way.
async fn cpu_table(
    title: String,
    bench: &Bench<'_>,
    servers: &[ServerUnderTest],
    template: fn(SocketAddr) -> RequestTemplate,
    (clients, requests): (u16, u16),
    output: &mut Output<'_>,
) -> Result<FigureTable, Failure> {
    let templates: Vec<_> = servers.iter().map(|server| template(server.address)).collect();
    let contenders = servers.iter().zip(&templates);
    let contenders: Vec<_> =
        contenders.map(|(server, template)| Contender { server, template, clients, requests }).collect();
    let best = cpu_per_request::measure(bench, &contenders, output).await?;
    let rows = servers.iter().zip(best).map(|(server, micros)| (server.title, micros.to_vec()));
    let columns = vec![("µs CPU of the server", 2), ("of Redis", 2)];
    Ok(FigureTable { title, columns, rows: rows.collect(), ratios: Vec::new() })
}

/// The latency of decisions that arrive one at a time, at a fixed rate. The best round of each percentile counts.
async fn measure_idle_latency(bench: &Bench<'_>, check_apis: &[ServerUnderTest]) -> Result<FigureTable, Failure> {
    let mut best = vec![[u64::MAX; 2]; check_apis.len()];
    for _ in 0..bench.arguments.rounds {
        for (server, best) in check_apis.iter().zip(&mut best) {
            let template = RequestTemplate::check(server.address);
            let [p50, _, p99, ..] = load::measure_latencies(bench, server, &template).await?.micros();
            *best = [p50.min(best[0]), p99.min(best[1])];
        }
    }
    let ratio = |name, new: u64, old: u64| {
        (format!("{name}, this program / the one of --baseline"), new as f64 / old.max(1) as f64)
    };
    let ratios = match best[..] {
        [new, old] => vec![ratio("p50", new[0], old[0]), ratio("p99", new[1], old[1])],
        _ => Vec::new(),
    };
    let rows =
        check_apis.iter().zip(best).map(|(server, best)| (server.title, best.map(|micros| micros as f64).into()));
    let title = format!("One decision at a time, {} a second", bench.arguments.rate);
    Ok(FigureTable { title, columns: vec![("p50 µs", 0), ("p99 µs", 0)], rows: rows.collect(), ratios })
}

/// A limit for the flood, and one for the bystander that denies nothing. A year is longer than any run.
fn gateway_rules(limit: u64) -> String {
    format!(
        "version: 1
rules:
  - id: flood
    match: {{ path: '/flood/*' }}
    per: [ip]
    fixed_window: {{ limit: {limit}, window: year }}
  - id: bystander
    match: {{ path: '/api/*' }}
    per: [ip]
    token_bucket: {{ capacity: 1000000000, refill: 1000000/s }}
"
    )
}

#[cfg(test)]
mod tests {
    use tidegate::Request;
    use tidegate_rules::RuleFile;

    use super::*;

    #[test]
    fn flood_and_bystander_have_one_limit_each() {
        let file = RuleFile::parse("bench", &gateway_rules(FLOOD_LIMIT)).unwrap_or_else(|report| panic!("{report}"));
        let rule = |path| {
            let plan = file.rules().resolve(&Request::new("").with_attribute("path", path).with_attribute("ip", "::1"));
            let [check] = plan.checks() else { panic!("{plan:?}") };
            check.gate().rule().id.to_string()
        };
        assert_eq!((rule("/flood/items").as_str(), rule("/api/items").as_str()), ("flood", "bystander"));
    }
}
