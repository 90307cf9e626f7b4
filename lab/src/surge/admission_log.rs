//! `AdmissionLog`: all admitted requests, with the store's time of each decision, and the latencies of refusals. It is audited against the
//! limits afterwards, and takes no part in decisions.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use http::StatusCode;
use serde::Serialize;
use tidegate::spi::{Observer, Plan, Subject};
use tidegate::sync::{Mutex, MutexGuard};
use tidegate::{Decision, Limit, Rate, RuleSet, StoreError, StoreErrorKind};

use crate::traffic::{histogram, micros};

/// The log of all gateways of a phase.
pub(crate) struct AdmissionLog(Mutex<LogEntries>);

/// What the gateways did so far.
pub(crate) struct LogEntries {
    /// By rule.
    admissions: BTreeMap<String, Vec<Admission>>,
    /// Microseconds from the request head to the 429 response.
    pub(crate) refusals: Histogram<u64>,
    pub(crate) store_failures: u64,
    /// Calls to the store that a gateway could not send in time.
    pub(crate) overloads: u64,
    /// Requests decided without the store. If admitted, they are logged with the time of the gateway.
    pub(crate) undecided: u64,
}

/// One admitted request of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Admission {
    subject: Subject,
    at_micros: u64,
    cost: u64,
}

/// What a rule admitted, compared with its limit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LimitAudit {
    pub(crate) rule: String,
    pub(crate) subjects: usize,
    pub(crate) admitted: u64,
    /// Subjects that got more than the limit allows.
    pub(crate) beyond: usize,
    /// The largest excess of one subject, over any interval.
    pub(crate) overshoot: u64,
    /// The largest multiple of its allowance that a subject got, from its first request to its last.
    pub(crate) factor: f64,
}

impl Observer for AdmissionLog {
    fn decided(&self, _: &Plan<'_>, decision: &Decision) {
        if !decision.is_allowed() {
            return;
        }
        let at_micros = decision.decided_at().as_micros();
        let mut entries = self.entries();
        for check in decision.checks() {
            let admission = Admission { subject: check.subject(), at_micros, cost: check.cost() };
            match entries.admissions.get_mut(check.rule()) {
                Some(admissions) => admissions.push(admission),
                None => _ = entries.admissions.insert(check.rule().to_owned(), vec![admission]),
            }
        }
    }

    fn store_failed(&self, error: &StoreError) {
        match error.kind() {
            StoreErrorKind::Overloaded => self.entries().overloads += 1,
            _ => self.entries().store_failures += 1,
        }
    }

    fn undecided(&self, _: &Plan<'_>, _: &StoreError) {
        self.entries().undecided += 1;
    }
}

impl Default for AdmissionLog {
    fn default() -> Self {
        let (admissions, refusals) = (BTreeMap::new(), histogram(3));
        Self(Mutex::new(LogEntries { admissions, refusals, store_failures: 0, overloads: 0, undecided: 0 }))
    }
}

impl AdmissionLog {
    pub(crate) fn entries(&self) -> MutexGuard<'_, LogEntries> {
        self.0.lock()
    }

    /// Records a response of a gateway.
    pub(crate) fn record_response(&self, status: StatusCode, latency: Duration) {
        if status == StatusCode::TOO_MANY_REQUESTS {
            self.entries().refusals.saturating_record(micros(latency));
        }
    }
}

impl LogEntries {
    /// Compares the admissions of each rule with its limit. Covers token and leaky buckets.
    pub(crate) fn audit(&self, rules: &RuleSet) -> Vec<LimitAudit> {
        let audits = self.admissions.iter().filter_map(|(rule, admissions)| {
            let (capacity, rate) = bucket_of(rules, rule)?;
            Some(audit_rule(rule, admissions, capacity, rate))
        });
        audits.collect()
    }

    /// Compares the admissions of one subject with its limit under `rule`; `None` if the rule has no bucket.
    pub(crate) fn audit_subject(&self, rules: &RuleSet, rule: &str, subject: Subject) -> Option<LimitAudit> {
        let (capacity, rate) = bucket_of(rules, rule)?;
        let of_rule = self.admissions.get(rule).map_or(&[][..], Vec::as_slice);
        let of_subject: Vec<_> = of_rule.iter().filter(|admission| admission.subject == subject).copied().collect();
        Some(audit_rule(rule, &of_subject, capacity, rate))
    }
}

/// Capacity and refill rate of the first limit of a rule, if it is a bucket. A leaky bucket admits what a token bucket admits, only later.
fn bucket_of(rules: &RuleSet, rule: &str) -> Option<(u64, Rate)> {
    let (_, limit) = rules.rule(rule)?.limits.first()?;
    match limit {
        Limit::TokenBucket(bucket) => Some((bucket.capacity(), bucket.refill())),
        Limit::LeakyBucket(bucket) => Some((limit.amount(), bucket.drain())),
        // Windows have bounds of another kind, and the rules of a surge have none.
        _ => None,
    }
}

