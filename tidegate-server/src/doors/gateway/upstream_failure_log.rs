//! `UpstreamFailureLog`: why the upstream could not be reached, at most once a second.

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use tidegate::sync::Mutex;
use tidegate::{Clock, SystemClock, Timestamp};

use super::upstream::Upstream;

/// While an upstream is down, every request fails, and clients decide how many there are.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Longest reason that is written; the rest is cut off.
const MAX_REASON_CHARS: usize = 500;

/// Logs failures.
pub(super) struct UpstreamFailureLog<C = SystemClock> {
    upstream: String,
    clock: C,
    last: Mutex<LastEntry>,
}

#[derive(Default)]
struct LastEntry {
    at: Option<Timestamp>,
    suppressed: u64,
}

impl UpstreamFailureLog {
    pub(super) fn new(upstream: &Upstream) -> Self {
        Self { upstream: upstream.to_string(), clock: SystemClock::new(), last: Mutex::default() }
    }
}

impl<C: Clock> UpstreamFailureLog<C> {
    /// Logs why a request got no response.
    pub(super) fn log(&self, error: &(dyn Error + 'static)) {
        let now = self.clock.now();
        let mut last = self.last.lock();
        if last.at.is_some_and(|at| now.since(at) < MIN_INTERVAL) {
            last.suppressed += 1;
            return;
        }
        let suppressed = std::mem::take(&mut last.suppressed);
        last.at = Some(now);
        drop(last);
        let (upstream, reason) = (&self.upstream, reason(error));
        tracing::warn!(target: "tidegate::gateway", suppressed, "the upstream {upstream} gave no response: {reason}");
    }
}

/// An error and its causes. None of them has a part of a request: they are about connections.
fn reason(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        let next = error.to_string();
        // Some errors repeat their causes.
        if !text.ends_with(&next) {
            let _ = write!(text, ": {next}");
        }
        cause = error.source();
    }
    text.chars().take(MAX_REASON_CHARS).filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tidegate::ManualClock;

    use super::*;

    #[test]
    fn a_flood_of_failures_is_one_line_a_second_that_counts_the_others() {
        let (clock, output) = (ManualClock::starting_at(Timestamp::from_micros(0)), Arc::new(Mutex::new(Vec::new())));
        let log = UpstreamFailureLog { upstream: "https://a".into(), clock: clock.clone(), last: Mutex::default() };
        let writer = Arc::clone(&output);
        let format = tracing_subscriber::fmt().without_time().with_ansi(false);
        let format = format.with_writer(move || TestWriter(Arc::clone(&writer)));
        tracing::subscriber::with_default(format.finish(), || {
            let error = io::Error::other(io::Error::other("invalid\npeer certificate: UnknownIssuer"));
            for _ in 0..1000 {
                log.log(&error);
            }
            clock.advance(MIN_INTERVAL);
            log.log(&error);
        });
        let text = String::from_utf8(output.lock().clone()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("the upstream https://a gave no response: invalidpeer certificate: UnknownIssuer"));
        assert!(lines[1].contains("suppressed=999"), "{text}");
    }

    struct TestWriter(Arc<Mutex<Vec<u8>>>);

    impl io::Write for TestWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
