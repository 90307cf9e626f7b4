//! A ledger belongs to one secret, and to one instance if the store is in its memory.

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
    fixture.kill_and_restart();
    assert_eq!(fixture.left("/exports", "acme"), 40);
}
