//! `ProcessCollector`: metrics of the process and its build, read when they are scraped. Values that the system does not
//! provide are left out.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use tidegate::Timestamp;

/// Reads the metrics of this process.
#[derive(Debug)]
pub(crate) struct ProcessCollector {
    /// When the process started.
    pub(crate) started: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
    revision: &'static str,
}

/// The build. A build script may name the revision of the source in `TIDEGATE_REVISION`.
const BUILD: BuildLabels = BuildLabels {
    version: env!("CARGO_PKG_VERSION"),
    revision: match option_env!("TIDEGATE_REVISION") {
        Some(revision) => revision,
        None => "unknown",
    },
};

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "The build that runs; always 1";
        encoder
            .encode_descriptor("tidegate_build_info", help, None, MetricType::Gauge)?
            .encode_family(&BUILD)?
            .encode_gauge(&1_u64)?;
        let help = "CPU time of the process, in seconds";
        let none: Option<&Exemplar<BuildLabels, f64>> = None;
        encoder
            .encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?
            .encode_counter(&cpu_seconds(), none)?;
        let gauges = [
            (
                "process_start_time_seconds",
                "Start of the process, in seconds since 1970",
                Some(self.started.as_micros() as f64 / 1e6),
            ),
            ("process_resident_memory_bytes", "Resident memory, in bytes", resident_bytes().map(|bytes| bytes as f64)),
            ("process_open_fds", "Open file descriptors", open_fds().map(|count| count as f64)),
            ("process_max_fds", "Highest number of open file descriptors", max_fds().map(|count| count as f64)),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

fn open_fds() -> Option<usize> {
    // One of them reads the directory.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

fn max_fds() -> Option<u64> {
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
