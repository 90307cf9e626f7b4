//! `AcquireCalls`: how many calls of `/v1/acquire` may wait, in all and for one subject, and the metrics about them.
//!
//! A place is held from the beginning of a call to its end, also by a call that is granted at once. The bounds keep places for
//! bystanders: a subject has an eighth of them by default, and anonymous subjects, which are free to create, have three
//! quarters of them together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate::RuleSet;
use tidegate::spi::{Check, Plan};
use tidegate::sync::Mutex;

use crate::args::LIMITS_HEADING;
use crate::args::flag_values::{seconds, whole_number};
use crate::observe::metrics::OutcomeLabel;
use crate::observe::metrics::histogram::Histogram;

/// Upper bounds of the buckets of waiting times.
const WAIT_BOUNDS_MICROS: [u64; 14] = [
    1_000, 5_000, 20_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 20_000_000,
    30_000_000, 60_000_000,
];

/// Longest time that a call may wait.
const MAX_WAIT_SECONDS: u64 = 3600;

/// The most calls that may wait: half of those that may be under way, so that checks do not depend on them.
const MAX_WAITING: u64 = 4096;

/// How long callers may wait, and how many.
#[derive(Args, Clone, Copy, Debug)]
#[allow(clippy::struct_field_names, reason = "each field is a flag, and named like it")]
pub(crate) struct AcquireBounds {
    /// Maximum time that a call of /v1/acquire waits; a call that asks for more waits for this long. The time of
    /// --request-timeout is added to it
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_MAX_WAIT", value_parser = seconds(0..=MAX_WAIT_SECONDS), default_value = "30s", help_heading = LIMITS_HEADING, display_order = 6)]
    max_wait: Duration,
    /// Maximum number of calls of /v1/acquire under way; further ones get 503. Three quarters of them are for unauthenticated subjects
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_WAITING", value_parser = whole_number::<usize>(1..=MAX_WAITING), default_value_t = 1024, help_heading = LIMITS_HEADING, display_order = 7)]
    max_waiting: usize,
    /// Maximum number of them that wait for the same limits, and of one subject [default: an eighth of --max-waiting]
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_WAITING_PER_SUBJECT", value_parser = whole_number::<usize>(1..=MAX_WAITING), help_heading = LIMITS_HEADING, display_order = 8)]
    max_waiting_per_subject: Option<usize>,
}

/// Counts the callers that wait. Clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct AcquireCalls {
    bounds: AcquireBounds,
    counts: Arc<Mutex<Counts>>,
    metrics: AcquireMetrics,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    anonymous: usize,
    /// The callers for the same limits, and those of each subject.
    by_id: HashMap<u128, usize>,
}

/// The metrics about waiting.
#[derive(Clone, Debug)]
pub(crate) struct AcquireMetrics {
    waiting: Gauge,
    outcomes: Family<OutcomeLabel, Counter>,
    waits: Histogram,
}

/// How a call of `/v1/acquire` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    Granted,
    /// It would not pass within its time, or never.
    Denied,
    TimedOut,
    /// The caller went away.
    Left,
    /// Too many callers wait, or the rules changed and the body of the call was too large to keep.
    Refused,
    /// The store failed, and a rule is closed then; or new rules cannot judge the request.
    Failed,
    /// The server stops.
    Stopped,
}

/// A place of one caller, until it is dropped. Without an outcome, the caller went away.
#[derive(Debug)]
pub(crate) struct WaitingPlace {
    callers: AcquireCalls,
    ids: Vec<u128>,
    is_anonymous: bool,
    outcome: WaitOutcome,
}

/// Too many callers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyWaiting;

impl AcquireBounds {
    fn per_subject(&self) -> usize {
        self.max_waiting_per_subject.unwrap_or((self.max_waiting / 8).max(1))
    }
}

impl AcquireCalls {
    pub(crate) fn new(bounds: AcquireBounds, metrics: AcquireMetrics) -> Self {
        Self { bounds, counts: Arc::default(), metrics }
    }

