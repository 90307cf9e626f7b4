//! The checks of a ledger that answers after the start: a failed one closes the rules with a ledger, whatever their policy, until it passes.

use std::net::TcpListener;
use std::process::Command;

use conformance::poll;
use conformance::serve_process::ServeProcess;
use serde_json::json;
use tidegate::Secret;
use tidegate::spi::Namespace;
use tidegate_cli::Exit;
use tidegate_ledger::Ledger;

use super::{Fixture, SECRET, call, passes, readiness, status, wait_for_log, wait_until_ready};

/// A check, and how it fails and passes again.
struct FailedCheck {
    name: &'static str,
    advice: &'static str,
    breaking: &'static str,
    mending: &'static str,
}

/// The line that a failed check logs.
const ERROR: &str = "rules with a ledger refuse all requests (503), whatever their on_failure is";

impl FailedCheck {
    async fn closes_the_rules_until_it_passes(&self, command: impl FnOnce(&Fixture) -> Command) {
        let mut fixture = Fixture::start();
        let ledger = Ledger::open(&fixture.postgres.url().parse().unwrap()).await.unwrap();
        ledger.verify_owner(&Secret::new(SECRET), &Namespace::default()).await.unwrap();
        fixture.postgres.execute(self.breaking);
        fixture.postgres.kill();
        let server = ServeProcess::start(&mut command(&fixture));
        assert_eq!(passes(&server, "/open", 7).await, Some(true), "{}", self.name);

        fixture.postgres.restart();
        wait_for_log(&server, ERROR);
        self.assert_closed(&fixture, &server).await;
        // A check that cannot be made has not passed.
        fixture.postgres.kill();
        hang_up_on_attempts(fixture.postgres.port());
        self.assert_closed_rules(&server).await;
        fixture.postgres.restart();
        wait_for_checks(&fixture);
        self.assert_closed(&fixture, &server).await;
        assert_eq!(server.output().matches(ERROR).count(), 1, "{}: it is logged once", self.name);

        fixture.postgres.execute(self.mending);
        wait_until_ready(&server).await;
        assert_eq!([passes(&server, "/open", 1).await, passes(&server, "/closed", 2).await], [Some(true); 2]);
        fixture.wait_until_billed(&server, &[("closed", 2), ("open", 8)]).await;
    }

    async fn assert_closed_rules(&self, server: &ServeProcess) {
        for path in ["/open", "/local", "/calls", "/closed"] {
            assert_eq!(passes(server, path, 1).await, None, "{} {path}", self.name);
        }
        assert_eq!(passes(server, "/pages", 0).await, Some(true), "a rule without a ledger works");
    }

    async fn assert_closed(&self, fixture: &Fixture, server: &ServeProcess) {
        self.assert_closed_rules(server).await;
        let ready = readiness(server).await;
        let ledger = &ready["ledger"];
        assert_eq!(
            (&ready["degraded"], &ledger["state"], &ledger["failed_check"], &ledger["error"], &ledger["journal"]),
            (&json!(true), &json!("closed"), &json!(self.name), &json!("mismatch"), &json!(1)),
            "{ready}"
        );
        let (exit, shown) = status(server);
        assert_eq!(exit, Exit::Negative, "{shown}");
        let named = format!("failed check: {}; ", self.name);
        assert!(shown.contains(&named) && shown.contains(self.advice), "{shown}");
        let (status, answer) = call(server.admin(), "GET", "/v1/usage", &json!(null)).await;
        assert_eq!((status, &answer["error"]), (503, &json!("mismatch")), "{answer}");
        assert_eq!(fixture.billed(), [], "{}: nothing is posted", self.name);
    }
}

/// Waits until the server has checked the ledger twice more.
fn wait_for_checks(fixture: &Fixture) {
    let sessions =
        || -> i64 { fixture.postgres.execute("SELECT sum(sessions) FROM pg_stat_database").parse().unwrap() };
    let before = sessions();
    let mut own = 0;
    poll::wait_for("the ledger is not checked again", || {
        own += 1;
        sessions() - before - own >= 2
    });
}

/// Waits until the ledger was tried to be reached, without an answer.
fn hang_up_on_attempts(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    // The first one has ended when the next one begins.
    for _ in 0..2 {
        drop(listener.accept().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_secret_closes_the_rules_and_posts_nothing() {
    let check = FailedCheck {
        name: "secret",
        advice: "use the secret from before",
        breaking: "UPDATE secret_fingerprint SET fingerprint = ~fingerprint",
        mending: "UPDATE secret_fingerprint SET fingerprint = ~fingerprint",
    };
    check.closes_the_rules_until_it_passes(Fixture::command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_closes_the_rules() {
    let check = FailedCheck {
        name: "schema",
        advice: "update Tidegate",
        breaking: "INSERT INTO schema_version VALUES (9)",
        mending: "DELETE FROM schema_version WHERE version = 9",
    };
    check.closes_the_rules_until_it_passes(Fixture::command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_hours_off_closes_the_rules() {
    let check = FailedCheck {
        name: "clock",
        advice: "set both by NTP",
        breaking: "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
                   $$ SELECT pg_catalog.clock_timestamp() + interval '2 hours' $$",
        mending: "DROP FUNCTION public.clock_timestamp()",
    };
    let found_first = |fixture: &Fixture| {
        let url = format!("{}?options=-c%20search_path%3Dpublic,pg_catalog", fixture.postgres.url());
        fixture.command_with("memory:", &url, SECRET, "journal")
    };
    check.closes_the_rules_until_it_passes(found_first).await;
}

/// Both would admit the whole quota.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_instance_with_a_memory_store_closes_its_rules_until_the_first_has_ended() {
    let fixture = Fixture::start();
    let ledger = Ledger::open(&fixture.postgres.url().parse().unwrap()).await.unwrap();
    let first = ledger.memory_store_lock().await.unwrap();
    fixture.postgres.hang();
    let server = ServeProcess::start(&mut fixture.command());
    assert_eq!(passes(&server, "/open", 7).await, Some(true));
    fixture.postgres.resume();
    wait_for_log(&server, ERROR);
    let check = FailedCheck { name: "instance", advice: "let both use a shared store", breaking: "", mending: "" };
    check.assert_closed(&fixture, &server).await;
    first.release().await;
    wait_until_ready(&server).await;
    assert_eq!(passes(&server, "/open", 1).await, Some(true));
    fixture.wait_until_billed(&server, &[("open", 8)]).await;
}
