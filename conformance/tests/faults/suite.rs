//! Every fault, on Redis and on Valkey, under load from two instances.

use std::sync::Arc;

use conformance::faults::{FAULTS, Row, Scale, run};
use conformance::server::KINDS;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How many faults happen at the same time, each to servers of its own: most of the time they wait.
const AT_ONCE: usize = 4;

/// What callers get, that nobody waits, and that no more passes than the page says. One that fails is run by itself with
/// `cargo run -p conformance --example faults -- --quick NAME`.
#[tokio::test(flavor = "multi_thread")]
async fn every_fault_does_what_the_page_says() {
    let (mut running, turns) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
    for (fault, kind) in FAULTS.into_iter().flat_map(|fault| KINDS.map(|kind| (fault, kind))) {
        let turns = Arc::clone(&turns);
        running.spawn(async move {
            let _turn = turns.acquire_owned().await.unwrap();
            let ran = tokio::spawn(run(fault, kind, Scale::of_tests())).await;
            let rows = match ran {
                Ok(rows) => rows,
                Err(error) => return vec![format!("{kind:?}, {}: {error}", fault.name())],
            };
            assert_eq!(rows.len(), 5, "one for each policy");
            rows.iter().flat_map(Row::problems).map(|problem| format!("{kind:?}, {problem}")).collect()
        });
    }
    let problems: Vec<String> = running.join_all().await.into_iter().flatten().collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
