//! `Machine`: how busy the processors are, and with whom, so that a machine that is at its end, or that others use, is not mistaken
//! for a slow server.

use std::fs;

use serde::Serialize;

/// The processors at one moment; two of them tell what was between. In ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    all: u64,
    busy: u64,
    /// With us.
    own: u64,
}

/// What the processors did for some time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Busy {
    /// Share of the time in which they were busy.
    pub(crate) share: f64,
    /// Share of the time in which they were busy with something that is no part of the run.
    pub(crate) others: f64,
}

impl Machine {
    /// As it is now, where we are this process and perhaps one more; none where the system does not tell.
    pub(crate) fn now(store: Option<u32>) -> Option<Self> {
        let (all, busy) = processors_spent(&fs::read_to_string("/proc/stat").ok()?)?;
        let mut own = process_spent(&fs::read_to_string("/proc/self/stat").ok()?)?;
        if let Some(store) = store {
            own += process_spent(&fs::read_to_string(format!("/proc/{store}/stat")).ok()?)?;
        }
        Some(Self { all, busy, own })
    }

    /// What was between `before` and this.
    pub(crate) fn since(self, before: Self) -> Option<Busy> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)? as f64;
        let (busy, own) = (self.busy.saturating_sub(before.busy), self.own.saturating_sub(before.own));
        Some(Busy { share: busy as f64 / all, others: busy.saturating_sub(own) as f64 / all })
    }
}

/// All time, and that in which processors were busy. The first line has the times for user, nice, system, idle, waiting for disks,
/// interrupts, soft ones, and others' machines.
fn processors_spent(text: &str) -> Option<(u64, u64)> {
    let times = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let times: Vec<u64> = times.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let idle = times.get(3)? + times.get(4)?;
    let all = times.iter().sum::<u64>();
    Some((all, all - idle))
}

/// The time of a process, in itself and in the system: the twelfth and thirteenth field after its name, which may hold anything.
fn process_spent(text: &str) -> Option<u64> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
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
        let at = |text, own| processors_spent(text).map(|(all, busy)| Machine { all, busy, own }).unwrap();
        let before = at("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1\n", 40);
        let after = at("cpu  160 0 120 710 100 0 5 5 0 0\n", 100);
        let busy = after.since(before).unwrap();
        assert!((busy.share - 0.9).abs() < 1e-9 && (busy.others - 0.3).abs() < 1e-9, "{busy:?}");
        assert_eq!(after.since(after), None);
        assert!(processors_spent("").is_none() && processors_spent("cpu  1 2 x").is_none());
    }

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 5 0 0 0 12 34 0 0 20 0 3 0 9";
        assert_eq!((process_spent(stat), process_spent("7 (a")), (Some(46), None));
    }
}
