//! A machine with other work does not make a limit inexact.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use conformance::server::{KINDS, Server};
use conformance::suite::one_limit_of_each_kind;
use conformance::witness::Witness;
use lab::attacks::TIMEOUT;
use tidegate::{Limiter, Request, Rule, RuleSet};
use tidegate_redis::BreakerState;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const INSTANCES: usize = 4;
const CALLERS: usize = 48;
const LIMIT: u64 = 100;
/// Requests of each caller.
const ROUNDS: usize = 4;

/// Threads that keep every core busy until they are dropped.
struct BusyThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl BusyThreads {
    /// Two for each core.
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let count = 2 * thread::available_parallelism().unwrap().get();
        let spin = |stop: Arc<AtomicBool>| {
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        Self { threads: (0..count).map(|_| spin(Arc::clone(&stop))).collect(), stop }
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// Four instances with the default timeout, 48 callers at once on each, all for one subject: exactly the limit passes. Trap: every
/// caller had a timer of its own, so that a busy machine looked like a failed store, and up to 442 of 100 passed.
#[tokio::test(flavor = "multi_thread")]
async fn four_busy_instances_admit_exactly_the_limit() {
    let _busy = BusyThreads::start();
    for kind in KINDS {
        let server = Server::start(kind);
        let witness = Witness::start(server.port()).await;
        for limit in one_limit_of_each_kind(LIMIT) {
            let (all, mut running, mut limiters) =
                (Arc::new(Barrier::new(INSTANCES * CALLERS)), JoinSet::new(), Vec::new());
            for _ in 0..INSTANCES {
                let rules = RuleSet::new([Rule::new(limit.algorithm().as_str(), limit)]).unwrap();
                limiters.push(Arc::new(Limiter::new(rules, server.store().await)));
            }
            for limiter in limiters.iter().flat_map(|limiter| std::iter::repeat_n(limiter, CALLERS)) {
                let (limiter, all) = (Arc::clone(limiter), Arc::clone(&all));
                running.spawn(async move {
                    all.wait().await;
                    let mut passed = 0;
                    for _ in 0..ROUNDS {
                        let decision = limiter.check(&Request::new("")).await;
                        passed += u64::from(decision.is_ok_and(|decision| decision.is_allowed()));
                    }
                    passed
                });
            }
            let passed: u64 = running.join_all().await.into_iter().sum();
            let within_timeout = witness.saw_answers_within(TIMEOUT).await;
            let most = if within_timeout { LIMIT } else { (1 + INSTANCES as u64) * LIMIT };
            let case = format!("{kind:?} {limit:?}, slowest answer {:?}", witness.slowest_answer());
            println!("{case}: {passed} of {LIMIT}");
            assert!((LIMIT..=most).contains(&passed), "{case}: {passed} of {LIMIT}");
            let states = limiters.iter().flat_map(|limiter| limiter.store().server_states());
            let is_well = |opened: u64, breaker: BreakerState| opened == 0 && breaker == BreakerState::Closed;
            assert!(!within_timeout || states.into_iter().all(|state| is_well(state.opened, state.breaker)), "{case}");
        }
    }
}
