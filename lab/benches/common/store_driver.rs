//! `StoreDriver`: sends decisions to the Redis store, many at a time; and commands in batches of the same size.

use std::time::Duration;

use conformance::server::Server;
use conformance::suite::decide_all;
use tidegate::spi::{Check, Gate, Plan, Subject};
use tidegate_redis::{RedisOptions, RedisStore};
use tokio::runtime::Runtime;

use super::Random;

/// Decisions or commands that are under way together.
pub(crate) const BATCH_SIZE: usize = 500;

/// The first `count` subjects.
pub(crate) fn subjects(count: usize) -> Vec<Subject> {
    let mut random = Random::new(3);
    (0..count).map(|_| Subject::from_hash(random.hash())).collect()
}

/// The options of a store on a busy machine, which may be slower than the default timeout.
pub(crate) fn patient_options() -> RedisOptions {
    RedisOptions::new().with_timeout(Duration::from_secs(1)).with_heartbeats(false)
}

/// Sends commands in batches, for comparisons, and waits for all replies.
pub(crate) fn send(connection: &mut redis::Connection, commands: impl IntoIterator<Item = redis::Cmd>) {
    let mut commands = commands.into_iter().peekable();
    while commands.peek().is_some() {
        let mut pipeline = redis::Pipeline::with_capacity(BATCH_SIZE);
        commands.by_ref().take(BATCH_SIZE).for_each(|command| _ = pipeline.add_command(command).ignore());
        pipeline.exec(connection).unwrap();
    }
}

pub(crate) struct StoreDriver {
    store: RedisStore,
    runtime: Runtime,
}

impl StoreDriver {
    pub(crate) fn connect(server: &Server, options: RedisOptions) -> Self {
        let runtime = Runtime::new().unwrap();
        // A batch of long logs on a busy machine may take longer than the default timeout.
        let options = options.with_timeout(Duration::from_mins(1));
        Self { store: runtime.block_on(server.store_with(options)), runtime }
    }

    /// Takes one unit of each subject from all gates. Every take must succeed.
    pub(crate) fn take(&self, gates: &[Gate], subjects: &[Subject]) {
        for batch in subjects.chunks(BATCH_SIZE) {
            let plan = |subject: &Subject| Plan::new(gates.iter().map(|gate| Check::new(gate, *subject, 1))).unwrap();
            let plans: Vec<Plan<'_>> = batch.iter().map(plan).collect();
            assert_eq!(self.decide(&plans), plans.len() as u64);
        }
    }

    /// Decides plans at the same time, and returns how many pass.
    pub(crate) fn decide(&self, plans: &[Plan<'_>]) -> u64 {
        let verdicts = self.runtime.block_on(decide_all(&self.store, plans));
        verdicts.into_iter().map(|verdict| verdict.unwrap().granted()).sum()
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
