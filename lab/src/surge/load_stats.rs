//! `LoadStats`: how late the load generator was and how busy the machine. This is the only place that decides whether a machine was too
//! busy for the results of a phase to say anything about the servers.

use std::fs;
use std::time::Duration;

use serde::Serialize;

use super::format::{format_percent, format_time};
use super::request_log::{ClientKind, RequestLog};
use super::results::LatencySummary;

/// Largest scheduling lag, at p99, with which results are judged.
const MAX_LAG: Duration = Duration::from_millis(20);

/// With a larger CPU usage the machine is too small for the run.
const MAX_CPU_SHARE: f64 = 0.9;

/// With a larger CPU usage of other programs they disturb the run.
const MAX_OTHERS_CPU_SHARE: f64 = 0.1;

/// How the machine treated the load generator in one phase.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct LoadStats {
    /// Scheduling lag: the delay from when requests of riders and the bot were due to when they were sent. No code of the servers runs
    /// in between, so that only the machine causes it.
    #[serde(rename = "late")]
    pub(crate) lag: LatencySummary,
    /// The same delay of drivers and clerks. A convoy is more than a small machine can send at once.
    #[serde(rename = "late_staff")]
    pub(crate) staff_lag: LatencySummary,
    /// `None` where the system does not report it.
    pub(crate) cpu: Option<CpuUsage>,
}

/// CPU time spent until one moment, in clock ticks. The difference of two samples is a [`CpuUsage`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuSample {
    total: u64,
    busy: u64,
    /// Spent by this run.
    own: u64,
}

/// CPU usage between two samples, as shares of 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CpuUsage {
    /// Time in which the CPUs were busy.
    pub(crate) share: f64,
    /// Time in which they were busy with other programs.
    pub(crate) others: f64,
}

impl LoadStats {
    pub(crate) fn new(request_log: &RequestLog, cpu: Option<CpuUsage>) -> Self {
        let lag = LatencySummary::new(&request_log.send_delays(&[ClientKind::Rider, ClientKind::Bot]));
        Self { lag, staff_lag: LatencySummary::new(&request_log.send_delays(&[ClientKind::Staff])), cpu }
    }

    /// Why the results of this phase show the machine rather than the servers; `None` if they do not.
    pub(crate) fn disturbance(&self) -> Option<String> {
        let mut causes = Vec::new();
        match self.cpu {
            Some(cpu) if cpu.others > MAX_OTHERS_CPU_SHARE => {
                causes.push(format!("other programs used {} of the CPUs", format_percent(cpu.others)));
            }
            Some(cpu) if cpu.share > MAX_CPU_SHARE => {
                causes.push(format!("the CPUs were {} busy", format_percent(cpu.share)));
            }
            _ => {}
        }
        if self.lag.p99 > MAX_LAG.as_secs_f64() * 1000.0 {
            causes.push(format!("1 % of the riders' requests were sent at least {} late", format_time(self.lag.p99)));
        }
        (!causes.is_empty()).then(|| causes.join(" and "))
    }
}

// === impl CpuSample ===

impl CpuSample {
    /// Samples now. This process and that of the store count as this run. `None` where the system has no `/proc/stat`.
    pub(crate) fn now(store_process: Option<u32>) -> Option<Self> {
        let (total, busy) = parse_machine_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
        let mut own = parse_process_ticks(&fs::read_to_string("/proc/self/stat").ok()?)?;
        if let Some(store) = store_process {
            own += parse_process_ticks(&fs::read_to_string(format!("/proc/{store}/stat")).ok()?)?;
        }
        Some(Self { total, busy, own })
    }

    /// The usage between `before` and this sample; `None` if no time has passed.
    pub(crate) fn since(self, before: Self) -> Option<CpuUsage> {
        let total = self.total.checked_sub(before.total).filter(|total| *total > 0)? as f64;
        let (busy, own) = (self.busy.saturating_sub(before.busy), self.own.saturating_sub(before.own));
        Some(CpuUsage { share: busy as f64 / total, others: busy.saturating_sub(own) as f64 / total })
    }
}

/// Total and busy ticks of `/proc/stat`. Its first line has user, nice, system, idle, iowait, irq, softirq and steal time.
fn parse_machine_ticks(text: &str) -> Option<(u64, u64)> {
    let ticks = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<u64> = ticks.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let idle = ticks.get(3)? + ticks.get(4)?;
    let total = ticks.iter().sum::<u64>();
    Some((total, total - idle))
}

/// User and system ticks of `/proc/<pid>/stat`: fields 12 and 13 after the process name, which may contain spaces and
/// parentheses.
fn parse_process_ticks(text: &str) -> Option<u64> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_disturbs_a_phase_only_above_each_bound() {
        let disturbance = |p99, share, others| {
            let lag = LatencySummary { p99, ..LatencySummary::default() };
            LoadStats { lag, cpu: Some(CpuUsage { share, others }), ..LoadStats::default() }.disturbance()
        };
        assert_eq!(disturbance(20.0, 0.9, 0.1), None);
        assert_eq!(disturbance(20.0, 0.9, 0.25).unwrap(), "other programs used 25 % of the CPUs");
        assert_eq!(disturbance(20.0, 0.95, 0.1).unwrap(), "the CPUs were 95 % busy");
        let late = "1 % of the riders' requests were sent at least 31 ms late";
        assert_eq!(disturbance(31.0, 0.9, 0.1).unwrap(), late);
        assert_eq!(disturbance(31.0, 0.9, 0.25).unwrap(), format!("other programs used 25 % of the CPUs and {late}"));
        assert_eq!(LoadStats::default().disturbance(), None, "the usage is unknown");
    }

    #[test]
    fn usage_is_the_difference_of_two_samples() {
        let at = |text, own| parse_machine_ticks(text).map(|(total, busy)| CpuSample { total, busy, own }).unwrap();
        let before = at("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1\n", 40);
        let after = at("cpu  160 0 120 710 100 0 5 5 0 0\n", 100);
        let usage = after.since(before).unwrap();
        assert!((usage.share - 0.9).abs() < 1e-9 && (usage.others - 0.3).abs() < 1e-9, "{usage:?}");
        assert_eq!(after.since(after), None);
        assert!(parse_machine_ticks("").is_none() && parse_machine_ticks("cpu  1 2 x").is_none());
    }

    #[test]
    fn process_ticks_are_found_after_any_process_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 5 0 0 0 12 34 0 0 20 0 3 0 9";
        assert_eq!((parse_process_ticks(stat), parse_process_ticks("7 (a")), (Some(46), None));
    }
}
