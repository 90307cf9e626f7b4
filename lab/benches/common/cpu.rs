//! CPU time, which other programs distort less than wall time.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds that this thread has run, and that it was runnable without a processor.
pub(crate) fn thread_nanos() -> (f64, f64) {
    // The kernel updates the count of a running thread only when it schedules.
    std::thread::yield_now();
    let status = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux kernel with schedstat");
    let mut fields = status.split(' ').map(|nanos| nanos.parse().unwrap());
    (fields.next().unwrap(), fields.next().unwrap())
}

/// CPU microseconds of the server's main thread, which runs all commands.
pub(crate) fn server_micros(connection: &mut redis::Connection) -> f64 {
    let info: String = redis::cmd("INFO").arg("cpu").query(connection).unwrap();
    let seconds: f64 = ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"]
        .map(|name| field(&info, name).parse::<f64>().unwrap())
        .iter()
        .sum();
    seconds * 1e6
}

/// CPU microseconds of this process, including threads that have ended.
pub(crate) fn process_micros() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// A field of the reply to `INFO`.
pub(crate) fn field<'i>(info: &'i str, name: &str) -> &'i str {
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in the server's INFO"))
}
