//! The fault suite: every [fault](Fault) on real servers, under load from several instances, for every policy at once. Each run
//! yields a [`FaultOutcome`] per policy, which knows what is promised; tests assert it, and `make faults` prints it.

mod environment;
mod fault;
mod lease_load;
mod load;
mod outcome;
mod page;

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock, OnFailure, SystemClock};
use tokio::sync::Semaphore;

use self::environment::FaultEnvironment;
use self::fault::Effect;
pub use self::fault::{FAULTS, Fault, POLICIES};
use self::lease_load::LeaseLoad;
pub use self::lease_load::LeaseOutcome;
pub use self::load::Scale;
use self::load::{Counts, INSTANCES, Instance, Load, TIMEOUT, checks, options, request};
pub use self::outcome::FaultOutcome;
pub use self::page::{figures, promises};
pub use crate::page::FIGURES;
use crate::suite::Answer;
use conformance::server::Kind;
use conformance::suite::long_timeout_options;
use conformance::witness::Witness;

/// The store counts as recovered after this many consecutive decisions by it.
const RECOVERED_DECISIONS: u64 = 10;

/// Injects `fault` into a store of this kind, under load, and returns the outcome under each policy, and that for holders of slots. When
/// the servers are ready, it waits for one of `turns`, so that not too many faults run at once.
pub async fn run(fault: Fault, kind: Kind, scale: Scale, turns: &Semaphore) -> (Vec<FaultOutcome>, LeaseOutcome) {
    let (mut environment, clock) = (FaultEnvironment::start(fault, kind, &scale).await, SystemClock::new());
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        let rules = scale.rules(environment.limit);
        instances.push(Arc::new(Instance::open(&environment.url, rules, options()).await));
    }
    Instance::wait_for_heartbeats(&instances).await;
    let _turn = turns.acquire().await.unwrap();
    let witnesses = Witness::start_all(environment.ports()).await;
    let within_timeout = || Witness::all_saw_answers_within(&witnesses, TIMEOUT);
    let load = Load::start(&instances, scale);
    let lease_load = LeaseLoad::start(&instances, environment.lease_tenant(), scale.pace);
    load.continue_for(scale.before).await;
    lease_load.continue_for(scale.before).await;
    let mark = load.counts();
    let fine = mark.iter().flatten().all(|counts| counts.without_store() + counts.answers.of(Answer::Missing) == 0);
    let name = fault.name();
    assert!(
        fine || !within_timeout().await,
        "{name}: decisions were late or without the store before the fault:\n{mark:#?}"
    );

    let struck = clock.now();
    environment.inject(fault, &scale, &instances, &load).await;
    let seen = |policy: OnFailure, counts: &Counts| match fault.effect() {
        Effect::Unnoticed => counts.by_store() >= scale.during,
        // `local`, `share` and `static` must be seen to reach their bounds.
        Effect::Outage(_) => {
            let ends = matches!(policy, OnFailure::Local | OnFailure::Share | OnFailure::Static);
            counts.without_store() >= scale.during && (!ends || counts.answers.of(Answer::Held) > 0)
        }
        Effect::SelfHealingOutage(_) => counts.without_store() > 0,
    };
    load.until(&format!("{name}: the fault has no effect"), &mark, seen).await;
    environment.repair(fault, &scale).await;
    let mended = if matches!(fault.effect(), Effect::SelfHealingOutage(_)) { struck } else { clock.now() };
    let back = |_, counts: &Counts| counts.consecutive_by_store >= RECOVERED_DECISIONS;
    load.until(&format!("{name}: the store does not recover"), &load.counts(), back).await;
    let recovery = Duration::from_micros(clock.now().as_micros() - mended.as_micros());

    lease_load.continue_for(scale.before).await;

    let (counts, within_timeout) = (load.stop().await, within_timeout().await);
    // A new instance with a generous budget counts what is left.
    let heir = Instance::open(&environment.url, scale.rules(environment.limit), long_timeout_options()).await;
    let leases = lease_load.stop(fault, &heir.now()).await;
    let by_policy = counts.iter().flat_map(|counts| counts.iter().zip(POLICIES));
    let requested: u64 = by_policy.map(|(counts, policy)| counts.sent * checks(policy)).sum();
    let sent_on = environment.proxy.as_ref().map(|proxy| (proxy.forwarded_counts().decisions, requested));
    let mut rows = Vec::new();
    for (place, policy) in POLICIES.into_iter().enumerate() {
        let rest = heir.now().take_up_to(&request(policy), environment.limit).await.unwrap();
        assert_eq!(rest.degraded(), None, "{name}");
        let mut sum = counts[0][place].clone();
        counts[1..].iter().for_each(|instance| sum.add(&instance[place]));
        let (rest, limit) = (rest.granted(), environment.limit);
        rows.push(FaultOutcome { fault, policy, scale, limit, counts: sum, rest, recovery, sent_on, within_timeout });
    }
    (rows, leases)
}
