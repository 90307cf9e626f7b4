//! The flags of `tidegate bench`. What they mean is decided by what they start.

use std::time::Duration;

use clap::{Args, ValueEnum};

/// Measure what the doors cost, next to a server that does nothing and to nginx; or load any address
///
/// The CPU time of one request is that of the server's process, on a core of its own, with the load on another: the best
/// of several rounds in which all servers take turns. Latencies come from a second part: requests are due at a fixed rate
/// whatever the answers do, and each latency counts from when its request was due. Build with --release before you quote a
/// number.
///
/// With --url only the second part runs, against that address: answers are counted by status, and nothing is started.
///
/// Exit code: 0 if there are figures, 1 if some requests to --url got no answer, 2 for wrong arguments, or if a server cannot
/// be started or answers wrongly.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// What to measure; left out, everything that there is
    #[arg(value_enum, value_name = "TARGET", conflicts_with = "url")]
    pub(crate) targets: Vec<Target>,
    /// How often all servers take their turn
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "url")]
    pub(crate) rounds: u32,
    /// How many requests a turn has, as fast as they are answered
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000), conflicts_with = "url")]
    pub(crate) requests: u64,
    /// How many requests are due in a second, for latencies
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: u32,
    /// For how many seconds requests are due, for latencies
    #[arg(long, value_name = "S", default_value = "5", value_parser = span)]
    pub(crate) seconds: Duration,
    /// How many requests may be under way at a time, each on a connection of its own (gRPC: all on one)
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) connections: u16,
    /// The core of the servers; left out, the first
    #[arg(long, value_name = "CORE", conflicts_with = "url")]
    pub(crate) server_core: Option<usize>,
    /// The core of the load; left out, the second
    #[arg(long, value_name = "CORE", conflicts_with = "url")]
    pub(crate) load_core: Option<usize>,
    /// Write one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) to: UrlArgs,
}

/// Load for any address.
#[derive(Args)]
#[command(next_help_heading = "Any address")]
pub(crate) struct UrlArgs {
    /// What to load, such as `http://127.0.0.1:3000/path`
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<http::Uri>,
    /// The HTTP method; left out, GET, or POST if there is a body
    #[arg(long, short = 'X', value_name = "METHOD")]
    pub(crate) method: Option<http::Method>,
    /// A header, as often as there are headers
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// The body
    #[arg(long, short = 'd', value_name = "BODY")]
    pub(crate) data: Option<String>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// Envoy's rate limit service, and a gRPC server that says yes at once
    Rls,
    /// The check API
    Check,
    /// The gateway, with limits and without
    Gateway,
    /// nginx, with `limit_req` and without, in front of the same upstream
    Nginx,
    /// Not measured: the gRPC server that says yes at once.
    #[value(hide = true)]
    ServeNothing,
}

impl BenchArgs {
    /// Flags that contradict each other in a way that clap does not see: it asks for no `--url` where a target forbids it.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let to = &self.to;
        if to.url.is_none() && (to.method.is_some() || !to.header.is_empty() || to.data.is_some()) {
            return Some("--method, --header and --data are for --url");
        }
        let served = self.targets.contains(&Target::ServeNothing);
        (served && self.targets.len() > 1)
            .then_some("serve-nothing stands alone: it is a server, and nothing to measure")
    }

    /// Whether this is to be measured.
    pub(crate) fn wants(&self, target: Target) -> bool {
        self.targets.is_empty() || self.targets.contains(&target)
    }
}

/// A number of seconds, perhaps with a fraction.
fn span(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "this is no number".to_owned())?;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err("a time from 0.01 to 86400 seconds can be measured".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

const EXAMPLES: &str = "\
Examples:
  tidegate bench                                # everything, in about two minutes
  tidegate bench rls gateway --json
  tidegate bench gateway --requests 100000 --connections 64
  tidegate bench --url http://127.0.0.1:3000/search --rate 500 --seconds 30
  tidegate bench --url http://127.0.0.1:8080/v1/check -d '{\"path\":\"/hello\"}'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_positive_and_has_an_end() {
        assert_eq!(span("0.25"), Ok(Duration::from_millis(250)));
        for nonsense in ["0", "-1", "nan", "inf", "1e9", "five", ""] {
            assert!(span(nonsense).is_err(), "{nonsense}");
        }
    }
}
