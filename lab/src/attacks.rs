//! The attack suite: every [attack](Attack) by a client, over real sockets, on a real store in every [state](StoreState). Each
//! run yields an [`AttackOutcome`], which knows what is promised; tests assert it, and `make attacks` prints it.

mod assault;
mod attack;
mod bystander;
mod outcome;
mod page;
mod scale;
mod stream_resets;
mod target;

use std::sync::Arc;

use self::assault::Assault;
pub use self::assault::AttackerCounts;
pub use self::attack::{ATTACKS, Attack, Door, StoreState};
pub use self::bystander::BystanderCounts;
use self::bystander::Bystanders;
pub use self::outcome::AttackOutcome;
pub use self::page::{figures, promises, row_start};
pub use self::scale::{Scale, TIMEOUT};
use self::target::Target;
pub use crate::page::FIGURES;
use conformance::server::Kind;
use conformance::witness::Witness;

/// Carries out `attack` on a store of this kind in `state`, with bystanders beside it.
pub async fn run(attack: Attack, state: StoreState, kind: Kind, scale: Scale) -> AttackOutcome {
    let (target, limit) = (Arc::new(Target::start(attack, kind, &scale).await), scale.limit(attack));
    let witness = Witness::start(target.proxy.port()).await;
    let mut assault = Assault::prepare(attack, &target, &scale).await;
    target.enter(state).await;
    let bystanders = Bystanders::start(&target, limit, &scale);
    assault.launch(state).await;
    bystanders.continue_for(scale.bystander_requests).await;
    target.recover().await;
    let bystander = bystanders.stop().await;
    let (breaker_openings, overloads) = (target.breaker_openings(), target.overloads());
    let attacker = assault.finish();
    let within_timeout = state.answers() && witness.saw_answers_within(TIMEOUT).await;
    let slowest_answer = state.answers().then(|| witness.slowest_answer());
    AttackOutcome {
        attack,
        state,
        limit,
        connections: scale.connections as u64,
        attacker,
        bystander,
        breaker_openings,
        overloads,
        slowest_answer,
        within_timeout,
    }
}
