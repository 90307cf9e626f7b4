//! `CpuSample`: how busy the CPUs of this machine are, and with whose work. It distinguishes an overloaded or shared machine from a
//! slow server.

use std::fs;

use serde::Serialize;

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

/// The number of CPUs that this process may use.
pub(crate) fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

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
