//! The flags of `tidegate-lab bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// Measure CPU time and latency of the front ends, compared with a do-nothing server and nginx; or load any URL
///
/// CPU time per request: the servers run on one CPU core, the load on another. All servers take turns for several rounds, and
/// the best round of each counts. Latency: requests are scheduled at a fixed rate, regardless of the responses, and each
/// latency counts from the scheduled time. Use a release build before you quote a number.
///
/// With --url only latency is measured, against that URL: responses are counted by status, and no server is started.
///
/// Exit code: 0 with results, 1 if some requests to --url got no response, 2 for wrong arguments, or if a server cannot start
/// or responds incorrectly.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// What to measure [default: everything available, without shared]
    #[arg(value_enum, value_name = "TARGET", conflicts_with = "url")]
    pub(crate) targets: Vec<Target>,
    /// Rounds for the CPU time; all servers take turns in each
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "url")]
    pub(crate) rounds: u32,
    /// Requests per server and round, sent as fast as they are answered
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000), conflicts_with = "url")]
    pub(crate) requests: u64,
    /// Requests per second, for the latency
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: u32,
    /// Duration of the latency measurement, in seconds
    #[arg(long, value_name = "S", default_value = "5", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
    /// Maximum number of requests in flight, each on its own connection (gRPC: all on one)
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) connections: u16,
    /// CPU core of the servers [default: the first]
    #[arg(long, value_name = "CORE", conflicts_with = "url")]
    pub(crate) server_core: Option<usize>,
    /// CPU core of the load [default: the second]
    #[arg(long, value_name = "CORE", conflicts_with = "url")]
    pub(crate) load_core: Option<usize>,
    /// Another build of this program, to compare the latency of a decision with (shared)
    #[arg(long, value_name = "PROGRAM", conflicts_with = "url")]
    pub(crate) baseline: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) url_load: UrlArgs,
}

/// Load for any URL.
#[derive(Args)]
#[command(next_help_heading = "Load for any URL")]
pub(crate) struct UrlArgs {
    /// The URL, such as `http://127.0.0.1:3000/path`
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<http::Uri>,
    /// The HTTP method [default: GET, or POST with a body]
    #[arg(long, short = 'X', value_name = "METHOD")]
    pub(crate) method: Option<http::Method>,
    /// A header; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// The request body
    #[arg(long, short = 'd', value_name = "BODY")]
    pub(crate) data: Option<String>,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// Envoy's rate limit service, and a gRPC server that always answers OK
    Rls,
    /// The check API
    Check,
    /// The gateway, with and without limits
    Gateway,
    /// nginx, with and without `limit_req`, in front of the same upstream
    Nginx,
    /// Only if named, and alone: the front ends on a Redis server, compared with the memory store; a flood, a client over its limit
    Shared,
    /// Internal: runs the gRPC server that always answers OK.
    #[value(hide = true)]
    ServeNothing,
}

impl BenchArgs {
    /// An error for flags that contradict each other in a way that clap cannot express.
    pub(crate) fn conflicting_flags(&self) -> Option<&'static str> {
        let UrlArgs { url, method, header, data } = &self.url_load;
        if url.is_none() && (method.is_some() || !header.is_empty() || data.is_some()) {
            return Some("--method, --header and --data need --url");
        }
        if self.baseline.is_some() && !self.targets.contains(&Target::Shared) {
            return Some("--baseline needs the target shared");
        }
        let is_combined = |target: Target| self.targets.contains(&target) && self.targets.len() > 1;
        if is_combined(Target::Shared) {
            return Some("shared cannot be combined with other targets");
        }
        is_combined(Target::ServeNothing).then_some("serve-nothing cannot be combined with other targets")
    }

    /// Whether this target is to be measured.
    pub(crate) fn includes(&self, target: Target) -> bool {
        self.targets.is_empty() || self.targets.contains(&target)
    }
}

/// Parses seconds with an optional fraction.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err("must be from 0.01 to 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

const EXAMPLES: &str = "\
Examples:
  tidegate-lab bench                                # everything, in about two minutes
  tidegate-lab bench rls gateway --json
  tidegate-lab bench gateway --requests 100000 --connections 64
  tidegate-lab bench shared --baseline ./tidegate-0.1   # on Redis, in about four minutes
  tidegate-lab bench --url http://127.0.0.1:3000/search --rate 500 --seconds 30
  tidegate-lab bench --url http://127.0.0.1:8080/v1/check -H 'content-type: application/json' \\
      -d '{\"path\":\"/hello\"}'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_duration_must_be_between_a_hundredth_of_a_second_and_a_day() {
        assert_eq!(parse_seconds("0.25"), Ok(Duration::from_millis(250)));
        for text in ["0", "-1", "nan", "inf", "1e9", "five", ""] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
