//! A few rounds with each kind of store. To run a failing seed again:
//! `cargo run --release -p lab -- ledger-crashes --seed N`.

use std::path::PathBuf;

use lab::Answer;
use lab::ledger_crashes::{Deployment, RunOptions, run};

/// Runs rounds. Each prints its seed, its number and what is killed.
async fn run_rounds(deployment: Deployment, seed: u64, rounds: u32) {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_tidegate-lab"));
    let options = RunOptions { deployment, seed, rounds, calls: 150, reservation_ttl: 3_600, program };
    // In a task, so that all threads of the runtime can run it.
    let outcomes = tokio::spawn(run(options)).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(outcomes.iter().all(|outcome| outcome.counts.of(Answer::Allowed) > 0), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_fleet_acknowledged_is_in_postgresql_once_whatever_is_killed() {
    run_rounds(Deployment::Fleet, 1, 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_instance_with_its_own_memory_acknowledged_is_in_sqlite_once_after_it_was_killed() {
    run_rounds(Deployment::Single, 1, 4).await;
}
