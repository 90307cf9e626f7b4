//! Every fault, on Redis and on Valkey, under load from two instances.

use std::sync::Arc;

use conformance::server::KINDS;
use lab::faults::{FAULTS, FaultOutcome, POLICIES, Scale, run};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Faults under load at the same time, each on its own servers, and environments prepared in advance: it takes five seconds
/// until the instances have counted each other.
const MAX_CONCURRENT: usize = 4;
const MAX_PREPARED: usize = 20;

/// Asserts what callers get, that no decision is late, and the bound of what passes. To run a failing fault alone:
/// `cargo run -p lab -- faults --quick NAME`.
#[tokio::test(flavor = "multi_thread")]
async fn every_fault_has_its_documented_effect() {
    let mut running = JoinSet::new();
    let [turns, places] = [MAX_CONCURRENT, MAX_PREPARED].map(|count| Arc::new(Semaphore::new(count)));
    for (fault, kind) in FAULTS.into_iter().flat_map(|fault| KINDS.map(|kind| (fault, kind))) {
        let (turns, places) = (Arc::clone(&turns), Arc::clone(&places));
        running.spawn(async move {
            let _place = places.acquire_owned().await.unwrap();
            let ran = tokio::spawn(async move { run(fault, kind, Scale::for_tests(), &turns).await }).await;
            let (rows, leases) = match ran {
                Ok(outcomes) => outcomes,
                Err(error) => return vec![format!("{kind:?}, {}: {error}", fault.name())],
            };
            assert_eq!(rows.len(), POLICIES.len(), "one for each policy");
            let problems = rows.iter().flat_map(FaultOutcome::problems).chain(leases.problems());
            problems.map(|problem| format!("{kind:?}, {problem}")).collect()
        });
    }
    let problems: Vec<String> = running.join_all().await.into_iter().flatten().collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
