//! The golden histories of `spec/`, replayed by the model, by Rust, and by both stores on both servers.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use conformance::book::stories;
use conformance::model::ModelStore;
use conformance::pure::PureStore;
use conformance::server::{KINDS, Server};
use conformance::suite::patient;
use tidegate::{ManualClock, MemoryStore};

#[tokio::test]
async fn every_store_tells_the_golden_histories() {
    let clock = ManualClock::default();
    let stories = stories();
    assert!(stories.len() >= 12, "the pages in spec/ were found");
    for story in &stories {
        println!("{}", story.place);
        story.replay(&clock, ModelStore::new(clock.clone()), "ann").await;
        story.replay(&clock, PureStore::new(clock.clone()), "ann").await;
        story.replay(&clock, MemoryStore::new().with_clock(clock.clone()), "ann").await;
    }
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(patient().with_clock(clock.clone())).await;
        for story in &stories {
            story.replay(&clock, store.clone(), &story.place).await;
        }
    }
}
