//! `Workers`: tasks that each repeat something at their own pace, until all of them are stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{Interval, MissedTickBehavior, interval};

#[derive(Debug, Default)]
pub(crate) struct Workers {
    is_stopped: Arc<AtomicBool>,
    running: JoinSet<()>,
}

#[derive(Debug)]
pub(crate) struct Pace {
    interval: Interval,
    is_stopped: Arc<AtomicBool>,
}

impl Workers {
    /// Starts a worker, which ends when its pace does.
    pub(crate) fn spawn<F>(&mut self, pace: Duration, work: impl FnOnce(Pace) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut interval = interval(pace);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.running.spawn(work(Pace { interval, is_stopped: Arc::clone(&self.is_stopped) }));
    }

    /// The result of a worker that has ended, if there is one.
    pub(crate) fn find_ended(&mut self) -> Option<Result<(), JoinError>> {
        self.running.try_join_next()
    }

    /// Stops all workers after what they do now. Panics if one of them did.
    pub(crate) async fn stop(mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap_or_else(|error| panic!("a worker: {error}"));
        }
    }
}

impl Pace {
    /// Waits for the next turn. False once the workers are stopped.
    pub(crate) async fn next(&mut self) -> bool {
        let goes_on = !self.is_stopped();
        if goes_on {
            self.pause().await;
        }
        goes_on
    }

    /// Waits for the next turn, also if the workers are stopped.
    pub(crate) async fn pause(&mut self) {
        self.interval.tick().await;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }
}
