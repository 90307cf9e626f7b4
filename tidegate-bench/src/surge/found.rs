//! `Found`: what a phase came to, in numbers for people and programs. Pure: everything was counted before.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate::RuleSet;

use super::admitted::Kept;
use super::backend::Parts;
use super::endpoint::Endpoint;
use super::fleet::Watched;
use super::ledger::{Count, Ledger, Party};
use super::machine::Busy;
use super::matching::WORKERS;
use super::phase::{Evening, Look, Phase};
use super::town::Town;

/// A request that left so much later than it was due is the load's fault.
const LATE: Duration = Duration::from_millis(20);

/// So large a share of them may be, before the times are in doubt.
const FEW: f64 = 0.01;

/// Processors that are busier than this are at their end.
const BUSY: f64 = 0.9;

/// If other programs have more of them than this, they are in the way.
const OTHERS: f64 = 0.1;

/// So many points are enough for the curve of the riders.
const CURVE: usize = 200;

/// What a phase came to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Found {
    pub(crate) phase: usize,
    pub(crate) title: &'static str,
    pub(crate) rules: Option<&'static str>,
    pub(crate) instances: u32,
    /// How long it lasted.
    pub(crate) seconds: f64,
    /// By endpoint; everybody's requests.
    pub(crate) endpoints: Vec<Row>,
    /// All requests of the riders, which the aims are about.
    pub(crate) riders: Row,
    pub(crate) bot: Row,
    pub(crate) crowd: Crowd,
    pub(crate) refusals_at_server: Times,
    pub(crate) service: Service,
    pub(crate) limits: Vec<Kept>,
    /// How often the store failed, and how many requests were judged without it.
    pub(crate) store_failures: u64,
    pub(crate) undecided: u64,
    pub(crate) load: Load,
    pub(crate) timeline: Vec<Moment>,
}

/// What became of some requests.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    /// Those that no limit refused, however they ended.
    pub(crate) allowed: Times,
    pub(crate) served: u64,
    /// Answered with an error, or not at all.
    pub(crate) failures: u64,
    pub(crate) timed_out: u64,
    pub(crate) failure_rate: f64,
    /// Still waiting at the end.
    pub(crate) cut_off: u64,
    /// Answered with 429.
    pub(crate) refused: Times,
}

/// How long something took, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Times {
    pub(crate) count: u64,
    pub(crate) average: f64,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
}

/// What the riders got.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Crowd {
    pub(crate) riders: usize,
    /// Riders who were matched at least once.
    pub(crate) matched: usize,
    pub(crate) rides: u64,
    /// Jain's index of the rides: 1 if all have as many, 1/n if one has all.
    pub(crate) fairness: f64,
    /// Rides, from the rider with the fewest to the one with the most, thinned out.
    pub(crate) curve: Vec<u32>,
}

/// What the service had to do.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Service {
    pub(crate) requests: u64,
    pub(crate) requests_per_second: f64,
    pub(crate) ride_requests: u64,
    pub(crate) matched: u64,
    pub(crate) turned_away: u64,
    /// Share of the workers that were busy, from when the riders were there.
    pub(crate) pool_use: f64,
    pub(crate) wait: Times,
    pub(crate) deepest_queue: u64,
    pub(crate) positions_written: u64,
    /// The most that positions had to wait for the index, in milliseconds.
    pub(crate) index_behind: f64,
}

/// How far the load is to be trusted.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Load {
    /// How late requests of riders and the bot left.
    pub(crate) late: Times,
    /// Share of them that left later than they should.
    pub(crate) too_late: f64,
    /// The same of drivers and clerks: a convoy is more than a small machine can send at once.
    pub(crate) late_staff: Times,
    /// What the processors did; none where the system does not tell.
    pub(crate) cpu: Option<Busy>,
}

/// One second of a phase.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Moment {
    /// Of the riders' requests that were due in it and that no limit refused, in milliseconds; none if there were none.
    pub(crate) median: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    /// How many waited for a worker, at its end.
    pub(crate) queue: u64,
}

