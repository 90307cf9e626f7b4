//! A ledger belongs to one secret and one namespace, and to one instance if the store is in its memory.

use std::path::Path;

use super::{Fixture, SECRET, refused};

#[test]
fn a_second_instance_with_a_memory_store_and_another_secret_are_refused() {
    let mut fixture = Fixture::start();
    fixture.consume("/exports", "acme", 60);
    let (rules, journal) = (fixture.path("rules.yaml"), fixture.path("other.journal"));
    let ledger = format!("sqlite:{}", fixture.path("ledger.db"));
    let arguments = ["--rules", &rules, "--ledger", &ledger, "--ledger-journal", &journal];
    let (code, error) = refused(&arguments, Some(SECRET));
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("another instance with a memory store uses this ledger"), "{error}");
    drop(fixture.server.take());
    let (code, error) = refused(&arguments, Some("another-secret-of-the-tests"));
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("written with another secret"), "{error}");
    for name in ["other.journal", "other.journal.00000001"] {
        assert!(!Path::new(&fixture.path(name)).exists(), "{name} is left");
    }
    fixture.kill_and_restart();
    assert_eq!(fixture.left("/exports", "acme"), 40);
}

/// Two deployments on one ledger would each admit the whole quota.
#[test]
fn a_deployment_in_another_namespace_is_refused_by_the_ledger() {
    let mut fixture = Fixture::start();
    fixture.consume("/exports", "acme", 60);
    drop(fixture.server.take());
    let (rules, journal) = (fixture.path("rules.yaml"), fixture.path("other.journal"));
    let ledger = format!("sqlite:{}", fixture.path("ledger.db"));
    let arguments = ["--rules", &rules, "--ledger", &ledger, "--ledger-journal", &journal, "--namespace", "shop"];
    let (code, error) = refused(&arguments, Some(SECRET));
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("the ledger belongs to another namespace than `shop`"), "{error}");
    fixture.kill_and_restart();
    assert_eq!(fixture.left("/exports", "acme"), 40);
}
