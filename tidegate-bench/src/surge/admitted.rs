//! `Admitted`: the log of every decision that let a request pass, by the clock of the store that made it; and what it says about
//! limits that were not kept. It takes no part in deciding.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tidegate::spi::{Observer, Plan, Subject};
use tidegate::{Decision, Limit, Rate, RuleSet, StoreError};

/// The log of all instances of a phase.
#[derive(Default)]
pub(crate) struct Admitted {
    entries: Mutex<HashMap<String, Vec<Entry>>>,
    failures: AtomicU64,
    undecided: AtomicU64,
}

/// One request of a subject that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    subject: Subject,
    /// Microseconds.
    at: u64,
    cost: u64,
}

/// What a rule admitted, next to what its limit allows.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Kept {
    pub(crate) rule: String,
    /// How many subjects it counted.
    pub(crate) subjects: usize,
    pub(crate) admitted: u64,
    /// How many subjects had more than the limit allows.
    pub(crate) beyond: usize,
    /// The most that a subject had beyond it, over any span of time.
    pub(crate) overshoot: u64,
    /// What the subject with the most had, as a multiple of what it may have in the time that it came.
    pub(crate) factor: f64,
}

impl Observer for Admitted {
    fn decided(&self, _: &Plan<'_>, decision: &Decision) {
        if !decision.is_allowed() {
            return;
        }
        let at = decision.decided_at().as_micros();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for check in decision.checks() {
            let entry = Entry { subject: check.subject(), at, cost: check.cost() };
            match entries.get_mut(check.rule()) {
                Some(known) => known.push(entry),
                None => _ = entries.insert(check.rule().to_owned(), vec![entry]),
            }
        }
    }

    fn store_failed(&self, _: &StoreError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    fn undecided(&self, _: &Plan<'_>, _: &StoreError) {
        self.undecided.fetch_add(1, Ordering::Relaxed);
    }
}

impl Admitted {
    /// How often the store failed.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// How many requests were judged without the store. Such as pass are in the log by a clock of their own.
    pub(crate) fn undecided(&self) -> u64 {
        self.undecided.load(Ordering::Relaxed)
    }

    /// Holds every bucket of the rules to its limit.
    pub(crate) fn judge(&self, rules: &RuleSet) -> Vec<Kept> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let by_name: BTreeMap<_, _> = entries.iter().collect();
        let judged = by_name.into_iter().filter_map(|(rule, entries)| {
            let (_, limit) = rules.rule(rule)?.limits().next()?;
            let (most, rate) = bucket(limit)?;
            Some(kept(rule, entries, most, rate))
        });
        judged.collect()
    }
}

/// What a limit that is a bucket holds, and how fast that comes back. What a leaky bucket admits is that of a token bucket; it
/// only lets it wait.
fn bucket(limit: &Limit) -> Option<(u64, Rate)> {
    match limit {
        Limit::TokenBucket(bucket) => Some((bucket.capacity(), bucket.refill())),
        Limit::LeakyBucket(bucket) => Some((limit.amount(), bucket.drain())),
        // Windows have bounds of another kind, and the figures of a surge are not about them.
        _ => None,
    }
}

fn kept(rule: &str, entries: &[Entry], most: u64, rate: Rate) -> Kept {
    let mut entries = entries.to_vec();
    entries.sort_unstable();
    let admitted = entries.iter().map(|entry| entry.cost).sum();
    let mut kept = Kept { rule: rule.to_owned(), subjects: 0, admitted, beyond: 0, overshoot: 0, factor: 0.0 };
    for subject in entries.chunk_by(|one, other| one.subject == other.subject) {
        let beyond = overshoot(subject, most, rate);
        kept.subjects += 1;
        kept.beyond += usize::from(beyond > 0);
        kept.overshoot = kept.overshoot.max(beyond);
        kept.factor = kept.factor.max(factor(subject, most, rate));
    }
    kept
}

/// The most that was admitted beyond `most` and what came back, over any span of time: what a bucket lacks that is refilled
/// exactly, and that nobody refuses. The entries are those of one subject, in their order.
fn overshoot(entries: &[Entry], most: u64, rate: Rate) -> u64 {
    // In parts of a unit, of which one comes back in a microsecond: nothing is rounded.
    let (unit, back) = (i128::from(rate.period_micros()), i128::from(rate.amount()));
    let full = i128::from(most) * unit;
    let (mut level, mut last, mut lacking) = (full, None, 0);
    for entry in entries {
        let passed = last.map_or(0, |last| entry.at - last);
        last = Some(entry.at);
        level = full.min(level + i128::from(passed) * back) - i128::from(entry.cost) * unit;
        lacking = lacking.max(-level);
    }
    u64::try_from((lacking + unit - 1) / unit).unwrap_or(u64::MAX)
}

/// What was admitted, by what may be in the time from the first entry to the last.
fn factor(entries: &[Entry], most: u64, rate: Rate) -> f64 {
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return 0.0 };
    let admitted: u64 = entries.iter().map(|entry| entry.cost).sum();
    let back = (last.at - first.at) as f64 * rate.amount() as f64 / rate.period_micros() as f64;
    admitted as f64 / (most as f64 + back)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate::{Limiter, ManualClock, MemoryStore, Request, Rule};

    use super::*;

    fn rules() -> RuleSet {
        let limit = Limit::token_bucket(20, Rate::per_second(10).unwrap()).unwrap();
        RuleSet::new([Rule::new("ride-request", limit).with_per(["user"])]).unwrap()
    }

    /// What a bot gets that asks these limiters in turn, 200 times a second for ten seconds, and what the log says of it.
    fn through(instances: usize) -> Kept {
        let (clock, log) = (ManualClock::default(), Arc::new(Admitted::default()));
        let instance =
            |_| Limiter::new(rules(), MemoryStore::new().with_clock(clock.clone())).with_observer(Arc::clone(&log));
        let limiters: Vec<_> = (0..instances).map(instance).collect();
        for number in 0..2000 {
            let request = Request::new("").with_attribute("user", "bot");
            let _ = limiters[number % instances].check_now(&request);
            clock.advance(Duration::from_millis(5));
        }
        log.judge(&rules()).remove(0)
    }

    #[test]
    fn one_limiter_keeps_its_limit_to_the_request() {
        let kept = through(1);
        assert_eq!((kept.admitted, kept.overshoot, kept.beyond, kept.subjects), (119, 0, 0, 1));
        assert!((0.99..=1.0).contains(&kept.factor), "{kept:?}");
    }

    #[test]
    fn twelve_that_share_nothing_give_twelve_times_as_much_and_the_log_tells() {
        let kept = through(12);
        assert!(kept.overshoot > 1000 && kept.beyond == 1, "{kept:?}");
        assert!((11.5..=12.0).contains(&kept.factor), "{kept:?}");
    }

    #[test]
    fn a_single_request_too_many_is_seen_wherever_it_stands() {
        let entry = |at| Entry { subject: Subject::from_hash(1), at, cost: 1 };
        let rate = Rate::per_second(10).unwrap();
        // The whole burst, then one each time that a token is back.
        let mut entries: Vec<Entry> = (0..20).map(|_| entry(0)).chain((1..=50).map(|n| entry(n * 100_000))).collect();
        assert_eq!(overshoot(&entries, 20, rate), 0);
        entries[60].at -= 1;
        assert_eq!(overshoot(&entries, 20, rate), 1, "a microsecond too early");
        entries[60].at += 1;
        entries.insert(30, entries[30]);
        assert_eq!(overshoot(&entries, 20, rate), 1);
    }
}