impl Found {
    #[allow(clippy::too_many_arguments, reason = "it is the one place where all that was seen comes together")]
    pub(crate) fn new(
        phase: Phase,
        evening: &Evening<'_>,
        town: &Town,
        parts: &Parts,
        watched: &Watched,
        rules: &RuleSet,
        looks: &[Look],
        cpu: Option<Busy>,
        lasted: Duration,
    ) -> Self {
        let (ledger, span) = (town.ledger(), lasted.min(evening.shape.span));
        let everybody = [Party::RIDERS, Party::Bot, Party::Staff];
        let row = |name, parties: &[Party], endpoint| Row::new(name, &ledger.count(parties, endpoint), span);
        Self {
            phase: phase.number(),
            title: phase.title(),
            rules: phase.file(),
            instances: evening.instances,
            seconds: span.as_secs_f64(),
            endpoints: Endpoint::ALL.map(|endpoint| row(endpoint.name(), &everybody, Some(endpoint))).into(),
            riders: row("riders", &[Party::RIDERS], None),
            bot: row("bot", &[Party::Bot], None),
            crowd: Crowd::new(ledger.matched()),
            refusals_at_server: Times::new(&watched.refusals()),
            service: Service::new(parts, looks, span),
            limits: watched.admitted.judge(rules),
            store_failures: watched.admitted.failures(),
            undecided: watched.admitted.undecided(),
            load: Load::new(&ledger, cpu),
            timeline: timeline(&ledger, looks, span),
        }
    }

    /// What a rule admitted, if it applied to anybody.
    pub(crate) fn limit(&self, rule: &str) -> Option<&Kept> {
        self.limits.iter().find(|kept| kept.rule == rule)
    }

    /// The most that anybody had beyond a limit.
    pub(crate) fn overshoot(&self) -> u64 {
        self.limits.iter().map(|kept| kept.overshoot).max().unwrap_or(0)
    }

    /// What spoils the figures and is the machine's fault, or the store's.
    pub(crate) fn doubts(&self) -> Vec<String> {
        let (mut faults, mut doubts) = (Vec::new(), Vec::new());
        if let Some(cpu) = self.load.cpu.filter(|cpu| cpu.share > BUSY) {
            faults.push(format!("the processors were {:.0} % busy", cpu.share * 100.0));
        }
        if let Some(cpu) = self.load.cpu.filter(|cpu| cpu.others > OTHERS) {
            faults.push(format!("other programs had {:.0} % of the processors", cpu.others * 100.0));
        }
        if self.load.too_late > FEW {
            let (percent, late) = (self.load.too_late * 100.0, LATE.as_millis());
            faults.push(format!("{percent:.1} % of the riders' requests left more than {late} ms late"));
        }
        if !faults.is_empty() {
            let faults = faults.join(" and ");
            doubts.push(format!(
                "{faults}, so the times are the machine's and not the servers'; close other programs, or try fewer --users"
            ));
        }
        if self.undecided > 0 {
            let (undecided, failures) = (self.undecided, self.store_failures);
            doubts
                .push(format!("{undecided} requests were judged without the store, since it failed {failures} times"));
        }
        doubts
    }
}

// === impl Row ===

impl Row {
    fn new(name: &'static str, count: &Count, span: Duration) -> Self {
        let requests = count.allowed.len() + count.refused.len();
        Self {
            name,
            requests,
            per_second: requests as f64 / span.as_secs_f64().max(0.001),
            allowed: Times::new(&count.allowed),
            served: count.served,
            failures: count.failed + count.timed_out,
            timed_out: count.timed_out,
            failure_rate: count.failure_rate(),
            cut_off: count.cut_off,
            refused: Times::new(&count.refused),
        }
    }
}

// === impl Times ===

impl Times {
    fn new(times: &Histogram<u64>) -> Self {
        let millis = |micros: u64| micros as f64 / 1000.0;
        Self {
            count: times.len(),
            average: times.mean() / 1000.0,
            median: millis(times.value_at_quantile(0.5)),
            min: millis(if times.is_empty() { 0 } else { times.min() }),
            max: millis(times.max()),
            p95: millis(times.value_at_quantile(0.95)),
            p99: millis(times.value_at_quantile(0.99)),
        }
    }
}

// === impl Crowd ===

