//! How much random tests try: a fixed number of steps from a fixed seed, or `TIDEGATE_STEPS` of them if that is more, from the seed
//! `TIDEGATE_SEED` or a fresh one.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// The number of steps: `TIDEGATE_STEPS`, but at least `default`.
pub fn steps(default: u64) -> u64 {
    from_environment("TIDEGATE_STEPS").unwrap_or_default().max(default)
}

/// Runs histories until they have had [`steps`] steps, and returns how many they had. `run` returns why a history fails; it is shrunk to
/// its smallest form before it is shown.
///
/// # Panics
/// If a history fails.
pub fn run<H: Debug>(
    default: u64,
    histories: &impl Strategy<Value = H>,
    length: impl Fn(&H) -> u64,
    run: impl Fn(H) -> Result<(), String>,
) -> u64 {
    let (wanted, done) = (steps(default), AtomicU64::new(0));
    // A case is a history. Ten steps per case is below the average, so the step count ends the run, not the case count.
    let config = Config {
        cases: u32::try_from(wanted / 10).expect("fewer than 40 billion steps").max(1),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let mut runner = match from_environment("TIDEGATE_SEED") {
        Some(seed) => {
            let seed: Vec<u8> = seed.to_be_bytes().repeat(4);
            TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
        }
        None if from_environment("TIDEGATE_STEPS").is_some() => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let result = runner.run(histories, |history| {
        if done.load(Ordering::Relaxed) >= wanted {
            return Ok(());
        }
        done.fetch_add(length(&history), Ordering::Relaxed);
        run(history).map_err(TestCaseError::fail)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    done.into_inner()
}

#[expect(clippy::disallowed_methods, reason = "the dose comes from the environment")]
fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().unwrap_or_else(|_| panic!("{name} is a whole number")))
}
