//! The front ends and the servers that they are compared with: the CPU time of a request first, then latency.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tidegate_server::command::{Failure, Output};

use super::core_assignment::Cores;
use super::cpu_per_request::{self, Contender};
use super::figure_table::FigureTable;
use super::latency::Latencies;
use super::launcher::{GATEWAY_LEASE_RULES, GATEWAY_RULES, Launcher, NO_RULES, RULES, ServerUnderTest};
use super::options::{BenchArgs, Target};
use super::request_template::RequestTemplate;
use super::{Bench, load};

/// What is divided by what, by the names in JSON output.
const RATIOS: [[&str; 2]; 6] = [
    ["rls_envoy_files", "rls_do_nothing"],
    ["rls_rule_file", "rls_do_nothing"],
    ["gateway_limits", "gateway"],
    ["gateway_lease", "gateway_limits"],
    ["nginx_limits", "nginx"],
    ["gateway_limits", "nginx_limits"],
];

/// A running server, and the requests for it.
pub(super) struct FrontDoor {
    /// The name in JSON output.
    name: &'static str,
    server: ServerUnderTest,
    template: RequestTemplate,
}

/// The results of one server.
pub(super) struct Measurement {
    cpu_micros: f64,
    latencies: Latencies,
}

/// Starts the chosen servers. A missing nginx is an error only if it was named.
pub(super) fn start(
    arguments: &BenchArgs,
    launcher: &Launcher,
    output: &mut Output<'_>,
) -> Result<Vec<FrontDoor>, Failure> {
    let mut doors = Vec::new();
    let mut add = |name, template: fn(SocketAddr) -> RequestTemplate, server: ServerUnderTest| {
        doors.push(FrontDoor { name, template: template(server.address), server });
    };
    let unlimited = |address| RequestTemplate::gateway(address, false);
    let limited = |address| RequestTemplate::gateway(address, true);
    if arguments.includes(Target::Rls) {
        add("rls_do_nothing", RequestTemplate::rate_limits, launcher.do_nothing()?);
        let server = launcher.envoy_files("rate limit service, Envoy's files", &[])?;
        add("rls_envoy_files", RequestTemplate::rate_limits, server);
        let server = launcher.serve("rate limit service, rule file", "Envoy RLS", RULES, &[])?;
        add("rls_rule_file", RequestTemplate::rate_limits, server);
    }
    if arguments.includes(Target::Check) {
        add("check", RequestTemplate::check, launcher.serve("check API", "check API", RULES, &[])?);
    }
    if arguments.includes(Target::Gateway) {
        add("gateway", unlimited, launcher.gateway("gateway, limits off", NO_RULES, &[])?);
        add("gateway_limits", limited, launcher.gateway("gateway, limits on", GATEWAY_RULES, &[])?);
        let server = launcher.gateway("gateway, a lease for each request", GATEWAY_LEASE_RULES, &[])?;
        add("gateway_lease", limited, server);
    }
    if arguments.includes(Target::Nginx) {
        for (name, title, limits) in [("nginx", "nginx", false), ("nginx_limits", "nginx, limit_req", true)] {
            match launcher.nginx(title, limits)? {
                Some(server) => add(name, unlimited, server),
                None if arguments.targets.is_empty() => {
                    output.info("nginx is left out: it is not installed");
                    break;
                }
                None => return Err(Failure::usage("nginx is not installed; install it, or leave it out")),
            }
        }
    }
    Ok(doors)
}

