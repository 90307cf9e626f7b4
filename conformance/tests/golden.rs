//! The golden histories of `spec/`, replayed by the model, by Rust, and by both stores on both servers.

use conformance::golden::golden_histories;
use conformance::model::ModelStore;
use conformance::pure_store::PureStore;
use conformance::server::{KINDS, Server};
use conformance::suite::long_timeout_options;
use tidegate::{ManualClock, MemoryStore};

#[tokio::test]
async fn every_store_reproduces_the_golden_histories() {
    let clock = ManualClock::default();
    let golden_histories = golden_histories();
    assert!(golden_histories.len() >= 12, "the pages in spec/ were found");
    for story in &golden_histories {
        println!("{}", story.location);
        story.replay(&clock, ModelStore::new(clock.clone()), "ann").await;
        story.replay(&clock, PureStore::new(clock.clone()), "ann").await;
        story.replay(&clock, MemoryStore::new().with_clock(clock.clone()), "ann").await;
    }
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
        for story in &golden_histories {
            story.replay(&clock, store.clone(), &story.location).await;
        }
    }
}
