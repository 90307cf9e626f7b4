//! Several instances on one store, of which one starts while PostgreSQL is down.

use conformance::serve_process::ServeProcess;
use conformance::server::{Kind, Server};

use super::{Fixture, SECRET, passes, refusal, wait_for_log, wait_until_journal_is_empty, wait_until_ready};

/// The newcomer does not know whether the store still has what the ledger has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_starts_without_postgresql_leaves_the_store_to_those_that_know_it() {
    let redis = Server::start(Kind::Redis);
    let mut fixture = Fixture::start();
    let first = ServeProcess::start(&mut fixture.command_with(&redis.url(), &fixture.postgres.url(), SECRET, "first"));
    wait_until_ready(&first).await;
    assert_eq!([passes(&first, "/calls", 1).await, passes(&first, "/local", 6).await], [Some(true); 2]);
    fixture.wait_until_billed(&first, &[("calls", 1), ("local", 6)]).await;
    fixture.postgres.kill();
    let second =
        ServeProcess::start(&mut fixture.command_with(&redis.url(), &fixture.postgres.url(), SECRET, "second"));
    assert_eq!([passes(&first, "/calls", 2).await, passes(&second, "/calls", 4).await], [Some(true), None]);
    assert_eq!([passes(&second, "/local", 9).await, passes(&second, "/pages", 1).await], [Some(true); 2]);
    fixture.postgres.restart();
    wait_until_ready(&second).await;
    wait_until_journal_is_empty(&second).await;
    fixture.wait_until_billed(&first, &[("calls", 3), ("local", 15)]).await;
    // Both decide by the same counts again.
    assert_eq!([passes(&first, "/local", 1).await, passes(&second, "/local", 1).await], [Some(false); 2], "in debt");
    assert_eq!([passes(&first, "/calls", 997).await, passes(&second, "/calls", 1).await], [Some(true), Some(false)]);
}

/// Its entries have subjects that nobody finds: in the outbox of the store, another instance would post them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_an_instance_with_another_secret_reaches_the_ledger() {
    let redis = Server::start(Kind::Redis);
    let mut fixture = Fixture::start();
    let command = |fixture: &Fixture, secret, journal| {
        fixture.command_with(&redis.url(), &fixture.postgres.url(), secret, journal)
    };
    let first = ServeProcess::start(&mut command(&fixture, SECRET, "first"));
    wait_until_ready(&first).await;
    assert_eq!(passes(&first, "/calls", 1).await, Some(true));
    fixture.postgres.kill();
    let mut other = ServeProcess::start(&mut command(&fixture, "another-secret-of-the-tests", "other"));
    assert_eq!([passes(&other, "/open", 4).await, passes(&other, "/calls", 4).await], [Some(true), None]);
    fixture.postgres.restart();
    wait_for_log(&other, "written with another secret");
    assert_eq!([passes(&other, "/open", 1).await, passes(&other, "/calls", 1).await], [None; 2]);
    assert_eq!(passes(&first, "/calls", 2).await, Some(true));
    fixture.wait_until_billed(&first, &[("calls", 3)]).await;
    other.kill();
    // Nor with the right secret and the journal of the wrong one, which stays.
    let journal = || std::fs::read(fixture.path("other.00000001")).unwrap();
    let before = journal();
    let output = refusal(&mut command(&fixture, SECRET, "other"));
    assert!(output.contains("entries that were written with another secret"), "{output}");
    assert!(output.contains("move the journal away"), "{output}");
    assert_eq!(journal(), before);
    assert_eq!(fixture.billed(), [("calls".to_owned(), 3)]);
}
