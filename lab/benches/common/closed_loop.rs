//! Contenders in interleaved rounds, and the closed loop of most of them: callers that each make their next call after the reply, and
//! the CPU time that this costs both processes.

use std::cell::Cell as Counter;
use std::thread;

use conformance::server::Server;
use futures_util::future::join_all;
use tidegate::{Clock, SystemClock};
use tidegate_redis::RedisStore;
use tokio::runtime::{Builder, Runtime};

use super::{cpu, patient_options};

/// The part of the calls that is made before the measurement begins.
const WARM_UP_SHARE: usize = 10;

/// One instance: a client with a runtime on a thread of its own.
pub(crate) struct Instance<C> {
    runtime: Runtime,
    client: C,
}

/// What one call costs.
#[derive(Clone, Copy)]
pub(crate) struct CallCost {
    /// CPU microseconds of the server's main thread.
    pub(crate) server_micros: f64,
    /// CPU microseconds of this process.
    pub(crate) process_micros: f64,
    /// Calls in a second of wall time.
    pub(crate) per_second: f64,
}

/// How contenders are measured.
#[derive(Clone, Copy)]
pub(crate) struct CallBench<'s> {
    pub(crate) server: &'s Server,
    /// Callers of each instance.
    pub(crate) callers: usize,
    /// Calls of all of them.
    pub(crate) calls: usize,
}

impl<C: Sync> Instance<C> {
    pub(crate) fn new(connect: impl AsyncFnOnce() -> C) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(connect());
        Self { runtime, client }
    }

    pub(crate) const fn client(&self) -> &C {
        &self.client
    }

    /// Makes the calls with the numbers from `first` on, with this many `callers`.
    pub(crate) fn run(&self, callers: usize, first: usize, calls: usize, call: &impl AsyncFn(&C, usize)) {
        self.runtime.block_on(run_callers(callers, calls, async |number| call(&self.client, first + number).await));
    }
}

/// Makes the calls with the numbers from 0 on. Each of the callers makes its next call after the reply.
pub(crate) async fn run_callers(callers: usize, calls: usize, call: impl AsyncFn(usize)) {
    let next = Counter::new(0);
    let caller = async |_| {
        loop {
            let number = next.replace(next.get() + 1);
            if number >= calls {
                return;
            }
            call(number).await;
        }
    };
    join_all((0..callers).map(caller)).await;
}

impl Instance<RedisStore> {
    /// An instance with a store on `server`.
    pub(crate) fn with_store(server: &Server) -> Self {
        Self::new(async || server.store_with(patient_options()).await)
    }
}

impl<'c> CallBench<'c> {
    /// A contender whose `call` is measured on these instances.
    pub(crate) fn contender<C: Sync>(
        self,
        name: &'static str,
        instances: &'c [Instance<C>],
        call: impl AsyncFn(&C, usize) + Sync + 'c,
    ) -> Contender<'c, CallCost> {
        (name, Box::new(move || self.measure(instances, &call)))
    }

    /// Measures the calls, spread over the instances. The server is emptied first.
    pub(crate) fn measure<C: Sync>(&self, instances: &[Instance<C>], call: impl AsyncFn(&C, usize) + Sync) -> CallCost {
        let Self { server, callers, calls } = *self;
        let run = |calls: usize| {
            thread::scope(|scope| {
                for (index, instance) in instances.iter().enumerate() {
                    let (calls, call) = (calls / instances.len(), &call);
                    scope.spawn(move || instance.run(callers, index * calls, calls, call));
                }
            });
        };
        let mut connection = server.connection();
        redis::cmd("FLUSHALL").arg("SYNC").exec(&mut connection).unwrap();
        run(calls / WARM_UP_SHARE);
        let clock = SystemClock::new();
        let mut spent = || (cpu::server_micros(&mut connection), cpu::process_micros(), clock.now());
        let before = spent();
        run(calls);
        let after = spent();
        let each = |micros: f64| micros / calls as f64;
        CallCost {
            server_micros: each(after.0 - before.0),
            process_micros: each(after.1 - before.1),
            per_second: calls as f64 / after.2.since(before.2).as_secs_f64(),
        }
    }
}

/// Something to measure, and its row in the table: each call is one round.
pub(crate) type Contender<'c, M, N = &'static str> = (N, Box<dyn FnMut() -> M + 'c>);

/// Runs all contenders in turn, `rounds` times, and returns the best round of each. A disturbance of the machine affects all of them,
/// and the best round is the least disturbed.
pub(crate) fn best_of<M, N>(
    rounds: usize,
    contenders: Vec<Contender<'_, M, N>>,
    beats: impl Fn(&M, &M) -> bool,
) -> Vec<(N, M)> {
    let (names, mut contenders): (Vec<_>, Vec<_>) = contenders.into_iter().unzip();
    let mut best: Vec<M> = contenders.iter_mut().map(|contender| contender()).collect();
    for _ in 1..rounds {
        for (best, contender) in best.iter_mut().zip(&mut contenders) {
            let round = contender();
            if beats(&round, best) {
                *best = round;
            }
        }
    }
    names.into_iter().zip(best).collect()
}
