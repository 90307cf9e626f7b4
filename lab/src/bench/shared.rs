//! `tidegate-lab bench shared`: the front ends on a Redis server, compared with the memory store and with a server that does nothing.
//!
//! | part | compared |
//! |---|---|
//! | [flood] | a client over its limit, over many connections, and a bystander |
//! | [`cpu_per_request`] | a client over its limit, and Envoy's rate limit service |
//! | [`idle_latency`] | one decision at a time, with another build of this program |
//!
//! The servers, and Redis, are processes on one CPU core; the load is one thread on another. No measurement is judged.

mod cpu_per_request;
mod figure_table;
mod flood;
mod idle_latency;
mod servers;

use std::sync::Arc;

use serde_json::json;
use tidegate::Timer;
use tidegate_server::command::{Exit, Failure, Output};

use super::core_assignment::CoreAssignment;
use super::options::BenchArgs;
use super::{print_core_notes, run_until_signal};
use figure_table::FigureTable;
use servers::SharedServers;

use crate::traffic::Upstream;

/// Runs `tidegate-lab bench shared`.
pub(super) fn run(
    arguments: &BenchArgs,
    timer: &Arc<impl Timer + 'static>,
    output: &mut Output<'_>,
) -> Result<Exit, Failure> {
    flood::raise_file_limit()?;
    let cores = CoreAssignment::choose(arguments.server_core, arguments.load_core)?;
    let failed = |error: std::io::Error| Failure::usage(format!("cannot prepare the measurement: {error}"));
    let folder = tempfile::tempdir().map_err(failed)?;
    let upstream = Upstream::bind().map_err(failed)?;
    let mut pinned = cores.pin_to_server_core();
    let servers = SharedServers::start(arguments, folder.path(), upstream.address().map_err(failed)?)?;
    pinned &= cores.pin_to_load_core();
    print_core_notes(&cores, pinned, output);
    let tables = run_until_signal(async {
        tokio::select! {
            tables = measure(arguments, &servers, timer, output) => tables,
            result = upstream.serve(|_| ()) => {
                Err(Failure::usage(format!("the upstream of the gateways stopped: {:?}", result.err())))
            }
        }
    })?;
    print(arguments, &servers, &tables, output);
    Ok(Exit::Success)
}

async fn measure(
    arguments: &BenchArgs,
    servers: &SharedServers,
    timer: &Arc<impl Timer + 'static>,
    output: &mut Output<'_>,
) -> Result<Vec<FigureTable>, Failure> {
    output.progress("a flood");
    let flood = flood::measure(arguments, servers, timer).await?;
    output.progress("a known offender");
    let offender = cpu_per_request::measure_offender(arguments, servers).await?;
    output.progress("the rate limit service");
    let rate_limit_service = cpu_per_request::measure_rate_limit_service(arguments, servers).await?;
    output.progress("one decision at a time");
    let idle = idle_latency::measure(arguments, servers, timer).await?;
    output.progress("");
    Ok(vec![flood, offender, rate_limit_service, idle])
}

fn print(arguments: &BenchArgs, servers: &SharedServers, tables: &[FigureTable], output: &mut Output<'_>) {
    if arguments.json {
        output.json(&json!({
            "store": servers.redis.version(),
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
