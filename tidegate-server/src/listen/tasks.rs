//! `Tasks`: the connections and tunnels of one listener. All of them end when the listener does.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Weak};
use std::task::Poll;

use tidegate::sync::{Mutex, MutexGuard};
use tokio::task::JoinSet;

/// The tasks of one listener. Dropping it aborts those that still run.
pub(crate) struct Tasks(Arc<Mutex<JoinSet<()>>>);

/// Spawns tasks from within other tasks. It does not keep [`Tasks`] alive.
#[derive(Clone)]
pub(crate) struct TaskSpawner(Weak<Mutex<JoinSet<()>>>);

impl Tasks {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(JoinSet::new())))
    }

    pub(crate) fn spawner(&self) -> TaskSpawner {
        TaskSpawner(Arc::downgrade(&self.0))
    }

    /// Waits until no task runs, including those that are spawned in the meantime.
    pub(crate) async fn wait_all(&self) {
        poll_fn(|context| {
            while let Poll::Ready(finished) = lock(&self.0).poll_join_next(context) {
                if finished.is_none() {
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        })
        .await;
    }
}

impl TaskSpawner {
    /// Spawns a task, unless the listener has ended.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = self.0.upgrade() {
            let mut tasks = lock(&tasks);
            // Removes finished tasks, so that they do not accumulate.
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
    }
}

fn lock(tasks: &Mutex<JoinSet<()>>) -> MutexGuard<'_, JoinSet<()>> {
    tasks.lock()
}
