//! Random sequences of takes, hang-ups, refunds and settlements, by several users with a limit of their own and a queue that they
//! share: what is admitted and not given back satisfies the theorem of each limit, in every interval, in memory and on Redis.
//!
//! `make test` runs a fixed number of steps from a fixed seed; `TIDEGATE_STEPS=1000000` runs that many for each kind of limit, from a
//! fresh seed. A failure is shrunk to its smallest sequence before it is shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conformance::dose;
use conformance::retained::RetainedTakes;
use conformance::server::{Kind, Server};
use conformance::suite::{START, long_timeout_options};
use proptest::prelude::*;
use tidegate::limits::{Period, Periods};
use tidegate::spi::Store;
use tidegate::{Clock, Ending, Grant, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet};
use tokio::runtime::{Builder, Runtime};

/// Steps for each kind of limit in `make test`.
const DEFAULT_STEPS: u64 = 10_000;

const USERS: [&str; 2] = ["ann", "mallory"];

#[derive(Clone, Debug)]
struct Sequence {
    own: Limit,
    queue: Limit,
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    Take {
        user: usize,
        cost: u64,
    },
    /// Which of the requests that are not given back.
    GiveBack {
        which: usize,
        how: Return,
    },
}

/// How a request is given back.
#[derive(Clone, Copy, Debug)]
enum Return {
    /// The client hangs up, or the application refunds the request.
    Refund,
    /// The application settles for a smaller or larger cost.
    Settle(u64),
}

/// A request that is not given back: its user, its numbers among the takes of the user and of the queue, and its receipt.
struct Open {
    user: usize,
    own: usize,
    queue: usize,
    receipt: Grant,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![2 => 0..400_000u64, 2 => 0..3_000_000u64, 1 => 0..30_000_000u64];
    let how = prop_oneof![2 => Just(Return::Refund), 1 => (0..6u64).prop_map(Return::Settle)];
    let step = prop_oneof![
        2 => wait.prop_map(Step::Wait),
        5 => (0..USERS.len(), 1..5u64).prop_map(|(user, cost)| Step::Take { user, cost }),
        4 => (any::<usize>(), how).prop_map(|(which, how)| Step::GiveBack { which, how }),
    ];
    prop::collection::vec(step, 1..120)
}

fn rate() -> impl Strategy<Value = Rate> {
    (1..50u64, prop::sample::select(vec![1_000_000, 700_000, 1_234_567, 9_000_000]))
        .prop_map(|(amount, period)| Rate::new(amount, Duration::from_micros(period)).unwrap())
}

fn queue() -> impl Strategy<Value = Limit> {
    (rate(), 0..30u64).prop_map(|(rate, queue)| Limit::leaky_bucket(rate, queue).unwrap())
}

/// A limit of each kind for the users.
fn limits() -> Vec<(&'static str, BoxedStrategy<Limit>)> {
    let window = || prop::sample::select(vec![600_000u64, 1_200_000, 6_000_000]).prop_map(Duration::from_micros);
    let slices = prop::sample::select(vec![1u64, 2, 6, 12]);
    vec![
        ("token_bucket", (1..20u64, rate()).prop_map(|(c, rate)| Limit::token_bucket(c, rate).unwrap()).boxed()),
        ("leaky_bucket", queue().boxed()),
        ("fixed_window", (1..20u64, window()).prop_map(|(l, w)| Limit::fixed_window(l, w).unwrap()).boxed()),
        ("sliding_log", (1..20u64, window()).prop_map(|(l, w)| Limit::sliding_log(l, w).unwrap()).boxed()),
        (
            "sliding_window",
            (1..20u64, window(), slices).prop_map(|(l, w, s)| Limit::sliding_window(l, w, s).unwrap()).boxed(),
        ),
        ("quota", (1..20u64).prop_map(|a| Limit::quota(a, Periods::utc(Period::Hour)).unwrap()).boxed()),
        ("concurrency", (1..20u64, window()).prop_map(|(m, lease)| Limit::concurrency(m, lease).unwrap()).boxed()),
    ]
}

