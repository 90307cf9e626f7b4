//! What all suites are made of: answers, load that counts them, and promises that are compared with the counts.

use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use conformance::suite::wait_until;

use crate::traffic::{Pace, Workers};

/// What a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Allowed by the store.
    Allowed,
    /// Denied by the store.
    Denied,
    /// Allowed without the store (degraded).
    Passed,
    /// Denied without the store (degraded).
    Held,
    /// An error, or 503.
    Refused,
    /// None.
    Missing,
}

const ANSWERS: [Answer; 6] =
    [Answer::Allowed, Answer::Denied, Answer::Passed, Answer::Held, Answer::Refused, Answer::Missing];

/// The number of requests with each answer.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct AnswerCounts([u64; ANSWERS.len()]);

/// Workers that count what they get.
pub(crate) struct CountingLoad<C> {
    counts: Arc<Mutex<C>>,
    workers: Workers,
}

// === impl AnswerCounts ===

impl AnswerCounts {
    pub(crate) fn record(&mut self, answer: Answer) {
        self.0[answer as usize] += 1;
    }

    /// The number of requests with this answer.
    pub const fn of(&self, answer: Answer) -> u64 {
        self.0[answer as usize]
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, other)| *count += other);
    }

    /// The difference to an earlier count.
    pub(crate) fn since(mut self, then: &Self) -> Self {
        self.0.iter_mut().zip(then.0).for_each(|(count, then)| *count -= then);
        self
    }
}

impl Debug for AnswerCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(ANSWERS.iter().zip(&self.0)).finish()
    }
}

// === impl CountingLoad ===

impl<C: Clone + Debug> CountingLoad<C> {
    pub(crate) fn new(counts: C) -> Self {
        Self { counts: Arc::new(Mutex::new(counts)), workers: Workers::default() }
    }

    /// Starts a worker, which ends when its pace does.
    pub(crate) fn spawn<F>(&mut self, pace: Duration, work: impl FnOnce(Pace, Arc<Mutex<C>>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let counts = Arc::clone(&self.counts);
        self.workers.spawn(pace, |pace| work(pace, counts));
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> MutexGuard<'_, C> {
        self.counts.lock().unwrap()
    }

    /// Waits until the counts are so, and panics with `problem` if they never are.
    pub(crate) async fn until(&self, problem: &str, condition: impl Fn(&C) -> bool) {
        wait_until(problem, || condition(&self.counts()), || format!("{:#?}", self.counts())).await;
    }

    /// Stops the workers, and returns the final counts.
    pub(crate) async fn stop(self) -> C {
        self.workers.stop().await;
        self.counts.lock().unwrap().clone()
    }
}

/// Describes every promise that is not kept, with the outcome that broke it.
pub(crate) fn broken_promises(
    outcome: &str,
    details: &dyn Debug,
    promises: impl IntoIterator<Item = (bool, &'static str)>,
) -> Vec<String> {
    let broken = promises.into_iter().filter(|(is_kept, _)| !is_kept);
    broken.map(|(_, promise)| format!("{outcome}: {promise}: {details:?}")).collect()
}
