//! `Machine`: how busy the processors are, so that a machine that is at its end is not mistaken for a slow server.

use std::fs;

/// The processors at one moment; two of them tell what was between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    busy: u64,
    all: u64,
}

impl Machine {
    /// As it is now; none where the system does not tell.
    pub(crate) fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The share of the time since `before` in which processors were busy, ours or anybody's.
    pub(crate) fn since(self, before: Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all)?;
        (all > 0).then(|| self.busy.saturating_sub(before.busy) as f64 / all as f64)
    }

    /// The first line: times for user, nice, system, idle, waiting for disks, interrupts, soft ones, and others' machines.
    fn read(text: &str) -> Option<Self> {
        let times = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let times: Vec<u64> = times.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let idle = times.get(3)? + times.get(4)?;
        let all = times.iter().sum::<u64>();
        Some(Self { busy: all - idle, all })
    }
}

/// How many processors there are for this process.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_between_two_looks_is_the_difference() {
        let at = |text| Machine::read(text).unwrap();
        let before = at("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1\n");
        let after = at("cpu  160 0 120 710 100 0 5 5 0 0\n");
        assert!((after.since(before).unwrap() - 0.9).abs() < 1e-9);
        assert_eq!(after.since(after), None);
        assert!(Machine::read("").is_none() && Machine::read("cpu  1 2 x").is_none());
    }
}
