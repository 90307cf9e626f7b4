//! A runtime that shuts down: a call that is made meanwhile fails, and never hangs.

use std::future::pending;
use std::sync::mpsc::{Receiver, Sender, channel};

use conformance::suite::one_limit_of_each_kind;
use tidegate::spi::{Check, Gate, Plan, Store, Subject};
use tidegate::{StoreError, StoreErrorKind};
use tidegate_redis::{RedisOptions, RedisStore};
use tokio::runtime::Builder;

/// Reports when it is dropped.
struct ReportsDrop(Sender<()>);

impl Drop for ReportsDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Regression: the runtime drops a task that is spawned during its shutdown at once. The task of the connection was spawned under the
/// lock that its drop takes, so that `tidegate serve` hung when it was stopped.
#[test]
fn a_first_call_while_the_runtime_shuts_down_fails() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = RedisStore::open("redis://127.0.0.1:1", RedisOptions::new().with_heartbeats(false)).unwrap();
    let (is_running, until_running) = channel();
    let (is_shut_down, until_shut_down) = channel();
    let (results, until_result) = channel();
    let dropped_by_shutdown = ReportsDrop(is_shut_down);
    runtime.spawn(async move {
        let _guard = dropped_by_shutdown;
        pending::<()>().await;
    });
    runtime.spawn(call_after_shutdown(store, is_running, until_shut_down, results));
    until_running.recv().unwrap();
    runtime.shutdown_background();
    let error = until_result.recv().unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
}

/// Makes the first call of `store` after the runtime has dropped its other tasks.
async fn call_after_shutdown(
    store: RedisStore,
    is_running: Sender<()>,
    until_shut_down: Receiver<()>,
    results: Sender<StoreError>,
) {
    is_running.send(()).unwrap();
    until_shut_down.recv().unwrap();
    let gate = Gate::for_rule("api", one_limit_of_each_kind(1)[0]);
    let plan = Plan::new([Check::new(&gate, Subject::from_hash(1), 1)]).unwrap();
    results.send(store.decide(&plan).await.unwrap_err()).unwrap();
}
