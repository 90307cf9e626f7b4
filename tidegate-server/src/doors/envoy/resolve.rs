//! Resolves the descriptors of a request to checks by an Envoy configuration: lookup, replacement, override, merge. Pure.

use std::collections::HashSet;

use smallvec::SmallVec;
use tidegate::spi::{Check, Gate, Plan, Subject};

use super::config::EnvoyConfig;
use super::config_reader::{build_limit, gate, role};
use super::descriptor_tree::{ConfiguredLimit, DescriptorLevel, LookupResult};
use super::messages::{Entry, RateLimit, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use super::request_plan::{
    AppliedLimit, DecideError, DeniedHits, DescriptorPlan, HitsMode, RequestPlan, hits, is_charge, plan,
};
use super::unit::{self, UnitWindows};

/// The limits that apply to a request. [`RequestPlan`] borrows from it.
pub(super) struct ResolvedLimits<'c> {
    consume: CounterList<'c>,
    refund: CounterList<'c>,
    descriptors: SmallVec<[DescriptorPlan<'c>; 1]>,
}

/// Counters without duplicates.
#[derive(Default)]
struct CounterList<'c>(SmallVec<[CounterHits<'c>; 1]>);

/// A counter in the store, and the hits for it.
struct CounterHits<'c> {
    gate: GateSource<'c>,
    subject: Subject,
    cost: u64,
}

/// A gate of the configuration, or of the request's own limit.
enum GateSource<'c> {
    Config(&'c Gate),
    Override(Box<Gate>),
}

/// The parts of a subject: the domain, then each key and value, so that no two descriptors have the same subject.
struct SubjectParts<'v> {
    domain: Option<&'v str>,
    entries: &'v [Entry],
    shared_values: &'v [(usize, &'v str)],
    /// Number of keys and values returned so far.
    position: usize,
}

