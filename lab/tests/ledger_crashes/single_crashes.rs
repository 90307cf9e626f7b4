//! Single crashes at chosen points.

use std::path::Path;

use lab::ledger_crashes::{Account, Quota, Scenario, Victim};
use serde_json::json;

/// A caller that got 503 is told to call again. Its reservation was given back, so it has not ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_failed_can_be_made_again_after_the_store_was_lost() {
    let mut fleet = Scenario::start(Path::new(env!("CARGO_BIN_EXE_tidegate-lab"))).await;
    let account = Account { quota: Quota::Sync, tenant: "ann".to_owned() };
    assert_eq!(fleet.reserve_until_decided(0, &account, "other job", 1).await.0, 200);
    fleet.strike(Victim::PostgresStopped);
    let (status, body) = fleet.reserve(0, &account, "job", 4).await;
    assert_eq!(status, 503, "{body}");
    fleet.repair(Victim::PostgresStopped).await;
    fleet.wait_until_drained(&account).await;
    fleet.strike(Victim::Redis);
    fleet.repair(Victim::Redis).await;
    fleet.wait_until_decided(0, &account).await;
    let (status, body) = fleet.reserve_until_decided(0, &account, "job", 4).await;
    assert_eq!((status, &body["allowed"]), (200, &json!(true)), "{body}");
}
