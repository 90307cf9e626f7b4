//! Every fault, on Redis and on Valkey, under load from two instances.

use std::sync::Arc;

use conformance::faults::{FAULTS, FaultOutcome, Scale, run};
use conformance::server::KINDS;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How many faults happen at the same time, each to servers of its own, and for how many there are servers: until instances
/// know of each other takes five seconds, in which nothing else happens.
const AT_ONCE: usize = 4;
const READY: usize = 20;

/// What callers get, that nobody waits, and that no more passes than the page says. One that fails is run by itself with
/// `cargo run -p conformance --example faults -- --quick NAME`.
#[tokio::test(flavor = "multi_thread")]
async fn every_fault_has_its_documented_effect() {
    let mut running = JoinSet::new();
    let [turns, places] = [AT_ONCE, READY].map(|count| Arc::new(Semaphore::new(count)));
    for (fault, kind) in FAULTS.into_iter().flat_map(|fault| KINDS.map(|kind| (fault, kind))) {
        let (turns, places) = (Arc::clone(&turns), Arc::clone(&places));
        running.spawn(async move {
            let _place = places.acquire_owned().await.unwrap();
            let ran = tokio::spawn(async move { run(fault, kind, Scale::of_tests(), &turns).await }).await;
            let rows = match ran {
                Ok(rows) => rows,
                Err(error) => return vec![format!("{kind:?}, {}: {error}", fault.name())],
            };
            assert_eq!(rows.len(), 5, "one for each policy");
            rows.iter().flat_map(FaultOutcome::problems).map(|problem| format!("{kind:?}, {problem}")).collect()
        });
    }
    let problems: Vec<String> = running.join_all().await.into_iter().flatten().collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
