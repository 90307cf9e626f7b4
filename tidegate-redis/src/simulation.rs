//! Runs the client side against a server that responds late, partly or not at all, with callers that go away at any time, in
//! simulated time: the real limiter, store, connection task and breaker. Each seed is one scenario, and reproduces it exactly.

mod caller;
mod random;
mod scenario;
mod script_call;
mod simulated_server;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fastrand::Rng;

use crate::timer;
use random::{millis, pick};
use scenario::{BYSTANDER, Scenario};
pub(crate) use simulated_server::SimulatedServer;

/// How many scenarios `cargo test` runs, unless `TIDEGATE_STEPS` sets another number.
const DEFAULT_SCENARIOS: u64 = 4_000;

#[test]
fn the_client_keeps_its_promises_whatever_the_server_does() {
    let scenarios = env_number("TIDEGATE_STEPS").unwrap_or(DEFAULT_SCENARIOS);
    let seeds = env_number("TIDEGATE_SEED").map_or(1..scenarios + 1, |seed| seed..seed + 1);
    std::panic::set_hook(Box::new(|_| {}));
    let failures = std::thread::scope(|scope| {
        let run_half = |half: u64| {
            let mut seeds = seeds.clone().filter(move |seed| seed % 2 == half);
            scope.spawn(move || seeds.find_map(|seed| run_catching(seed).err().map(|failure| (seed, failure))))
        };
        [run_half(0), run_half(1)].map(|half| half.join().expect("panics are caught"))
    });
    let _ = std::panic::take_hook();
    if let Some((seed, failure)) = failures.into_iter().flatten().min() {
        panic!("seed {seed}: {failure}\nto repeat: TIDEGATE_SEED={seed} cargo test -p tidegate-redis --lib simulation");
    }
}

#[test]
fn the_same_seed_reproduces_the_same_scenario() {
    let results = |seed| {
        let scenario = run(seed).unwrap();
        let sums = scenario.sums.lock().unwrap().clone();
        (scenario.costs.load(Ordering::Relaxed), sums, scenario.server.taken(), scenario.server_state())
    };
    for seed in 1..20 {
        assert_eq!(results(seed), results(seed), "seed {seed}");
    }
}

/// Runs one scenario, and turns a panic into an error.
fn run_catching(seed: u64) -> Result<(), String> {
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(seed).map(drop)));
    result.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", message.unwrap_or("without a message")))
    })
}

/// Runs one scenario; the error is the promise that was broken.
fn run(seed: u64) -> Result<Arc<Scenario>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut rng = Rng::with_seed(seed);
        let scenario = Arc::new(Scenario::new(&mut rng));
        let (callers, end) = (pick(&mut rng, &[1, 2, 3, 8]), timer::now() + millis(&mut rng, 500));
        let max_burst = pick(&mut rng, &[1, 1, 3, 40]);
        let mut tasks = Vec::new();
        for number in 0..=callers {
            let rng = Rng::with_seed(seed ^ (number + 1) << 32);
            // The users of several callers are the same; the bystander is alone.
            let (user, max_burst) = match number {
                0 => (BYSTANDER.to_owned(), 1),
                number => (format!("user {}", number % 2), max_burst),
            };
            tasks.push(tokio::spawn(Arc::clone(&scenario).run_caller(rng, user, max_burst, end)));
        }
        tasks.push(tokio::spawn(Arc::clone(&scenario).run_server(rng, end)));
        for task in tasks {
            task.await.map_err(|error| format!("a task panicked: {error}"))??;
        }
        scenario.check_recovery().await?;
        scenario.check_totals()?;
        Ok(scenario)
    })
}

#[allow(clippy::disallowed_methods, reason = "the scenarios to run are chosen on the command line")]
fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().expect("a number"))
}