impl Crowd {
    fn new(rides: &[u32]) -> Self {
        let mut sorted = rides.to_vec();
        sorted.sort_unstable();
        let sum: u64 = sorted.iter().copied().map(u64::from).sum();
        let squares: f64 = sorted.iter().map(|rides| f64::from(*rides).powi(2)).sum();
        let fairness = if sum == 0 { 0.0 } else { (sum as f64).powi(2) / (sorted.len() as f64 * squares) };
        let points = sorted.len().min(CURVE);
        let curve = (0..points).map(|point| sorted[point * (sorted.len() - 1) / (points - 1).max(1)]).collect();
        let matched = sorted.iter().filter(|rides| **rides > 0).count();
        Self { riders: sorted.len(), matched, rides: sum, fairness, curve }
    }
}

// === impl Service ===

impl Service {
    fn new(parts: &Parts, looks: &[Look], span: Duration) -> Self {
        let matching = &parts.matching;
        let requests: u64 = Endpoint::ALL.into_iter().map(|endpoint| parts.asked(endpoint)).sum();
        // At first there is nobody yet.
        let crowded = &looks[looks.len() / 4..];
        let busy: u64 = crowded.iter().map(|look| u64::from(look.busy)).sum();
        let behind = looks.iter().map(|look| look.index_behind).max().unwrap_or_default();
        Self {
            requests,
            requests_per_second: requests as f64 / span.as_secs_f64().max(0.001),
            ride_requests: parts.asked(Endpoint::Ride),
            matched: matching.done(),
            turned_away: matching.turned_away(),
            pool_use: busy as f64 / (crowded.len().max(1) as f64 * f64::from(WORKERS)),
            wait: Times::new(&matching.waits()),
            deepest_queue: looks.iter().map(|look| look.waiting).max().unwrap_or(0),
            positions_written: parts.index.written(),
            index_behind: behind.as_secs_f64() * 1000.0,
        }
    }
}

// === impl Load ===

impl Load {
    fn new(ledger: &Ledger, cpu: Option<Busy>) -> Self {
        let (late, staff) = (ledger.late(&[Party::RIDERS, Party::Bot]), ledger.late(&[Party::Staff]));
        let bound = u64::try_from(LATE.as_micros()).unwrap_or(u64::MAX);
        let too_late = late.count_between(bound, late.high()) as f64 / late.len().max(1) as f64;
        Self { late: Times::new(&late), too_late, late_staff: Times::new(&staff), cpu }
    }
}

fn timeline(ledger: &Ledger, looks: &[Look], span: Duration) -> Vec<Moment> {
    let seconds = ledger.seconds();
    // Looks come ten times a second; the last of each second is told.
    let per_second = (looks.len() / seconds.len().max(1)).max(1);
    let told = usize::try_from(span.as_secs_f64().ceil() as u64).unwrap_or(usize::MAX);
    let moments = seconds.iter().take(told).enumerate().map(|(number, second)| {
        let look = looks.get(((number + 1) * per_second - 1).min(looks.len().saturating_sub(1)));
        let millis = |quantile| {
            let micros = second.allowed.value_at_quantile(quantile);
            (!second.allowed.is_empty()).then_some(micros as f64 / 1000.0)
        };
        Moment {
            median: millis(0.5),
            p99: millis(0.99),
            served: second.served,
            refused: second.refused,
            failed: second.failed,
            queue: look.map_or(0, |look| look.waiting),
        }
    });
    moments.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_if_all_have_as_many_and_one_nth_if_one_has_all() {
        let index = |rides: &[u32]| (Crowd::new(rides).fairness * 1000.0).round();
        assert_eq!((index(&[3, 3, 3, 3]), index(&[0, 0, 8, 0]), index(&[0, 0])), (1000.0, 250.0, 0.0));
    }

    #[test]
    fn the_curve_goes_from_the_fewest_to_the_most_however_many_riders_there_are() {
        let rides: Vec<u32> = (0..5000).rev().collect();
        let crowd = Crowd::new(&rides);
        assert_eq!((crowd.curve.len(), crowd.curve[0], crowd.curve[CURVE - 1]), (CURVE, 0, 4999));
        assert_eq!((crowd.matched, crowd.riders), (4999, 5000));
        assert_eq!(Crowd::new(&[2]).curve, [2]);
    }
}
