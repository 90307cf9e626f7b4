//! Renders `docs/faults.md`: the promises, which are the table of this suite in words, then the figures of the last run.

use tidegate::OnFailure;

use super::fault::{Effect, FAULTS, Fault, POLICIES, StateLoss};
use super::lease_load::{LeaseCounts, LeaseOutcome, MAX_HELD, WORKERS};
use super::load::{INSTANCES, Scale, TIMEOUT};
use super::outcome::FaultOutcome;
use crate::page::{cells, millis, start_figures, table};
use crate::suite::Answer;

const INTRODUCTION: &str = "\
# Faults of the store

Callers get an answer in each of 20 faults of Redis and Valkey; this page shows which, under each failure policy. `make faults` injects
every fault into real servers, under load from two instances, and writes this page; `cargo run --release -p lab -- faults NAME` injects one of
them, and `make prove` runs the same suite in small doses. [When the store fails](failure.md) explains policies, timeouts and bounds.

";

const OUTAGE: &str = "
Units pass *above the limit* until it has refilled; those that the store can still grant after the fault count as passed. A server that a busy
machine does not run is silent, as in *timeout*: an independent connection measures that.

";

const NOTES: &str = "
- *OOM*: the store decides for the subjects that it [knows](failure.md#a-full-store). New ones get what the policy says, with the reason `refused`.
- *Failover* and *promotion*: the decisions in flight are lost, or more if the replica lags. `min-replicas-to-write 1` stops a primary that is
  partitioned and alive.
- `overloaded`: calls wait until it is certain that the server is silent, and on a busy machine [too long](failure.md#overload).
- *Clock jumps*: a forward step refills; a backward step refunds nothing and locks no subject out.
- Leases: no more slots are held than there are, and none that was released is left. After *data lost*, *failover*, *promotion* and *clock jumps*
  the store may grant each slot once more.

";

const COLUMNS: &str = "fault | policy | sent | allowed | denied | passed | held | refused | longest decision, ms \
    | recovery, ms | limit | above it | bound";

/// Renders the promises, which do not depend on a run.
pub fn promises() -> String {
    let policies = POLICIES.map(|policy| cells([&name(policy), &promise(policy).0, &promise(policy).1]));
    let faults = FAULTS.map(|fault| {
        let reasons: Vec<_> = fault.reasons().map(|reason| format!("`{}`", reason.as_str())).collect();
        cells([&fault.name(), &fault.injection(), &effect(fault), &reasons.join(", "), &loss(fault)])
    });
    [
        INTRODUCTION,
        &assertions(),
        "## Policies\n\n",
        &table("policy | a request during an outage | above the limit, at most", policies),
        OUTAGE,
        "## Faults\n\n",
        &table("fault | injection | effect | reasons | above the limit, in addition", faults),
        NOTES,
    ]
    .concat()
}

/// What [`FaultOutcome::problems`] checks, in words.
fn assertions() -> String {
    let (tests, figures) = (Scale::for_tests().late, Scale::for_figures().late);
    format!(
        "The suite asserts effects, reasons and bounds for every fault and policy; that every request gets a decision within {figures:?} ({tests:?} in \
         `make prove`);\nthat no check is sent twice; and that the store counts nothing that was not requested. Rules with `open` and `degraded` have one \
         limit, the others one\nof each kind and a second rule, in one plan.\n\n"
    )
}

/// Renders the figures of a run.
pub fn figures(rows: &[FaultOutcome], leases: &[LeaseOutcome], scale: &Scale, command: &str, stamp: &str) -> String {
    let lease_rows = leases.iter().map(|LeaseOutcome { fault, counts, left }| {
        let LeaseCounts { taken, peak, unconfirmed, .. } = counts;
        cells([&fault.name(), taken, peak, unconfirmed, left])
    });
    [
        start_figures(command, stamp),
        format!(
            "Timeout {TIMEOUT:?}, {INSTANCES} instances, {} workers per instance and policy, each with one request every {:?}. Times are wall \
             time on a machine that also runs the servers and the load.\n\n",
            scale.workers, scale.pace
        ),
        "`allowed` and `denied` were decided by the store, `passed` (admitted) and `held` (denied) without it; `refused` are errors. The recovery \
         time counts from the repair, or from the fault where the servers recover by themselves, until the store made all decisions again.\n\n"
            .to_owned(),
        table(COLUMNS, rows.iter().map(figure)),
        format!(
            "\nSlots of a concurrency limit of {MAX_HELD}, `closed`, with {WORKERS} workers on each instance that hold one for {:?}:\n\n",
            scale.pace
        ),
        table("fault | taken | most held at once | unconfirmed | left at the end", lease_rows),
    ]
    .concat()
}

fn figure(row: &FaultOutcome) -> [String; 13] {
    let FaultOutcome { fault, policy, counts, limit, .. } = row;
    let recovery = if fault.effect() == Effect::Unnoticed { "-".to_owned() } else { millis(row.recovery) };
    cells([
        &fault.name(),
        &name(*policy),
        &counts.sent,
        &counts.answers.of(Answer::Allowed),
        &counts.answers.of(Answer::Denied),
        &counts.answers.of(Answer::Passed),
        &counts.answers.of(Answer::Held),
        &counts.answers.of(Answer::Refused),
        &millis(counts.worst),
        &recovery,
        limit,
        &row.over_admission(),
        &row.bound(),
    ])
}

fn name(policy: OnFailure) -> String {
    format!("`{}`", policy.as_str())
}

/// What a request gets during an outage, and what passes above the limit at most.
const fn promise(policy: OnFailure) -> (&'static str, &'static str) {
    match policy {
        OnFailure::Closed => ("an error: refused with 503", "0"),
        OnFailure::Local => {
            ("allowed up to the limit in each instance, then denied; degraded", "the limit for each instance")
        }
        OnFailure::Share => (
            "allowed up to the instance's share, then denied; degraded",
            "the share of each instance, together the limit",
        ),
        OnFailure::Static => ("allowed up to the instance's cap, then denied; degraded", "the cap of each instance"),
        _ => ("allowed; degraded", "every request during the fault"),
    }
}

const fn effect(fault: Fault) -> &'static str {
    match fault.effect() {
        Effect::Unnoticed => "none: the store decides",
        Effect::Outage(_) => "outage",
        Effect::SelfHealingOutage(_) => "outage until the servers recover",
    }
}

const fn loss(fault: Fault) -> &'static str {
    match fault.loss() {
        StateLoss::Nothing => "",
        StateLoss::Unreplicated => "the decisions in flight, one for each worker",
        StateLoss::Everything => "the limit once more",
    }
}
