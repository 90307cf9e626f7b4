//! The fault suite: every [fault](Fault) on real servers, under load from several instances, for every policy at once. Each run
//! makes a [`FaultOutcome`] for each policy, which knows what it promises; tests hold it to that, and `make faults` prints it.

mod environment;
mod fault;
mod load;
mod outcome;
mod page;

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock, OnFailure, SystemClock};
use tokio::sync::Semaphore;

use self::environment::FaultEnvironment;
pub use self::fault::{Effect, FAULTS, Fault, Loss, POLICIES};
pub use self::load::{Counts, INSTANCES, Scale};
use self::load::{Instance, Load, request};
pub use self::outcome::FaultOutcome;
pub use self::page::{FIGURES, figures, promises};
use crate::server::Kind;
use crate::suite::patient_options;

/// How many decisions of the store in a row mean that it is back.
const BACK: u64 = 10;

/// Lets `fault` happen to a store of this kind, under load, and tells what came of it under each policy. When everything is
/// ready it waits for one of `turns`.
pub async fn run(fault: Fault, kind: Kind, scale: Scale, turns: &Semaphore) -> Vec<FaultOutcome> {
    let (mut environment, clock) = (FaultEnvironment::start(fault, kind, &scale).await, SystemClock::new());
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        let (rules, options) = (scale.rules(environment.limit), scale.options(fault));
        instances.push(Arc::new(Instance::open(&environment.url, rules, options).await));
    }
    Instance::wait_for_heartbeats(&instances).await;
    let _turn = turns.acquire().await.unwrap();
    let load = Load::start(&instances, scale);
    load.continue_for(scale.before).await;
    let mark = load.counts();
    // A store that counts silence by milliseconds may find some on a machine that has none to spare.
    let fine = mark.iter().flatten().all(|counts| counts.without_store() + counts.late == 0);
    assert!(fine || fault.is_silence(), "{}: there is trouble before there is any:\n{load:?}", fault.name());

    let struck = clock.now();
    environment.inject(fault, &scale, &instances, &load).await;
    let seen = |policy: OnFailure, counts: &Counts| match fault.effect() {
        Effect::Unnoticed => counts.by_store() >= scale.during,
        // A policy that has an end of its own is seen to reach it.
        Effect::Outage(_) => {
            let ends = matches!(policy, OnFailure::Local | OnFailure::Static);
            counts.without_store() >= scale.during && (!ends || counts.held > 0)
        }
        Effect::OutageThatEnds(_) => counts.without_store() > 0,
    };
    load.until(&format!("{}: it is not noticed", fault.name()), &mark, seen).await;
    environment.repair(fault, &scale).await;
    let mended = if matches!(fault.effect(), Effect::OutageThatEnds(_)) { struck } else { clock.now() };
    let back = |_, counts: &Counts| counts.consecutive_by_store >= BACK;
    load.until(&format!("{}: the store does not come back", fault.name()), &load.counts(), back).await;
    let recovery = Duration::from_micros(clock.now().as_micros() - mended.as_micros());

    let counts = load.stop().await;
    // By somebody who was not there, and is patient.
    let heir = Instance::open(&environment.url, scale.rules(environment.limit), patient_options()).await;
    let asked: u64 = counts.iter().flatten().map(|counts| counts.sent).sum();
    let sent_on = environment.proxy.as_ref().map(|proxy| (proxy.passed().decisions, asked));
    let mut rows = Vec::new();
    for (place, policy) in POLICIES.into_iter().enumerate() {
        let rest = heir.now().take_up_to(&request(policy), environment.limit).await.unwrap();
        assert_eq!(rest.degraded(), None, "{}", fault.name());
        let counts = counts[1..].iter().fold(counts[0][place].clone(), |sum, instance| sum.and(&instance[place]));
        let (rest, limit) = (rest.granted(), environment.limit);
        rows.push(FaultOutcome { fault, policy, scale, limit, counts, rest, recovery, sent_on });
    }
    rows
}
