//! What counts as a PostgreSQL that is down, and what is an answer that ends the start.

use std::fs;

use conformance::poll;
use conformance::serve_process::ServeProcess;
use conformance::server::{Kind, Server};
use rustix::process::Signal;
use serde_json::json;
use tidegate_ledger::Ledger;

use super::{Fixture, SECRET, passes, readiness, refusal, wait_for_log, wait_until_ready};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgresql_that_is_stopping_is_down_and_waited_for() {
    let mut fixture = Fixture::start();
    let session = Ledger::open(&fixture.postgres.url().parse().unwrap()).await.unwrap();
    session.ping().await.unwrap();
    // It refuses new sessions, and waits for the end of this one.
    fixture.postgres.process().signal(Signal::TERM);
    let url = fixture.postgres.url().parse().unwrap();
    poll::wait_for_some("PostgreSQL never stops", async || Ledger::open(&url).await.err()).await;
    let server = ServeProcess::start(&mut fixture.command());
    assert_eq!([passes(&server, "/open", 3).await, passes(&server, "/closed", 1).await], [Some(true), None]);
    let ready = readiness(&server).await;
    assert!(ready["ledger"]["problem"].as_str().unwrap().contains("57P03"), "{ready}");
    session.close().await;
    fixture.postgres.restart();
    wait_until_ready(&server).await;
    fixture.wait_until_billed(&server, &[("open", 3)]).await;
}

/// A service without a running server has no name in some clusters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_an_address_is_down() {
    let fixture = Fixture::start();
    let url = "postgres://tidegate:hunter2@no-such-host.invalid/ledger";
    let server = ServeProcess::start(&mut fixture.command_with("memory:", url, SECRET, "journal"));
    assert_eq!([passes(&server, "/open", 1).await, passes(&server, "/closed", 1).await], [Some(true), None]);
    let ready = readiness(&server).await;
    assert_eq!((&ready["ledger"]["state"], &ready["ledger"]["reached"]), (&json!("waiting"), &json!(false)), "{ready}");
    assert!(!server.output().contains("hunter2") && !ready.to_string().contains("hunter2"));
}

/// Who starts a server reads why it does not start; later, nobody may be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_missing_when_postgresql_answers_is_waited_for() {
    let mut fixture = Fixture::start();
    fixture.postgres.kill();
    let url = fixture.postgres.url().replace("/postgres", "/ledger");
    let server = ServeProcess::start(&mut fixture.command_with("memory:", &url, SECRET, "journal"));
    fixture.postgres.restart();
    wait_for_log(&server, "create the database that the ledger URL names");
    assert_eq!([passes(&server, "/local", 4).await, passes(&server, "/closed", 1).await], [Some(true), None]);
    let ready = readiness(&server).await;
    assert_eq!((&ready["degraded"], &ready["ledger"]["state"]), (&json!(true), &json!("waiting")), "{ready}");
    fixture.postgres.execute("CREATE DATABASE ledger");
    wait_until_ready(&server).await;
    assert_eq!([passes(&server, "/local", 7).await, passes(&server, "/local", 6).await], [Some(false), Some(true)]);
}

#[test]
fn what_postgresql_or_the_store_refuses_ends_the_start_and_leaves_no_journal() {
    let (fixture, redis) = (Fixture::start(), Server::start_with(Kind::Redis, &["--requirepass", "hunter2"]));
    let (ledger, memory) = (fixture.postgres.url(), "memory:".to_owned());
    let newer = "CREATE TABLE schema_version (version BIGINT NOT NULL); INSERT INTO schema_version VALUES (9)";
    fixture.postgres.execute(newer);
    for (store, ledger, reason) in [
        (&memory, ledger.replace("tidegate@", "nobody:hunter2@"), "check the user and the password in the ledger URL"),
        (&memory, ledger.replace("/postgres", "/nowhere"), "create the database that the ledger URL names"),
        (&memory, format!("{ledger}?sslmode=require"), "no TLS connection to the ledger's database"),
        (&redis.bare_url(), ledger.clone(), "password"),
        (&redis.url(), ledger, "the ledger has schema version 9"),
    ] {
        let output = refusal(&mut fixture.command_with(store, &ledger, SECRET, "journal"));
        assert!(output.contains(reason) && !output.contains("hunter2"), "{output}");
        assert_eq!(fs::read_dir(fixture.folder.path()).unwrap().count(), 1, "only the rules are left: {output}");
    }
}