#[test]
fn no_sequence_in_memory_exceeds_a_limit() {
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::new().with_clock(clock.clone()));
    each_kind("in memory", DEFAULT_STEPS, &clock, &store);
}

#[test]
fn no_sequence_on_redis_exceeds_a_limit() {
    let (server, runtime, clock) = (Server::start(Kind::Redis), runtime(), ManualClock::default());
    let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
    each_kind("on Redis", DEFAULT_STEPS / 4, &clock, &Arc::new(store));
}

/// Here the refunds of a plan are several calls, the places in queues first.
#[test]
fn no_sequence_in_a_cluster_exceeds_a_limit() {
    let (server, runtime, clock) = (Server::start_alone_in_cluster(Kind::Redis), runtime(), ManualClock::default());
    let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
    each_kind("in a cluster", DEFAULT_STEPS / 8, &clock, &Arc::new(store));
}

fn each_kind<S: Store + 'static>(place: &str, steps: u64, clock: &ManualClock, store: &Arc<S>) {
    let runtime = runtime();
    for (kind, own) in limits() {
        let number = AtomicU64::new(0);
        let sequences = (own, queue(), self::steps()).prop_map(|(own, queue, steps)| Sequence { own, queue, steps });
        let run = |sequence: Sequence| {
            let number = number.fetch_add(1, Ordering::Relaxed);
            runtime.block_on(sequence.run(&format!("{kind}-{number}"), clock, store))
        };
        let done = dose::run(steps, &sequences, |sequence| sequence.steps.len() as u64, run);
        println!("{place}: {done} steps of {kind}");
    }
}

impl Sequence {
    /// Runs the sequence under rules of its own; the error says which interval has too much.
    async fn run<S: Store>(&self, name: &str, clock: &ManualClock, store: &Arc<S>) -> Result<(), String> {
        clock.set(START);
        let rules = [
            Rule::new(format!("own-{name}"), self.own).with_per(["user"]),
            Rule::new(format!("queue-{name}"), self.queue),
        ];
        let limiter = Limiter::new(RuleSet::new(rules).unwrap(), Arc::clone(store));
        let (mut own, mut queue) = (USERS.map(|_| RetainedTakes::default()), RetainedTakes::default());
        let mut open: Vec<Open> = Vec::new();
        for (number, step) in self.steps.iter().enumerate() {
            match *step {
                Step::Wait(micros) => clock.advance(Duration::from_micros(micros)),
                Step::Take { user, cost } => {
                    let request = Request::new("").with_attribute("user", USERS[user]).with_cost(cost);
                    let mut decision = limiter.check(&request).await.unwrap();
                    if decision.is_allowed() {
                        let at = clock.now().as_micros();
                        let [of_own, of_queue] = [0, 1].map(|index| {
                            (
                                decision.checks()[index].outcome().delay.as_micros() as u64,
                                decision.checks()[index].rule(),
                            )
                        });
                        assert!(of_own.1.starts_with("own") && of_queue.1.starts_with("queue"));
                        let (own, queue) = (own[user].add(at, of_own.0, cost), queue.add(at, of_queue.0, cost));
                        open.push(Open { user, own, queue, receipt: decision.take_grant() });
                    }
                }
                Step::GiveBack { which, how } => {
                    let Some(index) = which.checked_rem(open.len()) else { continue };
                    let Open { user, own: of_own, queue: of_queue, mut receipt } = open.swap_remove(index);
                    let actual = match how {
                        Return::Refund => {
                            limiter.end(&mut receipt, &Ending::Refund).await.unwrap();
                            0
                        }
                        Return::Settle(actual) => {
                            limiter.end(&mut receipt, &Ending::Settle(actual.into())).await.unwrap();
                            actual
                        }
                    };
                    own[user].give_back(of_own, actual);
                    queue.give_back(of_queue, actual);
                }
            }
            let checked =
                own.iter().try_for_each(|takes| takes.check(&self.own)).and_then(|()| queue.check(&self.queue));
            checked.map_err(|problem| format!("step {number}, {step:?}: {problem}"))?;
        }
        Ok(())
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