impl<'c> ResolvedLimits<'c> {
    /// Resolves each descriptor.
    pub(super) fn new(config: &'c EnvoyConfig, request: &RateLimitRequest) -> Result<Self, DecideError> {
        let mut resolved =
            Self { consume: CounterList::default(), refund: CounterList::default(), descriptors: SmallVec::new() };
        let domain = config.domain(&request.domain);
        let lookups: SmallVec<[Option<LookupResult<'c>>; 1]> =
            request.descriptors.iter().map(|descriptor| look_up(domain, descriptor)).collect();
        let limits = lookups.iter().flatten().filter_map(|lookup| lookup.limit);
        let replaced: HashSet<&str> = limits.flat_map(|limit| limit.replaces.iter().map(String::as_str)).collect();
        let is_charge = is_charge(request);
        for (descriptor, lookup) in request.descriptors.iter().zip(&lookups) {
            let (hits, mode) = hits(request, descriptor);
            let (limit, counter) = match (descriptor.limit, lookup, domain) {
                (_, _, None) => {
                    config.options.stats.count_unknown_domain(&request.domain);
                    (AppliedLimit::None, None)
                }
                (Some(limit), _, Some(domain)) => {
                    let counter = override_counter(config, domain, request, descriptor, limit, hits)?;
                    (AppliedLimit::Override(override_limit(limit)), Some(counter))
                }
                (None, Some(LookupResult { limit: Some(limit), shared_values }), _)
                    if !replaced.contains(limit.name.as_str()) =>
                {
                    configured_counter(limit, || subject(config, request, descriptor, shared_values), hits)
                }
                _ => (AppliedLimit::None, None),
            };
            let counters = if mode == HitsMode::Refund { &mut resolved.refund } else { &mut resolved.consume };
            let (checks, hits_before) = match counter.map(|counter| counters.add(counter)) {
                Some((index, hits_before)) => (SmallVec::from_buf([index]), hits_before),
                None => (SmallVec::new(), 0),
            };
            let count_refused = match limit {
                AppliedLimit::Configured(limit) => limit.counts_denied,
                _ => None,
            };
            let denied_hits = match (mode, count_refused) {
                (HitsMode::Consume, Some(true)) => DeniedHits::Counted,
                (HitsMode::Consume, None) if is_charge => DeniedHits::FillExceeded,
                _ => DeniedHits::Ignored,
            };
            resolved.descriptors.push(DescriptorPlan { limit, mode, hits, hits_before, denied_hits, checks });
        }
        Ok(resolved)
    }

    /// The plan of the request, with one check for each counter.
    pub(super) fn request_plan(&mut self, strict: bool) -> Result<RequestPlan<'_>, DecideError> {
        let mut descriptors: SmallVec<[DescriptorPlan<'_>; 1]> =
            std::mem::take(&mut self.descriptors).into_iter().map(shorten_lifetime).collect();
        let (consume_counters, refund_counters) = (&self.consume, &self.refund);
        let consume = plan(consume_counters.checks(0), strict)?;
        let refund = if refund_counters.0.is_empty() { None } else { Some(plan(refund_counters.checks(0), strict)?) };
        for descriptor in &mut descriptors {
            match (descriptor.mode, &refund) {
                (HitsMode::Refund, Some(refund)) => refund_counters.update_indexes(&mut descriptor.checks, refund),
                _ => consume_counters.update_indexes(&mut descriptor.checks, &consume),
            }
        }
        let peeks =
            descriptors.iter().any(|descriptor| descriptor.mode == HitsMode::Peek && !descriptor.checks.is_empty());
        let peek = if peeks { Some(plan(consume_counters.checks(1), strict)?) } else { None };
        // In strict mode the store counts a denied addend up to the limit; the number before cannot be derived afterwards.
        let peeks_before = strict && consume_counters.0.iter().any(|counter| counter.cost > 1);
        let (peek, refund) = (peek.map(Box::new), refund.map(Box::new));
        Ok(RequestPlan { consume, peek, refund, descriptors, peeks_before })
    }
}

impl<'c> CounterList<'c> {
    /// Adds hits. Returns the index of their counter and its hits so far. Descriptors with the same counter are summed, so that
    /// none is decided without the hits of the others.
    fn add(&mut self, counter: CounterHits<'c>) -> (usize, u64) {
        let is_same = |existing: &CounterHits<'_>| {
            existing.subject == counter.subject && *existing.check(0).key() == *counter.check(0).key()
        };
        if let Some(index) = self.0.iter().position(is_same) {
            let existing = &mut self.0[index];
            let hits_before = existing.cost;
            existing.cost = hits_before.saturating_add(counter.cost);
            return (index, hits_before);
        }
        self.0.push(counter);
        (self.0.len() - 1, 0)
    }

    fn checks(&self, min_cost: u64) -> impl Iterator<Item = Check<'_>> {
        self.0.iter().map(move |counter| counter.check(min_cost))
    }

    /// Turns indexes of counters into those of their checks in `plan`, which leaves out shadow checks if there are too many.
    fn update_indexes(&self, indexes: &mut SmallVec<[usize; 1]>, plan: &Plan<'_>) {
        if plan.skipped_shadow().is_empty() {
            return;
        }
        let find = |index: &usize| {
            let check = self.0.get(*index)?.check(0);
            plan.checks().iter().position(|other| other.key() == check.key())
        };
        *indexes = indexes.iter().filter_map(find).collect();
    }
}

impl CounterHits<'_> {
    /// A check of the hits, and of `min_cost` at least.
    fn check(&self, min_cost: u64) -> Check<'_> {
        let gate = match &self.gate {
            GateSource::Config(gate) => gate,
            GateSource::Override(gate) => &**gate,
        };
        Check::new(gate, self.subject, self.cost.max(min_cost))
    }
}

