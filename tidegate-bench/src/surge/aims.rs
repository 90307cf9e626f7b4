//! `Aim`: what a run is to prove, and whether it did. A short run proves less, and says so.

use serde::Serialize;

use super::found::Found;
use super::numbers::{self, percent, time, times};

/// Something to prove.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Aim {
    pub(crate) what: &'static str,
    /// What came of it.
    pub(crate) found: String,
    /// Whether it was reached; none if this run cannot tell.
    pub(crate) reached: Option<bool>,
}

/// All aims, as far as the phases are there; `full` says whether times count, and `whole` whether the store decides all rules of a
/// request in one step. A cluster decides them at several times, and the log has only the last: whoever believes it finds that
/// refill came too early.
pub(crate) fn judge(found: &[Found], full: bool, whole: bool) -> Vec<Aim> {
    let phase = |number: usize| found.iter().find(|found| found.phase == number);
    let mut aims = Vec::new();
    if let (Some(before), Some(after)) = (phase(1), phase(4)) {
        aims.extend(against(before, after, full));
    }
    for after in [phase(3), phase(4)].into_iter().flatten() {
        let what = match after.phase {
            3 => "phase 3: nobody has more than capacity and refill allow",
            _ => "phase 4: nobody has more than capacity and refill allow",
        };
        let most = after.limit("ride-request").map_or(0.0, |kept| kept.factor);
        let found =
            format!("{} requests beyond a limit, at most {} of it", numbers::whole(after.overshoot()), times(most));
        // Only the last phase has two rules for one request.
        let reached = (whole || after.phase == 3).then_some(after.overshoot() == 0);
        aims.push(Aim { what, found, reached });
    }
    aims
}

/// The last phase against the first.
fn against(before: &Found, after: &Found, full: bool) -> Vec<Aim> {
    let judged = |reached| full.then_some(reached);
    let (slow, quick) = (before.riders.allowed.p99, after.riders.allowed.p99);
    let ratio = slow / quick.max(0.001);
    let refusals = &after.refusals_at_server;
    let (few, many) = (before.crowd.matched, after.crowd.matched);
    let failures = after.riders.failure_rate;
    vec![
        Aim {
            what: "p99 of riders' allowed requests at least 60 times lower",
            found: format!("{} → {}, {}", time(slow), time(quick), times(ratio)),
            reached: judged(ratio >= 60.0),
        },
        Aim { what: "and under 590 ms", found: time(quick), reached: judged(quick < 590.0) },
        Aim {
            what: "at most 0.1 % of them fail",
            found: format!("{} → {}", percent(before.riders.failure_rate), percent(failures)),
            reached: judged(failures <= 0.001),
        },
        Aim {
            what: "a 429 takes less than 1 ms at the server, less than 10 at p99",
            found: format!("{}, {}", time(refusals.average), time(refusals.p99)),
            reached: judged(refusals.count > 0 && refusals.average < 1.0 && refusals.p99 < 10.0),
        },
        Aim {
            what: "no fewer riders are matched",
            found: format!("{} → {}", numbers::whole(few as u64), numbers::whole(many as u64)),
            reached: judged(many >= few),
        },
    ]
}
