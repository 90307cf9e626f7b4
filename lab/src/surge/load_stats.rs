//! `LoadStats`: how late the load generator was and how busy the machine. This is the only place that decides whether a machine was too
//! busy for the results of a phase to say anything about the servers.

use std::time::Duration;

use serde::Serialize;

use super::cpu::CpuUsage;
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

impl LoadStats {
    pub(crate) fn new(request_log: &RequestLog, cpu: Option<CpuUsage>) -> Self {
        let lag = LatencySummary::new(&request_log.send_delays(&[ClientKind::RIDERS, ClientKind::Bot]));
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
}