    /// A place for a caller that waits until `plan`, of these rules, passes.
    pub(crate) fn enter(&self, plan: &Plan<'_>, rules: &RuleSet) -> Result<WaitingPlace, TooManyWaiting> {
        // All subjects share a limit that counts by nothing, so it is not one of theirs.
        let has_subject =
            |check: &&Check<'_>| rules.rule(&check.gate().rule().id).is_some_and(|rule| !rule.per.is_empty());
        let mut ids: Vec<u128> = plan.checks().iter().filter(has_subject).map(|check| check.key().id()).collect();
        ids.push(plan.queue_id());
        ids.sort_unstable();
        ids.dedup();
        let is_anonymous = plan.checks().iter().any(Check::is_anonymous);
        let mut counts = self.counts.lock();
        if !counts.has_room(&ids, is_anonymous, self.bounds) {
            drop(counts);
            self.metrics.count(WaitOutcome::Refused);
            return Err(TooManyWaiting);
        }
        counts.total += 1;
        counts.anonymous += usize::from(is_anonymous);
        for id in &ids {
            *counts.by_id.entry(*id).or_default() += 1;
        }
        drop(counts);
        self.metrics.waiting.inc();
        Ok(WaitingPlace { callers: self.clone(), ids, is_anonymous, outcome: WaitOutcome::Left })
    }

    /// The longest time that a caller waits.
    pub(crate) const fn max_wait(&self) -> Duration {
        self.bounds.max_wait
    }
}

impl Counts {
    fn has_room(&self, ids: &[u128], is_anonymous: bool, bounds: AcquireBounds) -> bool {
        let is_full = |id: &u128| self.by_id.get(id).is_some_and(|count| *count >= bounds.per_subject());
        // Rounded up, so that a single place is not denied to all of them.
        let max_anonymous = bounds.max_waiting - bounds.max_waiting / 4;
        self.total < bounds.max_waiting && (!is_anonymous || self.anonymous < max_anonymous) && !ids.iter().any(is_full)
    }
}

impl WaitingPlace {
    /// The call ended after this time.
    pub(crate) fn end(mut self, outcome: WaitOutcome, waited: Duration) {
        self.outcome = outcome;
        self.callers.metrics.waits.observe(waited);
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        let mut counts = self.callers.counts.lock();
        counts.total -= 1;
        counts.anonymous -= usize::from(self.is_anonymous);
        for id in &self.ids {
            if let Some(count) = counts.by_id.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    counts.by_id.remove(id);
                }
            }
        }
        drop(counts);
        self.callers.metrics.waiting.dec();
        self.callers.metrics.count(self.outcome);
    }
}

impl AcquireMetrics {
    /// Metrics at zero, in `registry`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let waits = Histogram::with_bounds(&WAIT_BOUNDS_MICROS);
        let metrics = Self { waiting: Gauge::default(), outcomes: Family::default(), waits };
        registry.register("tidegate_acquire_waiting", "Calls of /v1/acquire under way", metrics.waiting.clone());
        registry.register("tidegate_acquire", "Calls of /v1/acquire, by outcome", metrics.outcomes.clone());
        let waits = "Time that answered calls of /v1/acquire have waited";
        registry.register("tidegate_acquire_wait_seconds", waits, metrics.waits.clone());
        for outcome in WaitOutcome::ALL {
            drop(metrics.outcomes.get_or_create(&OutcomeLabel { outcome: outcome.as_str() }));
        }
        metrics
    }

    fn count(&self, outcome: WaitOutcome) {
        self.outcomes.get_or_create(&OutcomeLabel { outcome: outcome.as_str() }).inc();
    }
}

impl WaitOutcome {
    const ALL: [Self; 7] =
        [Self::Granted, Self::Denied, Self::TimedOut, Self::Left, Self::Refused, Self::Failed, Self::Stopped];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::TimedOut => "timed_out",
            Self::Left => "left",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tidegate::{Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet};

    use super::*;

