//! The page that tells what faults do, `docs/faults.md`: first what is promised, which is a table of this suite in words, then
//! what was measured when the page was written.

use std::fmt::Write;
use std::time::Duration;

use tidegate::OnFailure;

use super::fault::{Effect, FAULTS, Fault, Loss, POLICIES};
use super::load::{INSTANCES, Scale};
use super::outcome::FaultOutcome;

/// Where the figures begin.
pub const FIGURES: &str = "## Figures";

const INTRODUCTION: &str = "\
# When the store fails

What happens to requests while Redis or Valkey misbehaves, fault by fault. This page is written by the suite that makes the
faults happen to real servers, under load from two instances, with one rule for each [policy](rules.md): `make faults` (a few
minutes; `cargo run --release -p conformance --example faults -- hang` for one of them). `make test` runs the same with less
load, and fails if a row does not do what its line below says.

Every decision is answered within its budget, whatever happens, or the suite fails. A decision that the store did not make
says so (`degraded`, with the reason), and shows no numbers that nobody knows.

*Above the limit* is what may pass beyond what the limit says, because of the fault and until the limit has refilled. A decision
whose answer got lost may have been counted all the same: then less count_allowed, never more, since it is not sent again.

";

const NOTES: &str = "
- The *share* of an instance is its part of the limit, by the number of instances that were response of last. One that has just
  started is not known to the others for up to five seconds; if the store fails then, the shares add up to more than the limit.
  A share and a cap refill as their limits do, and are handed out once, however often the store goes and comes back.
- *OOM*: whoever has used up a limit is still denied by the store, since that takes no memory.
- *Failover* and *promotion*: replication is asynchronous. A primary that is killed takes with it what it answered last and had
  not sent on: at most what was under way at once, unless its replica lags. One that is cut off and goes on would answer until it
  notices; `min-replicas-to-write 1` ends that.
- *Clock jumps*: a step ahead is time that has passed, and refills; a step back gives nothing back and locks nobody out.

";

/// What is promised: the part of the page that is the same whoever writes it.
pub fn promises() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("## What callers get\n\n");
    page.push_str("| fault | what happens | policy | what callers get | reason | above the limit, at most |\n");
    page.push_str("|---|---|---|---|---|---|\n");
    for fault in FAULTS {
        let reasons: Vec<_> = fault.effect().reasons().iter().map(|reason| format!("`{}`", reason.as_str())).collect();
        let mut line = |policy: &str, got: &str, bound: &str| {
            let (name, happens) = (fault.name(), fault.happens());
            let _ = writeln!(page, "| {name} | {happens} | {policy} | {got} | {} | {bound} |", reasons.join(", "));
        };
        if fault.effect() == Effect::Unnoticed {
            line("any", "the store decides; nobody notices", "0");
            continue;
        }
        for policy in POLICIES {
            line(&format!("`{}`", policy.as_str()), got(policy), &bound(fault, policy));
        }
    }
    page.push_str(NOTES);
    page
}

/// What was measured.
pub fn figures(rows: &[FaultOutcome], scale: &Scale, command: &str, written: &str) -> String {
    let mut page = format!(
        "{FIGURES}\n\n```sh\n{command}\n```\n\n{written}. Budget {:?}, {INSTANCES} instances, {} that ask at once under each \
         policy of each instance, one request every {:?} each. Times are wall time on a machine that also runs the servers and \
         the load; nothing is asserted about them but that no decision took {:?}.\n\n",
        scale.budget, scale.workers, scale.pace, scale.late
    );
    page.push_str(
        "`allowed` and `denied` were decided by the store, `passed` and `held` without it, `refused` are errors. ",
    );
    page.push_str(
        "The time to recover counts from when the store was mended, and where servers repair it themselves from the ",
    );
    page.push_str("fault, until all decisions were the store's again. A machine that has no time for a server for most of a budget ");
    page.push_str("makes a fault of its own: such a run is repeated, up to five times, and named above.\n\n");
    page.push_str(
        "| fault | policy | sent | allowed | denied | passed | held | refused | longest decision | to recover ",
    );
    page.push_str("| limit | above it | bound |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for row in rows {
        let _ = writeln!(page, "{}", figure(row));
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
        OnFailure::Closed => "an error: refused as a failure of the service",
        OnFailure::Local => "allowed up to the instance's share, then denied; degraded",
        OnFailure::Static => "allowed up to the instance's cap, then denied; degraded",
        _ => "allowed; degraded",
    }
}

fn bound(fault: Fault, policy: OnFailure) -> String {
    let by_policy = match policy {
        OnFailure::Closed => "0",
        OnFailure::Local => "the share of each instance, together the limit",
        OnFailure::Static => "the cap of each instance",
        _ => "whatever comes while it lasts",
    };
    let by_loss = match fault.loss() {
        Loss::Nothing => "",
        Loss::Unreplicated => "what had not reached the replica",
        Loss::Everything => "the limit once more",
    };
    match (policy, by_loss) {
        (_, "") => by_policy.to_owned(),
        (OnFailure::Closed, loss) => loss.to_owned(),
        (_, loss) => format!("{by_policy}, and {loss}"),
    }
}
