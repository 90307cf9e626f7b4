//! `CoreAssignment`: the CPU cores of servers and load. It pins the calling thread only, and unpins it on drop.

use tidegate_server::command::Failure;

/// The core of the servers and that of the load, if they are pinned.
pub(super) type Cores = Option<(usize, usize)>;

/// The CPU cores that servers and load are pinned to.
pub(super) struct CoreAssignment {
    pub(super) assigned: Cores,
    /// The affinity of the thread before.
    original: Vec<usize>,
}

impl CoreAssignment {
    /// The cores of the flags; by default the first two.
    pub(super) fn choose(server: Option<usize>, load: Option<usize>) -> Result<Self, Failure> {
        let original = system::allowed();
        let assigned = choose(&original, server, load).map_err(Failure::usage)?;
        Ok(Self { assigned, original })
    }

    /// Pins this thread, and the processes it starts, to the core of the servers. Returns whether that succeeded.
    pub(super) fn pin_to_server_core(&self) -> bool {
        self.assigned.is_some_and(|(server, _)| system::pin(&[server]))
    }

    /// Pins this thread to the core of the load. Returns whether that succeeded.
    pub(super) fn pin_to_load_core(&self) -> bool {
        self.assigned.is_some_and(|(_, load)| system::pin(&[load]))
    }
}

impl Drop for CoreAssignment {
    fn drop(&mut self) {
        if self.assigned.is_some() {
            // The thread may be used for something else afterwards.
            system::pin(&self.original);
        }
    }
}

/// Chooses two of the `allowed` cores; `None` if there is only one and no flag names one.
fn choose(allowed: &[usize], server: Option<usize>, load: Option<usize>) -> Result<Cores, String> {
    for (flag, core) in [("--server-core", server), ("--load-core", load)] {
        if let Some(core) = core.filter(|core| !allowed.contains(core)) {
            let available: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            let available = if available.is_empty() { "none".to_owned() } else { available.join(", ") };
            return Err(format!("{flag} {core}: this process cannot use that core; available: {available}"));
        }
    }
    let other = |taken: Option<usize>| allowed.iter().copied().find(|core| Some(*core) != taken);
    let server = server.or_else(|| other(load));
    let load = load.or_else(|| other(server));
    Ok(server.zip(load))
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The cores that this thread may run on.
    pub(super) fn allowed() -> Vec<usize> {
        sched_getaffinity(None)
            .map_or(Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
    }

    /// Restricts this thread, and the processes it starts, to these cores.
    pub(super) fn pin(cores: &[usize]) -> bool {
        let mut set = CpuSet::new();
        for core in cores {
            set.set(*core);
        }
        sched_setaffinity(None, &set).is_ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) const fn allowed() -> Vec<usize> {
        Vec::new()
    }

    pub(super) const fn pin(_cores: &[usize]) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_load_get_different_cores_if_there_are_two() {
        assert_eq!(choose(&[0, 1, 2], None, None), Ok(Some((0, 1))));
        assert_eq!(choose(&[4, 6], None, None), Ok(Some((4, 6))));
        assert_eq!(choose(&[0, 1], Some(1), None), Ok(Some((1, 0))));
        assert_eq!(choose(&[0, 1], None, Some(0)), Ok(Some((1, 0))));
        assert_eq!(choose(&[0, 1], Some(1), Some(1)), Ok(Some((1, 1))), "the flags may name one core for both");
        assert_eq!(choose(&[0], None, None), Ok(None));
        assert_eq!(choose(&[], None, None), Ok(None));
    }

    #[test]
    fn an_unavailable_core_is_rejected_with_a_list_of_the_available_ones() {
        let error = choose(&[0, 1], None, Some(9)).unwrap_err();
        assert_eq!(error, "--load-core 9: this process cannot use that core; available: 0, 1");
        assert!(choose(&[], Some(0), None).unwrap_err().starts_with("--server-core 0: "));
    }
}
