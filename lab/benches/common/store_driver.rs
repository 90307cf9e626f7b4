//! `StoreDriver`: sends decisions to the Redis store, many at a time.

use std::time::Duration;

use conformance::server::Server;
use conformance::suite::decide_all;
use tidegate::spi::{Check, Gate, Plan, Subject};
use tidegate_redis::{RedisOptions, RedisStore};
use tokio::runtime::Runtime;

use super::{Random, pipeline::BATCH_SIZE};

/// The first `count` subjects.
pub(crate) fn subjects(count: usize) -> Vec<Subject> {
    let mut random = Random::new(3);
    (0..count).map(|_| Subject::from_hash(random.hash())).collect()
}

/// The options of a store on a busy machine, which may be slower than the default timeout.
pub(crate) fn patient_options() -> RedisOptions {
    RedisOptions::new().with_timeout(Duration::from_secs(1)).with_heartbeats(false)
}

/// A store and its runtime.
pub(crate) struct StoreDriver {
    store: RedisStore,
    runtime: Runtime,
}

impl StoreDriver {
    pub(crate) fn connect(server: &Server, options: RedisOptions) -> Self {
        let runtime = Runtime::new().unwrap();
        // A batch of long logs on a busy machine may take longer than the default timeout.
        let options = options.with_timeout(Duration::from_mins(1)).with_heartbeats(false);
        Self { store: runtime.block_on(server.store_with(options)), runtime }
    }

    /// Takes one unit of each subject from all gates. Every take must succeed.
    pub(crate) fn take(&self, gates: &[Gate], subjects: &[Subject]) {
        for batch in subjects.chunks(BATCH_SIZE) {
            let plan = |subject: &Subject| Plan::new(gates.iter().map(|gate| Check::new(gate, *subject, 1))).unwrap();
            let plans: Vec<Plan<'_>> = batch.iter().map(plan).collect();
            for verdict in self.runtime.block_on(decide_all(&self.store, &plans)) {
                assert_eq!(verdict.unwrap().granted(), 1);
            }
        }
    }

    /// The same with two batches in flight, so that the server is never idle.
    pub(crate) fn take_fast(&self, gates: &[Gate], subjects: &[Subject]) {
        let (first, second) = subjects.split_at(subjects.len() / 2);
        std::thread::scope(|scope| {
            scope.spawn(|| self.take(gates, first));
            self.take(gates, second);
        });
    }
}
