//! Processor time, which other programs on the machine do not lengthen as they do wall time.

/// Nanoseconds for which this thread has run, and for which it was ready to and waited for a processor.
pub(crate) fn thread_nanos() -> (f64, f64) {
    // The kernel adds up the time of a running thread when it schedules, so let it.
    std::thread::yield_now();
    let status = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux kernel with schedstat");
    let mut fields = status.split(' ').map(|nanos| nanos.parse().unwrap());
    (fields.next().unwrap(), fields.next().unwrap())
}

/// Microseconds for which the thread of a server that runs all commands has run.
pub(crate) fn server_micros(connection: &mut redis::Connection) -> f64 {
    let info: String = redis::cmd("INFO").arg("cpu").query(connection).unwrap();
    let seconds: f64 = ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"]
        .map(|name| field(&info, name).parse::<f64>().unwrap())
        .iter()
        .sum();
    seconds * 1e6
}

/// A field of an answer to `INFO`.
pub(crate) fn field<'i>(info: &'i str, name: &str) -> &'i str {
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in the server's INFO"))
}
