//! `SharedServers`: the Redis server and the front ends on it, with those that they are compared with.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use conformance::process::Process;
use conformance::serve_process::ANY_PORT;
use tidegate_server::command::Failure;

use super::super::options::BenchArgs;
use super::super::server_under_test::{RULES, read_address, serve, serve_files, serve_nothing, this_program};
use crate::traffic::{RedisServer, cpu_time};

/// The units that a client over its limit gets. On the memory store the limit is 0.
pub(super) const FLOOD_LIMIT: u64 = 100;

/// A running front end.
pub(super) struct FrontDoor {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    process: Process,
    /// Whether its store is the Redis server.
    on_redis: bool,
}

/// CPU time of a front end and of the Redis server that it uses.
#[derive(Clone, Copy)]
pub(super) struct SpentCpu {
    pub(super) door: Duration,
    pub(super) redis: Duration,
}

/// All servers of a run.
pub(super) struct SharedServers {
    pub(super) redis: RedisServer,
    pub(super) gateway_on_redis: FrontDoor,
    pub(super) gateway_in_memory: FrontDoor,
    pub(super) do_nothing: FrontDoor,
    pub(super) rate_limit_services: [FrontDoor; 2],
    /// The check API of this program, and of the one of `--baseline`.
    pub(super) check_apis: Vec<FrontDoor>,
}

impl SharedServers {
    /// Starts all of them on the CPU core of this thread.
    pub(super) fn start(arguments: &BenchArgs, folder: &Path, upstream: SocketAddr) -> Result<Self, Failure> {
        let Some(redis) = RedisServer::start()? else {
            return Err(Failure::usage("neither redis-server nor valkey-server is installed; install one of them"));
        };
        let (this, url) = (this_program()?, redis.url());
        let store = ["--store", &url];
        // Calls that fail on a busy machine would end the measurement.
        let patient = ["--store", &url, "--store-budget", "2000", "--queue-wait", "2000"];
        let gateway = |name: &str, limit: u64, store: &[&str]| {
            let upstream = format!("http://{upstream}");
            let flags = ["--gateway", ANY_PORT, "--upstream", &upstream];
            let process = serve(&this, folder, &gateway_rules(limit), &[&flags, store].concat())?;
            FrontDoor::new(name, process, "gateway", !store.is_empty())
        };
        let grpc = |name: &str, process, on_redis| FrontDoor::new(name, process, "Envoy RLS", on_redis);
        let mut check_apis = vec![("check API on Redis", this.clone())];
        check_apis.extend(arguments.baseline.clone().map(|path| ("the same of --baseline", path)));
        let check_apis = check_apis
            .into_iter()
            .map(|(name, program)| FrontDoor::new(name, serve(&program, folder, RULES, &store)?, "check API", true));
        Ok(Self {
            gateway_on_redis: gateway("gateway on Redis", FLOOD_LIMIT, &store)?,
            gateway_in_memory: gateway("gateway in memory, limit 0", 0, &[])?,
            do_nothing: grpc("do-nothing tonic server", serve_nothing(&this)?, false)?,
            rate_limit_services: [
                grpc("rate limit service on Redis, Envoy's files", serve_files(&this, folder, &patient)?, true)?,
                grpc("rate limit service on Redis, rule file", serve(&this, folder, RULES, &patient)?, true)?,
            ],
            check_apis: check_apis.collect::<Result<_, _>>()?,
            redis,
        })
    }

    /// The CPU time that `door`, and Redis if it uses it, have spent so far.
    pub(super) fn spent(&self, door: &FrontDoor) -> Result<SpentCpu, Failure> {
        let redis = if door.on_redis { cpu_time(self.redis.process())? } else { Duration::ZERO };
        Ok(SpentCpu { door: cpu_time(&door.process)?, redis })
    }
}

impl FrontDoor {
    /// `line` begins the line of output with its address.
    fn new(name: &str, mut process: Process, line: &str, on_redis: bool) -> Result<Self, Failure> {
        let address = read_address(&mut process, line)?;
        Ok(Self { name: name.to_owned(), address, process, on_redis })
    }
}

impl SpentCpu {
    /// Microseconds since `earlier` for each of `requests`: of the front end, and of Redis.
    pub(super) fn micros_since(self, earlier: Self, requests: u64) -> [f64; 2] {
        let each =
            |now: Duration, earlier: Duration| now.saturating_sub(earlier).as_secs_f64() * 1e6 / requests.max(1) as f64;
        [each(self.door, earlier.door), each(self.redis, earlier.redis)]
    }
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
            check.gate().rule().to_owned()
        };
        assert_eq!((rule("/flood/items").as_str(), rule("/api/items").as_str()), ("flood", "bystander"));
    }
}
