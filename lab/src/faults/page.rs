//! Renders `docs/faults.md`: the promises, which are the table of this suite in words, then the figures of the last run.

use std::fmt::Write;
use std::time::Duration;

use tidegate::OnFailure;

use super::fault::{Effect, FAULTS, Fault, POLICIES, StateLoss};
use super::lease_load::{LeaseCounts, LeaseOutcome, MAX_HELD, WORKERS};
use super::load::{INSTANCES, Scale, TIMEOUT};
use super::outcome::FaultOutcome;

/// The heading of the figures.
pub const FIGURES: &str = "## Figures";

const INTRODUCTION: &str = "\
# When the store fails

What happens to requests during each fault of Redis or Valkey. The fault suite generates this page. It injects each
fault into real servers, under load from two instances, with rules for each [policy](rules.md): `make faults` (a few
minutes; `cargo run --release -p lab -- faults hang` for a single fault). `make test` runs the same suite with
less load, and fails if a fault has another effect than the table below states. `open` and `degraded` have one limit; the others
have a limit of each kind and a second rule, all in one plan.

Every decision has a timeout, here the default of 25 ms. A decision made without the store is marked `degraded`, with the reason, and
shows no numbers, since the instance does not know them. A server that does not answer for that long is silent, whatever the
reason: if a busy machine did not run the server itself, as an independent connection sees, the bounds of *timeout* apply to that run.

*Above the limit* is the number of units that may pass beyond the limit because of the fault, until the limit has refilled; units that the store could
still grant afterwards count as passed. A decision whose reply was lost may have been counted: then less passes, never more, since it is not
sent again.

";

const NOTES: &str = "
- With `local` each instance applies the whole limit, in its memory.
- The *share* of an instance is the limit divided by the number of live instances, as last counted by heartbeats. The others
  discover a new instance within five seconds; if the store fails before that, the shares add up to more than the limit.
  A share or cap refills like its limit, and a repeated outage does not grant it again.