fn audit_rule(rule: &str, entries: &[Admission], capacity: u64, rate: Rate) -> LimitAudit {
    let mut entries = entries.to_vec();
    entries.sort_unstable();
    let admitted = entries.iter().map(|entry| entry.cost).sum();
    let mut audit = LimitAudit { rule: rule.to_owned(), subjects: 0, admitted, beyond: 0, overshoot: 0, factor: 0.0 };
    for subject in entries.chunk_by(|one, other| one.subject == other.subject) {
        let excess = overshoot(subject, capacity, rate);
        audit.subjects += 1;
        audit.beyond += usize::from(excess > 0);
        audit.overshoot = audit.overshoot.max(excess);
        audit.factor = audit.factor.max(factor(subject, capacity, rate));
    }
    audit
}

/// The largest excess over capacity and refill in any interval: the lowest level of an exactly refilled bucket that refuses
/// nothing. The entries are those of one subject, in order of time.
fn overshoot(entries: &[Admission], capacity: u64, rate: Rate) -> u64 {
    // Counted in fractions of a unit of which `refill` come back each microsecond, so nothing is rounded.
    let (unit, refill) = (rate.period().as_micros().cast_signed(), i128::from(rate.amount()));
    let full = i128::from(capacity) * unit;
    let (mut level, mut last, mut deficit) = (full, None, 0);
    for entry in entries {
        let elapsed = last.map_or(0, |last| entry.at_micros - last);
        last = Some(entry.at_micros);
        level = full.min(level + i128::from(elapsed) * refill) - i128::from(entry.cost) * unit;
        deficit = deficit.max(-level);
    }
    u64::try_from((deficit + unit - 1) / unit).unwrap_or(u64::MAX)
}

/// What was admitted, divided by what the limit allows from the first entry to the last.
fn factor(entries: &[Admission], capacity: u64, rate: Rate) -> f64 {
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return 0.0 };
    let admitted: u64 = entries.iter().map(|entry| entry.cost).sum();
    let refill = (last.at_micros - first.at_micros) as f64 * rate.amount() as f64 / rate.period().as_micros() as f64;
    admitted as f64 / (capacity as f64 + refill)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate::{Limiter, ManualClock, MemoryStore, Request, Rule};

    use super::*;

    fn rules() -> RuleSet {
        let limit = Limit::token_bucket(20, Rate::per_second(10).unwrap()).unwrap();
        RuleSet::new([Rule::new("ride-request", limit).with_per(["user"])]).unwrap()
    }

    /// The audit of a bot that sends to these limiters in turn, 200 times a second for ten seconds.
    fn audit_bot(instances: usize) -> LimitAudit {
        let (clock, log) = (ManualClock::default(), Arc::new(AdmissionLog::default()));
        let instance =
            |_| Limiter::new(rules(), MemoryStore::new().with_clock(clock.clone())).with_observer(Arc::clone(&log));
        let limiters: Vec<_> = (0..instances).map(instance).collect();
        for number in 0..2000 {
            let request = Request::new("").with_attribute("user", "bot");
            let _ = limiters[number % instances].check_now(&request);
            clock.advance(Duration::from_millis(5));
        }
        log.entries().audit(&rules()).remove(0)
    }

    #[test]
    fn one_limiter_enforces_its_limit_exactly() {
        let audit = audit_bot(1);
        assert_eq!((audit.admitted, audit.overshoot, audit.beyond, audit.subjects), (119, 0, 0, 1));
        assert!((0.99..=1.0).contains(&audit.factor), "{audit:?}");
    }

    #[test]
    fn twelve_limiters_without_a_shared_store_admit_twelve_times_the_limit() {
        let audit = audit_bot(12);
        assert!(audit.overshoot > 1000 && audit.beyond == 1, "{audit:?}");
        assert!((11.5..=12.0).contains(&audit.factor), "{audit:?}");
    }

    #[test]
    fn the_audit_finds_a_single_excess_request_anywhere() {
        let entry = |at_micros| Admission { subject: Subject::from_hash(1), at_micros, cost: 1 };
        let rate = Rate::per_second(10).unwrap();
        // The whole burst, then one request for each refilled token.
        let mut entries: Vec<Admission> =
            (0..20).map(|_| entry(0)).chain((1..=50).map(|n| entry(n * 100_000))).collect();
        assert_eq!(overshoot(&entries, 20, rate), 0);
        entries[60].at_micros -= 1;
        assert_eq!(overshoot(&entries, 20, rate), 1, "a microsecond too early");
        entries[60].at_micros += 1;
        entries.insert(30, entries[30]);
        assert_eq!(overshoot(&entries, 20, rate), 1);
    }
}