    const BOUNDS: AcquireBounds =
        AcquireBounds { max_wait: Duration::ZERO, max_waiting: 16, max_waiting_per_subject: Some(2) };

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        bounds: AcquireBounds,
    }

    #[test]
    fn one_subject_has_an_eighth_of_the_calls_that_may_wait() {
        for (line, total, per_subject) in [
            ("serve", 1024, 128),
            ("serve --max-waiting 4", 4, 1),
            ("serve --max-waiting 4096 --max-waiting-per-subject 4096", 4096, 4096),
        ] {
            let bounds =
                Flags::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{error}")).bounds;
            assert_eq!((bounds.max_waiting, bounds.per_subject()), (total, per_subject), "{line}");
        }
        assert_eq!(usize::try_from(MAX_WAITING), Ok(crate::listen::MAX_CALLS / 2));
        for wrong in ["--max-waiting=4097", "--max-waiting=0", "--max-wait=3601", "--max-waiting-per-subject=0"] {
            assert!(Flags::try_parse_from(["serve", wrong]).is_err(), "{wrong}");
        }
    }

    fn limiter() -> Limiter<MemoryStore> {
        let limit = Limit::token_bucket(1, Rate::per_second(1).unwrap()).unwrap();
        let rules = [
            Rule::new("client", limit).with_per(["client"]),
            Rule::new("job", limit).with_per(["job"]),
            Rule::new("all", limit),
        ];
        Limiter::new(RuleSet::new(rules).unwrap(), MemoryStore::new())
    }

    fn callers() -> AcquireCalls {
        AcquireCalls::new(BOUNDS, AcquireMetrics::new(&mut Registry::default()))
    }

    fn request<'r>(client: &'r str, job: &'r str) -> Request<'r> {
        Request::new("").with_attribute("client", client).with_attribute("job", job)
    }

    fn enter(
        callers: &AcquireCalls,
        limiter: &Limiter<MemoryStore>,
        request: &Request<'_>,
    ) -> Result<WaitingPlace, TooManyWaiting> {
        callers.enter(&limiter.plan(request), limiter.rules())
    }

    /// By another value of an attribute that another rule counts by, a subject joins another queue for the same limit.
    #[test]
    fn one_subject_cannot_take_all_places_however_many_queues_it_joins() {
        let (limiter, callers) = (limiter(), callers());
        let jobs: Vec<String> = (0..20).map(|job| job.to_string()).collect();
        let hostile: Vec<_> =
            jobs.iter().filter_map(|job| enter(&callers, &limiter, &request("mallory", job)).ok()).collect();
        assert_eq!(hostile.len(), BOUNDS.per_subject());
        let names = ["ann", "bob", "cy", "di", "eve", "flo", "gus"];
        let others: Vec<_> = names.iter().flat_map(|name| [(name, "x"), (name, "y")]).collect();
        let places: Vec<_> = others
            .iter()
            .filter_map(|(name, job)| enter(&callers, &limiter, &request(name, &format!("{name}{job}"))).ok())
            .collect();
        assert_eq!(places.len(), others.len(), "the limit without a subject is shared, and does not count");
        assert!(enter(&callers, &limiter, &request("zoe", "z")).is_err(), "all places are taken");
        drop(hostile);
        assert!(enter(&callers, &limiter, &request("zoe", "z")).is_ok());
    }

    #[test]
    fn unauthenticated_subjects_leave_a_quarter_of_the_places_to_others() {
        let limit = Limit::token_bucket(1, Rate::per_second(1).unwrap()).unwrap();
        let rule = Rule::new("ip", limit).with_per(["ip"]).with_anonymous(tidegate::rules::AnonymousBounds::default());
        let flooded = Limiter::new(RuleSet::new([rule]).unwrap(), MemoryStore::new());
        let (limiter, callers) = (limiter(), callers());
        let addresses: Vec<String> = (0..100).map(|last| format!("203.0.113.{last}")).collect();
        let flood = addresses.iter().map(|ip| enter(&callers, &flooded, &Request::new("").with_attribute("ip", ip)));
        let flood: Vec<_> = flood.filter_map(Result::ok).collect();
        assert_eq!(flood.len(), 12);
        let names = ["ann", "bob", "cy", "di"];
        let places: Vec<_> = names.iter().map(|name| enter(&callers, &limiter, &request(name, name))).collect();
        assert!(places.iter().all(Result::is_ok));
    }

    #[test]
    fn a_place_is_free_again_when_its_caller_is_gone() {
        let (limiter, callers) = (limiter(), callers());
        for _ in 0..100 {
            let place = enter(&callers, &limiter, &request("ann", "x")).unwrap();
            place.end(WaitOutcome::Granted, Duration::ZERO);
        }
        let counts = callers.counts.lock();
        assert!(counts.total == 0 && counts.anonymous == 0 && counts.by_id.is_empty(), "{counts:?}");
    }
}