- *OOM*: the store decides for the subjects that it knows, exactly. New ones are decided as during an outage, with the reason `refused`:
  see [made-up keys](attacks.md#attacks).
- *Failover* and *promotion*: replication is asynchronous. A killed primary loses its last writes that were not replicated: at most
  the decisions in flight, which the suite asserts, unless the replica lags. A primary that is partitioned but alive would keep answering;
  `min-replicas-to-write 1` prevents that.
- *Timeout*, *hang*, *latency* and *trickle*: until it is certain that the server is silent, calls wait. On a busy machine some wait too
  long and are [overloaded](failure.md#overload) instead (reason `overloaded`): whatever the policy, their subjects are refused with 503 if they
  have several calls waiting. Nothing more passes by that.
- *Leases*: workers on both instances take, hold and release slots of a concurrency limit beside this load. However the store fails, no more
  slots are held than there are, and at the end none is left that was released. A release whose
  caller got an error leaves a slot that runs out with its lease; one in the background is sent again. After *data lost*, *failover* and *promotion*, and when the clock jumps over the lease, the store may
  grant each slot once more.
- *Clock jumps*: a forward step counts as elapsed time and refills; a backward step refunds nothing and locks no subject out.

";

/// Renders the promises, which do not depend on a run.
pub fn promises() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str(&assertions());
    page.push_str("## What callers get\n\n");
    page.push_str("| fault | how it is injected | policy | what callers get | reason | above the limit, at most |\n");
    page.push_str("|---|---|---|---|---|---|\n");
    for fault in FAULTS {
        let reasons: Vec<_> = fault.reasons().map(|reason| format!("`{}`", reason.as_str())).collect();
        let mut line = |policy: &str, got: &str, bound: &str| {
            let (name, injection) = (fault.name(), fault.injection());
            let _ = writeln!(page, "| {name} | {injection} | {policy} | {got} | {} | {bound} |", reasons.join(", "));
        };
        if fault.effect() == Effect::Unnoticed {
            line("any", "the store decides; no effect", "0");
            continue;
        }
        for policy in POLICIES {
            line(&format!("`{}`", policy.as_str()), got(policy), &bound(fault, policy));
        }
    }
    page.push_str(NOTES);
    page
}

/// What [`FaultOutcome::problems`] checks, in words.
fn assertions() -> String {
    let (tests, figures) = (Scale::for_tests().late, Scale::for_figures().late);
    format!(
        "For every fault and policy, the suite asserts this bound, the reasons, and what callers get; that every request gets a decision, in less\n\
         than {tests:?} (`make test`, on a machine that runs all tests at once) or {figures:?} (`make faults`, alone); that no check is sent twice; and that\n\
         the store has counted nothing that was not requested.\n\n"
    )
}

/// Renders the figures of a run.
pub fn figures(rows: &[FaultOutcome], leases: &[LeaseOutcome], scale: &Scale, command: &str, written: &str) -> String {
    let mut page = format!(
        "{FIGURES}\n\n```sh\n{command}\n```\n\n{written}. Timeout {TIMEOUT:?}, {INSTANCES} instances, {} workers per instance and policy, \
         each with one request every {:?}. Times are wall time on a machine that also runs the servers and \
         the load; of them the suite asserts only that no decision took {:?}.\n\n",
        scale.workers, scale.pace, scale.late
    );
    page.push_str(
        "`allowed` and `denied` were decided by the store, `passed` (admitted) and `held` (denied) without it; `refused` are errors. ",
    );
    page.push_str(
        "The recovery time counts from the repair, or from the fault where the servers recover by themselves, ",
    );
    page.push_str("until the store made all decisions again.\n\n");
    page.push_str(
        "| fault | policy | sent | allowed | denied | passed | held | refused | longest decision | recovery ",
    );
    page.push_str("| limit | above it | bound |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for row in rows {
        let _ = writeln!(page, "{}", figure(row));
    }
    let _ = write!(
        page,
        "\nSlots of a concurrency limit of {MAX_HELD}, `closed`, with {WORKERS} workers on each instance that hold one for {:?}:\n\n\
         | fault | taken | most held at once | unconfirmed | left at the end |\n|---|---|---|---|---|\n",
        scale.pace
    );
    for LeaseOutcome { fault, counts, left } in leases {
        let (name, LeaseCounts { taken, peak, unconfirmed, .. }) = (fault.name(), counts);
        let _ = writeln!(page, "| {name} | {taken} | {peak} | {unconfirmed} | {left} |");
    }
    page
}

fn figure(row: &FaultOutcome) -> String {
    let counts = &row.counts;
    let recovery = if row.fault.effect() == Effect::Unnoticed { "-".to_owned() } else { time(row.recovery) };
    let fields = [
        row.fault.name().to_owned(),
        format!("`{}`", row.policy.as_str()),
        counts.sent.to_string(),
        counts.allowed.to_string(),
        counts.denied.to_string(),
        counts.passed.to_string(),
        counts.held.to_string(),
        counts.refused.to_string(),
        time(counts.worst),
        recovery,
        row.limit.to_string(),
        row.over_admission().to_string(),
        row.bound().to_string(),
    ];
    format!("| {} |", fields.join(" | "))
}

fn time(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1000.0)
}

const fn got(policy: OnFailure) -> &'static str {
    match policy {
        OnFailure::Closed => "an error: refused with 503",
        OnFailure::Local => "allowed up to the limit in each instance, then denied; degraded",
        OnFailure::Share => "allowed up to the instance's share, then denied; degraded",
        OnFailure::Static => "allowed up to the instance's cap, then denied; degraded",
        _ => "allowed; degraded",
    }
}

fn bound(fault: Fault, policy: OnFailure) -> String {
    let by_policy = match policy {
        OnFailure::Closed => "0",
        OnFailure::Local => "the limit for each instance",
        OnFailure::Share => "the share of each instance, together the limit",
        OnFailure::Static => "the cap of each instance",
        _ => "every request during the fault",
    };
    let by_loss = match fault.loss() {
        StateLoss::Nothing => "",
        StateLoss::Unreplicated => "the decisions in flight, one for each worker",
        StateLoss::Everything => "the limit once more",
    };
    match (policy, by_loss) {
        (_, "") => by_policy.to_owned(),
        (OnFailure::Closed, loss) => loss.to_owned(),
        (_, loss) => format!("{by_policy}, and {loss}"),
    }
}
