//! `StatusLog`: logs when the store stops answering or answers again, when this instance becomes overloaded or recovers, and when the instances
//! of the deployment have had different rules for too long. It compares the state once in each interval, so that a store that comes and goes
//! does not fill the log.

use std::time::Duration;

use tidegate_redis::RedisStore;

use crate::engine::instrumented_store::InstrumentedStore;

/// Instances that have different rules for longer than this have them by mistake. An upgrade of all of them takes less.
pub const MAX_RULE_DIFFERENCE: Duration = Duration::from_mins(10);

/// The state at the last comparison.
#[derive(Debug)]
pub(crate) struct StatusLog {
    is_up: bool,
    is_overloaded: bool,
    /// Calls refused by overload until then.
    overloads: u64,
    has_rule_difference: bool,
}

impl StatusLog {
    /// A log of a server that has just started.
    pub(crate) const fn new() -> Self {
        Self { is_up: true, is_overloaded: false, overloads: 0, has_rule_difference: false }
    }

    /// Logs what has changed since the last call.
    pub(crate) fn update(&mut self, store: &InstrumentedStore) {
        self.update_up(store.is_up(), || store.last_error());
        self.update_overloads(store.overloads());
        self.update_rule_difference(store.inner().redis().and_then(RedisStore::rules_differ_for));
    }

    fn update_up(&mut self, is_up: bool, error: impl FnOnce() -> String) {
        let was_up = std::mem::replace(&mut self.is_up, is_up);
        if was_up && !is_up {
            let error = error();
            tracing::warn!(target: "tidegate::store", "the store fails: {error}. Each rule does what its on_failure says");
        } else if !was_up && is_up {
            tracing::info!(target: "tidegate::store", "the store answers again");
        }
    }

    /// The instance is overloaded if a call was refused since the last comparison.
    fn update_overloads(&mut self, overloads: u64) {
        let refused = overloads.saturating_sub(std::mem::replace(&mut self.overloads, overloads));
        let was_overloaded = std::mem::replace(&mut self.is_overloaded, refused > 0);
        if !was_overloaded && refused > 0 {
            tracing::warn!(
                target: "tidegate::store",
                refused,
                "this instance is overloaded: more requests wait for the store than it can send in time. Those of the subjects \
                 with the most requests are refused, and each rule does what its on_overload says"
            );
        } else if was_overloaded && refused == 0 {
            tracing::info!(target: "tidegate::store", "this instance is no longer overloaded");
        }
    }

    fn update_rule_difference(&mut self, lasts: Option<Duration>) {
        let is_too_long = lasts.is_some_and(|lasts| lasts >= MAX_RULE_DIFFERENCE);
        if is_too_long && !self.has_rule_difference {
            self.has_rule_difference = true;
            tracing::warn!(
                target: "tidegate::store",
                "instances of this namespace have had different rules for ten minutes, so the same request has different limits. Give all of them the \
                 same rules and TIDEGATE_SECRET, and each other deployment a --namespace; `tidegate status` shows the fingerprint of each"
            );
        } else if lasts.is_none() && self.has_rule_difference {
            self.has_rule_difference = false;
            tracing::info!(target: "tidegate::store", "all instances of this namespace have the same rules again");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lines(test: impl FnOnce(&mut StatusLog)) -> Vec<String> {
        logged_lines(|| test(&mut StatusLog::new()))
    }

    /// The levels and the first words of the lines that `test` logs.
    pub(crate) fn logged_lines(test: impl FnOnce()) -> Vec<String> {
        let buffer = LogBuffer::default();
        let writer = buffer.clone();
        let format = tracing_subscriber::fmt().without_time().with_target(false).with_ansi(false);
        let subscriber = format.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, test);
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        let start = |line: &str| line.trim().split([':', '.']).next().unwrap_or_default().to_owned();
        text.lines().map(start).collect()
    }

    #[test]
    fn an_overload_is_logged_when_it_begins_and_when_it_ends() {
        let lines = lines(|log| {
            for overloads in [0, 3, 3_000, 3_001, 3_001, 3_001, 3_002] {
                log.update_overloads(overloads);
            }
        });
        assert_eq!(
            lines,
            [
                "WARN this instance is overloaded",
                "INFO this instance is no longer overloaded",
                "WARN this instance is overloaded"
            ]
        );
    }

    #[test]
    fn different_rules_are_logged_once_after_ten_minutes() {
        let lines = lines(|log| {
            for seconds in
                [None, Some(0), Some(599), None, Some(599), Some(600), Some(605), Some(3600), None, None, Some(601)]
            {
                log.update_rule_difference(seconds.map(Duration::from_secs));
            }
        });
        let warning = "WARN instances of this namespace have had different rules for ten minutes, so the same request has different limits";
        assert_eq!(lines, [warning, "INFO all instances of this namespace have the same rules again", warning]);
    }

    #[test]
    fn an_outage_is_logged_when_it_begins_and_when_it_ends() {
        let lines = lines(|log| {
            for is_up in [true, false, false, true, true] {
                log.update_up(is_up, || "it went away".to_owned());
            }
        });
        assert_eq!(lines, ["WARN the store fails", "INFO the store answers again"]);
    }
}
