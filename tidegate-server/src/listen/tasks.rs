//! `Tasks`: the connections and tunnels of one listener, so that its end is theirs. It does not know what they do.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use tokio::task::JoinSet;

/// All that runs for one listener. When it is dropped, what still runs ends.
pub(crate) struct Tasks(Arc<Mutex<JoinSet<()>>>);

/// Starts tasks from within others, without keeping them alive.
#[derive(Clone)]
pub(crate) struct Starter(Weak<Mutex<JoinSet<()>>>);

impl Tasks {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(JoinSet::new())))
    }

    pub(crate) fn starter(&self) -> Starter {
        Starter(Arc::downgrade(&self.0))
    }

    /// Waits until nothing runs any more. Whoever starts a task from within another keeps it waiting.
    pub(crate) async fn ended(&self) {
        poll_fn(|context| {
            while let Poll::Ready(ended) = locked(&self.0).poll_join_next(context) {
                if ended.is_none() {
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        })
        .await;
    }
}

impl Starter {
    /// Starts one more, unless the listener is no more.
    pub(crate) fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = self.0.upgrade() {
            let mut tasks = locked(&tasks);
            // Those that have ended since are forgotten here, so that they do not pile up.
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
    }
}

fn locked(tasks: &Mutex<JoinSet<()>>) -> MutexGuard<'_, JoinSet<()>> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}
