//! From descriptors to checks by an Envoy configuration: look up, replace, override, merge. Pure.

use std::borrow::Cow;
use std::collections::HashSet;

use tidegate::{Check, Gate, Role, Subject};

use super::config::EnvoyConfig;
use super::lookup::{Configured, Found, Level};
use super::pb::{RateLimit, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use super::prepared::{Prepared, Refusal, Told, Wanted, hits};
use super::unit;
use super::written::{gate, limit_of};

/// The limits of a request, from which [`Prepared`] borrows.
pub(super) struct Matched<'c> {
    lines: Vec<Line<'c>>,
    wanted: Vec<Wanted>,
}

/// One counter, and what is counted there.
struct Line<'c> {
    gate: Cow<'c, Gate>,
    subject: Subject,
    cost: u64,
}

impl<'c> Matched<'c> {
    /// Looks up every descriptor.
    pub(super) fn new(config: &'c EnvoyConfig, request: &RateLimitRequest) -> Result<Self, Refusal> {
        let mut matched = Self { lines: Vec::new(), wanted: Vec::new() };
        let domain = config.domain(&request.domain);
        let found: Vec<Option<Found<'c>>> =
            request.descriptors.iter().map(|descriptor| find(domain, descriptor)).collect();
        let limits = found.iter().flatten().filter_map(|found| found.limit);
        let replaced: HashSet<&str> = limits.flat_map(|limit| limit.replaces.iter().map(String::as_str)).collect();
        for (descriptor, found) in request.descriptors.iter().zip(&found) {
            let hits = hits(request, descriptor);
            let (told, places) = match (descriptor.limit, found, domain) {
                (Some(instead), _, Some(domain)) => {
                    let line = override_line(config, domain, request, descriptor, instead, hits)?;
                    (Told::Limit(override_limit(instead)), vec![matched.place(line)])
                }
                (None, Some(Found { limit: Some(limit), shared }), _) if !replaced.contains(limit.name.as_str()) => {
                    matched.configured(limit, || subject(config, request, descriptor, shared), hits)
                }
                _ => (Told::Nothing, Vec::new()),
            };
            matched.wanted.push(Wanted { told, looks: hits == 0, looked: places.clone(), places });
        }
        Ok(matched)
    }

    /// The checks, one for each counter.
    pub(super) fn prepared(&mut self) -> Prepared<'_> {
        let wanted = std::mem::take(&mut self.wanted);
        let checks = |least: u64| -> Vec<Check<'_>> {
            self.lines.iter().map(|line| Check::of(&line.gate, line.subject, line.cost.max(least))).collect()
        };
        let looks = wanted.iter().any(|wanted| wanted.looks && !wanted.places.is_empty());
        Prepared { checks: checks(0), looked: looks.then(|| checks(1)), wanted }
    }

    fn configured(
        &mut self,
        limit: &'c Configured,
        subject: impl FnOnce() -> Subject,
        hits: u64,
    ) -> (Told, Vec<usize>) {
        let Some(rate) = &limit.rate else { return (Told::Unlimited, Vec::new()) };
        let told = RateLimit { name: limit.name.clone(), requests_per_unit: rate.requests, unit: rate.unit.into() };
        let line = Line { gate: Cow::Borrowed(&rate.gate), subject: subject(), cost: hits };
        (Told::Limit(told), vec![self.place(line)])
    }

    /// The place of a counter. Descriptors that share one add up, so that none sees what the other took.
    fn place(&mut self, line: Line<'c>) -> usize {
        let check = Check::of(&line.gate, line.subject, 0);
        let known = self.lines.iter().position(|known| Check::of(&known.gate, known.subject, 0).key() == check.key());
        if let Some(place) = known {
            self.lines[place].cost = self.lines[place].cost.saturating_add(line.cost);
            return place;
        }
        self.lines.push(line);
        self.lines.len() - 1
    }
}

fn find<'c>(domain: Option<&'c Level>, descriptor: &RateLimitDescriptor) -> Option<Found<'c>> {
    // An override stands alone: it neither has a name nor replaces anything.
    if descriptor.limit.is_some() { None } else { domain?.find(&descriptor.entries) }
}

/// Whom a limit counts: the domain and every entry, each apart, so that no two descriptors look alike.
fn subject(
    config: &EnvoyConfig,
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
    shared: &[Option<&str>],
) -> Subject {
    let mut values = vec![Some(request.domain.as_str())];
    for (place, entry) in descriptor.entries.iter().enumerate() {
        let shared = shared.get(place).copied().flatten();
        values.extend([Some(entry.key.as_str()), Some(shared.unwrap_or(&entry.value))]);
    }
    config.subjects.subject(values.into_iter())
}

/// The limit that the request brings along. It counts where that of the file would count, if there is one.
fn override_line<'c>(
    config: &EnvoyConfig,
    domain: &Level,
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
    instead: RateLimitOverride,
    hits: u64,
) -> Result<Line<'c>, Refusal> {
    let limit = unit::of_override(instead.unit).and_then(|unit| limit_of("", instead.requests_per_unit, unit)?.ok());
    let Some(limit) = limit else {
        return Err(Refusal::Invalid("the limit of a descriptor has no unit; send one from SECOND to YEAR".into()));
    };
    let configured = domain.find(&descriptor.entries).and_then(|found| found.limit);
    let owner = configured.map_or("envoy-override", |limit| limit.owner.as_str());
    let full_key = configured.map_or("override", |limit| limit.full_key.as_str());
    let gate = gate(full_key, owner, limit, Role::Enforced);
    Ok(Line { gate: Cow::Owned(gate), subject: subject(config, request, descriptor, &[]), cost: hits })
}

fn override_limit(instead: RateLimitOverride) -> RateLimit {
    let unit = unit::of_override(instead.unit).unwrap_or_default();
    RateLimit { name: String::new(), requests_per_unit: instead.requests_per_unit, unit: unit.into() }
}
