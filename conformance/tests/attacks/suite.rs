//! Every attack in every state of the store, with the default timeout.

use conformance::attacks::{ATTACKS, AttackOutcome, Scale, run};
use conformance::server::Kind;

/// Asserts the bound of what the attacker gets, that bystanders pass, and that the breaker stays closed while the store answers. To run
/// a failing attack alone: `cargo run -p conformance --example attacks -- --quick NAME`.
#[tokio::test(flavor = "multi_thread")]
async fn no_attack_exceeds_its_bound() {
    let mut problems = Vec::new();
    for attack in ATTACKS {
        for state in attack.states() {
            let ran = tokio::spawn(run(attack, state, Kind::Redis, Scale::for_tests())).await;
            match ran {
                Ok(outcome) => problems.extend(AttackOutcome::problems(&outcome)),
                Err(error) => problems.push(format!("{}, store {}: {error}", attack.name(), state.name())),
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
