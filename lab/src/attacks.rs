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
pub use self::attack::{ATTACKS, Attack, StoreState};
pub use self::outcome::AttackOutcome;
pub use self::page::{figures, promises, row_start};
pub use self::scale::{Scale, TIMEOUT};
use self::target::Target;
pub use crate::page::FIGURES;
use conformance::server::Kind;
use conformance::witness::Witness;

/// Carries out `attack` on a store of this kind in `state`, with bystanders beside it.
pub async fn run(attack: Attack, state: StoreState, kind: Kind, scale: Scale) -> AttackOutcome {
    let target = Arc::new(Target::start(attack, kind).await);
    let witness = Witness::start(target.proxy.port()).await;
    let mut assault = Assault::prepare(attack, &target, &scale).await;
    target.enter(state).await;
    let bystanders = bystander::start(&target, &scale);
    assault.launch(state).await;
    let enough = bystanders.counts().0.total() + scale.bystander_requests;
    bystanders.until("bystanders get no answers", |(answers, _)| answers.total() >= enough).await;
    target.recover().await;
    let (bystander, mut latencies) = bystanders.stop().await;
    let attacker = assault.finish();
    let answers = state != StoreState::Silent;
    AttackOutcome {
        attack,
        state,
        connections: scale.connections as u64,
        sent: attacker.answers.total() + attacker.unanswered,
        attacker: attacker.answers,
        passed: attacker.passed,
        bystander,
        latencies: [0.5, 0.99].map(|part| bystander::latency(&mut latencies, part)),
        breaker_openings: target.server_states().map(|server| server.opened).sum(),
        overloads: target.server_states().map(|server| server.overloaded).sum(),
        within_timeout: answers && witness.saw_answers_within(TIMEOUT).await,
        slowest_answer: answers.then(|| witness.slowest_answer()),
    }
}