/// Measures CPU time first, with all servers in turn; then latency.
pub(super) async fn measure(
    bench: &Bench<'_>,
    doors: &[FrontDoor],
    output: &mut Output<'_>,
) -> Result<Vec<Measurement>, Failure> {
    let requests = bench.arguments.connections;
    let contenders: Vec<_> = doors
        .iter()
        .map(|FrontDoor { server, template, .. }| Contender { server, template, clients: 1, requests })
        .collect();
    let best = cpu_per_request::measure(bench, &contenders, output).await?;
    let mut measurements = Vec::new();
    for (FrontDoor { server, template, .. }, [cpu_micros, _]) in doors.iter().zip(best) {
        output.progress(format_args!("latencies: {}", server.title));
        let latencies = load::measure_latencies(bench, server, template).await?;
        if latencies.unanswered > 0 {
            return Err(server.no_figures("some requests got no response"));
        }
        measurements.push(Measurement { cpu_micros, latencies });
    }
    output.progress("");
    Ok(measurements)
}

/// Prints the measurements, with the CPU cores of servers and load.
pub(super) fn print(
    arguments: &BenchArgs,
    doors: &[FrontDoor],
    measurements: &[Measurement],
    cores: Cores,
    output: &mut Output<'_>,
) {
    let measured = || doors.iter().zip(measurements);
    for (door, measurement) in measured() {
        for warning in measurement.latencies.warnings() {
            output.warn(format_args!("{}: {warning}", door.server.title));
        }
    }
    let find = |name| measured().find(|(door, measurement)| door.name == name && measurement.cpu_micros > 0.0);
    // Those of which both servers were measured.
    let ratios: Vec<_> = RATIOS.iter().filter_map(|[of, to]| Some((find(*of)?, find(*to)?))).collect();
    let ratios = ratios.iter().map(|(of, to)| (of.0, to.0, of.1.cpu_micros / to.1.cpu_micros));
    if arguments.json {
        let ratio = |(of, to, ratio): (&FrontDoor, &FrontDoor, f64)| -> Value {
            json!({ "of": of.name, "to": to.name, "ratio": round_to_thousandths(ratio) })
        };
        let server = |(door, measurement): (&FrontDoor, &Measurement)| -> Value {
            json!({
                "name": door.name,
                "title": door.server.title,
                "cpu_us": round_to_thousandths(measurement.cpu_micros),
                "per_second_and_core": measurement.per_second(),
                "latency": measurement.latencies.json(),
            })
        };
        output.json(&json!({
            "rounds": arguments.rounds,
            "requests": arguments.requests,
            "connections": arguments.connections,
            "rate": arguments.rate,
            "seconds": arguments.seconds.as_secs_f64(),
            "server_core": cores.map(|(server, _)| server),
            "load_core": cores.map(|(_, load)| load),
            "debug_build": cfg!(debug_assertions),
            "subjects": measured().map(server).collect::<Vec<_>>(),
            "ratios": ratios.map(ratio).collect::<Vec<_>>(),
        }));
        return;
    }
    let width = doors.iter().map(|door| door.server.title.len()).max().unwrap_or(0);
    let names = ["µs CPU", "a second and core", "p50 µs", "p90 µs", "p99 µs", "p99.9 µs", "max µs"];
    let row = |(door, measurement): (&FrontDoor, &Measurement)| {
        let latencies = measurement.latencies.micros().map(|micros| micros as f64);
        (door.server.title, [&[measurement.cpu_micros, measurement.per_second()][..], &latencies].concat())
    };
    let table = FigureTable {
        title: format!("{:width$}                             latencies at {} a second", "", arguments.rate),
        columns: names.into_iter().zip([2, 0, 0, 0, 0, 0, 0]).collect(),
        rows: measured().map(row).collect(),
        ratios: Vec::new(),
    };
    table.print(output);
    for (number, (of, to, ratio)) in ratios.enumerate() {
        let gap = if number == 0 { "\n" } else { "" };
        output.line(format_args!("{gap}{ratio:.2}  {} / {}", of.server.title, to.server.title));
    }
}

impl Measurement {
    /// Requests a second of one CPU core.
    fn per_second(&self) -> f64 {
        if self.cpu_micros > 0.0 { (1e6 / self.cpu_micros).round() } else { 0.0 }
    }
}

fn round_to_thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
