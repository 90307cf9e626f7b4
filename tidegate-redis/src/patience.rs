//! `Patience`: how long a call waits, and for what. Also the one place of this crate where anything waits for time to pass.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::options::RedisOptions;

/// What questions at the start may take: they are asked once, and of servers that may be busy starting, too.
const START: Duration = Duration::from_secs(5);

/// What questions about the topology may take at least. No decision waits that long for them.
const LEARNING: Duration = Duration::from_millis(100);

/// How long a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For an answer.
    pub(crate) answer: Duration,
    /// For what has to be there first: a connection, the name of a primary, a map of slots.
    pub(crate) beginning: Duration,
    /// Whether it also waits for what is known to be missing, for one more attempt to get it. A decision does not.
    pub(crate) insists: bool,
}

/// When the time of a decision that takes several calls ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    budget: Duration,
    end: Instant,
}

impl Patience {
    /// That of a decision. It is less than its `budget`, so that a silent server is noticed before the time is up.
    pub(crate) fn within(budget: Duration) -> Self {
        let most = budget / 5 * 4;
        Self { answer: most, beginning: most, insists: false }
    }

    /// That of a question about the topology, which is asked in the background.
    pub(crate) fn learning(options: &RedisOptions) -> Self {
        let answer = Self::within(options.budget).answer.max(LEARNING);
        Self { answer, beginning: options.connection_timeout, insists: false }
    }

    /// That of a question at the start.
    pub(crate) fn starting(options: &RedisOptions) -> Self {
        Self { answer: START.max(options.budget), beginning: options.connection_timeout, insists: true }
    }
}

impl Deadline {
    /// So long from now.
    pub(crate) fn after(budget: Duration) -> Self {
        // Whoever gives a year or more is not going to wait for the end of it.
        let budget = budget.min(Duration::from_secs(31_557_600));
        Self { budget, end: now() + budget }
    }

    /// What may be waited for the next of several calls. It ends before the time does, so that something can be made of it.
    pub(crate) fn next(self) -> Duration {
        self.left() / 10 * 9
    }

    /// The patience of the next call.
    pub(crate) fn patience(self) -> Patience {
        Patience::within(self.left())
    }

    /// What may be waited for words about a verdict that stands: never so long that it would come too late, but if there is
    /// time, long enough to notice a silent server.
    pub(crate) fn details(self) -> Duration {
        (self.budget / 4).min(self.left() / 2)
    }

    fn left(self) -> Duration {
        self.end.saturating_duration_since(now())
    }
}

/// What `future` gives, unless that takes longer than `span`.
pub(crate) async fn within<F: Future>(span: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(span, future).await.ok()
}

/// Lets `span` pass.
#[allow(clippy::disallowed_methods, reason = "this is the one place in this crate that waits")]
pub(crate) async fn rest(span: Duration) {
    if !span.is_zero() {
        tokio::time::sleep(span).await;
    }
}

/// The time by which waiting is measured.
pub(crate) fn now() -> Instant {
    Instant::now()
}
