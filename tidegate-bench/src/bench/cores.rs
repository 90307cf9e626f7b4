//! `Cores`: which core the servers have, and which the load. It moves only the thread that asks, and moves it back.

use tidegate_server::command::Failure;

/// Where servers and load run.
pub(crate) struct Cores {
    /// The two, or none if everything runs everywhere.
    chosen: Option<(usize, usize)>,
    /// Where the thread was allowed to run before.
    before: Vec<usize>,
}

impl Cores {
    /// The cores that were asked for, or the first two.
    pub(crate) fn choose(server: Option<usize>, load: Option<usize>) -> Result<Self, Failure> {
        let before = system::allowed();
        let chosen = choose(&before, server, load).map_err(Failure::usage)?;
        Ok(Self { chosen, before })
    }

    /// What starts from here on runs with the servers. Whether that could be done is told.
    pub(crate) fn go_to_server(&self) -> bool {
        self.chosen.is_some_and(|(server, _)| system::pin(&[server]))
    }

    /// This thread is the load from here on.
    pub(crate) fn go_to_load(&self) -> bool {
        self.chosen.is_some_and(|(_, load)| system::pin(&[load]))
    }

    /// The core of the servers and that of the load.
    pub(crate) const fn chosen(&self) -> Option<(usize, usize)> {
        self.chosen
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        if self.chosen.is_some() {
            // Whoever called may have other things to do.
            system::pin(&self.before);
        }
    }
}

/// Two of the `allowed`; none if there is only one, and nobody asked for any.
fn choose(allowed: &[usize], server: Option<usize>, load: Option<usize>) -> Result<Option<(usize, usize)>, String> {
    for (flag, core) in [("--server-core", server), ("--load-core", load)] {
        if let Some(core) = core.filter(|core| !allowed.contains(core)) {
            let there: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            let there = if there.is_empty() { "none can be chosen here".to_owned() } else { there.join(", ") };
            return Err(format!("{flag} {core}: there is no such core for this process; there are: {there}"));
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

    /// Lets this thread, and what it starts, run on these only.
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
    fn servers_and_load_get_a_core_each_if_there_are_two() {
        assert_eq!(choose(&[0, 1, 2], None, None), Ok(Some((0, 1))));
        assert_eq!(choose(&[4, 6], None, None), Ok(Some((4, 6))));
        assert_eq!(choose(&[0, 1], Some(1), None), Ok(Some((1, 0))));
        assert_eq!(choose(&[0, 1], None, Some(0)), Ok(Some((1, 0))));
        assert_eq!(choose(&[0, 1], Some(1), Some(1)), Ok(Some((1, 1))), "who asks for it gets it");
        assert_eq!(choose(&[0], None, None), Ok(None));
        assert_eq!(choose(&[], None, None), Ok(None));
    }

    #[test]
    fn a_core_that_is_not_there_is_named_with_those_that_are() {
        let error = choose(&[0, 1], None, Some(9)).unwrap_err();
        assert_eq!(error, "--load-core 9: there is no such core for this process; there are: 0, 1");
        assert!(choose(&[], Some(0), None).unwrap_err().starts_with("--server-core 0: "));
    }
}
