//! What the system knows of this process. Values that it does not provide are `None`.

use std::fs;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

pub(super) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

pub(super) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

pub(super) fn open_fds() -> Option<usize> {
    // One of them reads the directory.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

pub(super) fn max_fds() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_descriptors_and_cpu_time_of_the_process_are_read() {
        assert!(cpu_seconds() > 0.0);
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 20));
        let before = open_fds().unwrap();
        let _file = fs::File::open("/proc/self/status").unwrap();
        assert!(open_fds().unwrap() > before.saturating_sub(5), "other tests may close some");
        assert!(max_fds().is_none_or(|max| max > 0));
    }
}
