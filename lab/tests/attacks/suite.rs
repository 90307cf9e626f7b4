//! Every bounded attack in every state of the store, on Redis and on Valkey in turn, with the default timeout.

use conformance::server::KINDS;
use lab::attacks::{ATTACKS, AttackOutcome, Scale, run};

/// Asserts the bound of what the attacker gets, that bystanders pass, and that the breaker stays closed while the store answers. To run
/// a failing attack alone: `cargo run -p lab -- attacks --quick NAME`.
#[tokio::test(flavor = "multi_thread")]
async fn no_attack_exceeds_its_bound() {
    let mut problems = Vec::new();
    for (number, attack) in ATTACKS.into_iter().enumerate() {
        for (state, kind) in attack.states().into_iter().zip(KINDS.into_iter().cycle().skip(number)) {
            match tokio::spawn(run(attack, state, kind, Scale::for_tests())).await {
                Ok(outcome) => problems.extend(AttackOutcome::problems(&outcome)),
                Err(error) => problems.push(format!("{}, {kind:?} {}: {error}", attack.name(), state.name())),
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