impl<'v> Iterator for SubjectParts<'v> {
    type Item = Option<&'v str>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(domain) = self.domain.take() {
            return Some(Some(domain));
        }
        let (index, is_value) = (self.position / 2, self.position % 2 == 1);
        let entry = self.entries.get(index)?;
        self.position += 1;
        if !is_value {
            return Some(Some(&entry.key));
        }
        let shared = self.shared_values.iter().find(|(shared, _)| *shared == index);
        Some(Some(shared.map_or(entry.value.as_str(), |(_, value)| value)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = 2 * self.entries.len() - self.position + usize::from(self.domain.is_some());
        (remaining, Some(remaining))
    }
}

impl ExactSizeIterator for SubjectParts<'_> {}

/// A no-op: `SmallVec` is invariant, so a list of plans cannot take a shorter lifetime as a whole.
const fn shorten_lifetime<'long: 'short, 'short>(descriptor: DescriptorPlan<'long>) -> DescriptorPlan<'short> {
    descriptor
}

fn look_up<'c>(domain: Option<&'c DescriptorLevel>, descriptor: &RateLimitDescriptor) -> Option<LookupResult<'c>> {
    // An override has no name and replaces no other limit.
    if descriptor.limit.is_some() { None } else { domain?.find(&descriptor.entries) }
}

fn configured_counter(
    limit: &ConfiguredLimit,
    subject: impl FnOnce() -> Subject,
    hits: u64,
) -> (AppliedLimit<'_>, Option<CounterHits<'_>>) {
    let Some(rate) = &limit.rate else { return (AppliedLimit::Unlimited, None) };
    (
        AppliedLimit::Configured(limit),
        Some(CounterHits { gate: GateSource::Config(&rate.gate), subject: subject(), cost: hits }),
    )
}

fn subject(
    config: &EnvoyConfig,
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
    shared_values: &[(usize, &str)],
) -> Subject {
    config.subjects.subject(SubjectParts {
        domain: Some(&request.domain),
        entries: &descriptor.entries,
        shared_values,
        position: 0,
    })
}

/// The counter of the request's own limit: that of the configured limit, if there is one.
fn override_counter<'c>(
    config: &EnvoyConfig,
    domain: &DescriptorLevel,
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
    limit: RateLimitOverride,
    hits: u64,
) -> Result<CounterHits<'c>, DecideError> {
    let options = &config.options;
    let windows = unit::from_override(limit.unit).and_then(|unit| UnitWindows::from_unit(unit, options.strict));
    let limit = windows.and_then(|windows| build_limit("", limit.requests_per_unit, windows)?.ok());
    let Some(limit) = limit else {
        return Err(DecideError::Invalid("the limit of a descriptor has no unit; send one from SECOND to YEAR".into()));
    };
    let configured = domain.find(&descriptor.entries).and_then(|lookup| lookup.limit);
    let owner = configured.map_or("envoy-override", |limit| limit.owner.as_str());
    let full_key = configured.map_or("override", |limit| limit.full_key.as_str());
    let gate = gate(full_key, owner, limit, role(options.strict, false, options.quota));
    let subject = subject(config, request, descriptor, &[]);
    Ok(CounterHits { gate: GateSource::Override(Box::new(gate)), subject, cost: hits })
}

fn override_limit(limit: RateLimitOverride) -> RateLimit {
    let unit = unit::from_override(limit.unit).unwrap_or_default();
    RateLimit { name: String::new(), requests_per_unit: limit.requests_per_unit, unit: unit.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_consists_of_domain_keys_and_values() {
        let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
        let entries = [entry("a", "1"), entry("b", "22")];
        let parts = |shared_values| SubjectParts { domain: Some("d"), entries: &entries, shared_values, position: 0 };
        assert_eq!(parts(&[]).map(Option::unwrap).collect::<Vec<_>>(), ["d", "a", "1", "b", "22"]);
        assert_eq!(parts(&[(1, "2*")]).map(Option::unwrap).collect::<Vec<_>>(), ["d", "a", "1", "b", "2*"]);
        let mut remaining = parts(&[]);
        for number in (0..5).rev() {
            remaining.next();
            assert_eq!(remaining.len(), number);
        }
    }
}
