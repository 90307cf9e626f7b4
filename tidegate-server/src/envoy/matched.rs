//! From descriptors to checks by an Envoy configuration: look up, replace, override, merge. Pure.

use std::collections::HashSet;

use smallvec::SmallVec;
use tidegate::spi::{Check, Gate, Subject};

use super::config::EnvoyConfig;
use super::lookup::{Configured, Found, Level};
use super::pb::{Entry, RateLimit, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use super::prepared::{Asks, Prepared, Refusal, Told, Wanted, hits, plan};
use super::unit;
use super::written::{gate, limit_of, role};

/// The limits of a request, from which [`Prepared`] borrows.
pub(super) struct Matched<'c> {
    counted: Lines<'c>,
    returned: Lines<'c>,
    wanted: SmallVec<[Wanted<'c>; 1]>,
}

/// Counters, each of them once.
#[derive(Default)]
struct Lines<'c>(SmallVec<[Line<'c>; 1]>);

/// One counter, and what is counted there.
struct Line<'c> {
    gate: Held<'c>,
    subject: Subject,
    cost: u64,
}

/// The limit of a file, or the one that a request brought along.
enum Held<'c> {
    OfFile(&'c Gate),
    OfRequest(Box<Gate>),
}

/// Whom a limit counts: the domain and every entry, each apart, so that no two descriptors look alike.
struct Values<'v> {
    domain: Option<&'v str>,
    entries: &'v [Entry],
    shared: &'v [(usize, &'v str)],
    /// How many keys and values were given.
    given: usize,
}

impl<'c> Matched<'c> {
    /// Looks up every descriptor.
    pub(super) fn new(config: &'c EnvoyConfig, request: &RateLimitRequest) -> Result<Self, Refusal> {
        let mut matched = Self { counted: Lines::default(), returned: Lines::default(), wanted: SmallVec::new() };
        let domain = config.domain(&request.domain);
        let found: SmallVec<[Option<Found<'c>>; 1]> =
            request.descriptors.iter().map(|descriptor| find(domain, descriptor)).collect();
        let limits = found.iter().flatten().filter_map(|found| found.limit);
        let replaced: HashSet<&str> = limits.flat_map(|limit| limit.replaces.iter().map(String::as_str)).collect();
        for (descriptor, found) in request.descriptors.iter().zip(&found) {
            let (hits, asks) = hits(request, descriptor);
            let (told, line) = match (descriptor.limit, found, domain) {
                (_, _, None) => {
                    config.options.stats.domain_not_found(&request.domain);
                    (Told::Nothing, None)
                }
                (Some(instead), _, Some(domain)) => {
                    let line = override_line(config, domain, request, descriptor, instead, hits)?;
                    (Told::Own(override_limit(instead)), Some(line))
                }
                (None, Some(Found { limit: Some(limit), shared }), _) if !replaced.contains(limit.name.as_str()) => {
                    configured(limit, || subject(config, request, descriptor, shared), hits)
                }
                _ => (Told::Nothing, None),
            };
            let lines = if asks == Asks::Returns { &mut matched.returned } else { &mut matched.counted };
            let (places, ahead) = match line.map(|line| lines.place(line)) {
                Some((place, ahead)) => (SmallVec::from_buf([place]), ahead),
                None => (SmallVec::new(), 0),
            };
            matched.wanted.push(Wanted { told, asks, hits, ahead, places });
        }
        Ok(matched)
    }

    /// The checks, one for each counter.
    pub(super) fn prepared(&mut self, strict: bool) -> Result<Prepared<'_>, Refusal> {
        let wanted = std::mem::take(&mut self.wanted);
        let (counted, returned) = (&self.counted, &self.returned);
        let looks = wanted.iter().any(|wanted| wanted.asks == Asks::Looks && !wanted.places.is_empty());
        let looked = if looks { Some(plan(counted.checks(1), strict)?) } else { None };
        let returned = if returned.0.is_empty() { None } else { Some(plan(returned.checks(0), strict)?) };
        // In strict mode a refused addend is counted as far as it fits, after which nobody can say how far that was.
        let asks_before = strict && counted.0.iter().any(|line| line.cost > 1);
        Ok(Prepared { counted: plan(counted.checks(0), strict)?, looked, returned, wanted, asks_before })
    }
}

impl<'c> Lines<'c> {
    /// The place of a counter, and what was asked of it so far. Descriptors that share one add up, so that none sees what the
    /// other took.
    fn place(&mut self, line: Line<'c>) -> (usize, u64) {
        let same = |known: &Line<'_>| known.subject == line.subject && *known.check(0).key() == *line.check(0).key();
        if let Some(place) = self.0.iter().position(same) {
            let known = &mut self.0[place];
            let ahead = known.cost;
            known.cost = ahead.saturating_add(line.cost);
            return (place, ahead);
        }
        self.0.push(line);
        (self.0.len() - 1, 0)
    }

    fn checks(&self, least: u64) -> impl Iterator<Item = Check<'_>> {
        self.0.iter().map(move |line| line.check(least))
    }
}

impl Line<'_> {
    /// A check of what is asked, and of `least` at least.
    fn check(&self, least: u64) -> Check<'_> {
        let gate = match &self.gate {
            Held::OfFile(gate) => gate,
            Held::OfRequest(gate) => &**gate,
        };
        Check::new(gate, self.subject, self.cost.max(least))
    }
}

impl<'v> Iterator for Values<'v> {
    type Item = Option<&'v str>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(domain) = self.domain.take() {
            return Some(Some(domain));
        }
        let (place, is_value) = (self.given / 2, self.given % 2 == 1);
        let entry = self.entries.get(place)?;
        self.given += 1;
        if !is_value {
            return Some(Some(&entry.key));
        }
        let shared = self.shared.iter().find(|(known, _)| *known == place);
        Some(Some(shared.map_or(entry.value.as_str(), |(_, shared)| shared)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = 2 * self.entries.len() - self.given + usize::from(self.domain.is_some());
        (left, Some(left))
    }
}

impl ExactSizeIterator for Values<'_> {}

fn find<'c>(domain: Option<&'c Level>, descriptor: &RateLimitDescriptor) -> Option<Found<'c>> {
    // An override stands alone: it neither has a name nor replaces anything.
    if descriptor.limit.is_some() { None } else { domain?.find(&descriptor.entries) }
}

fn configured(limit: &Configured, subject: impl FnOnce() -> Subject, hits: u64) -> (Told<'_>, Option<Line<'_>>) {
    let Some(rate) = &limit.rate else { return (Told::Unlimited, None) };
    (Told::Limit(limit), Some(Line { gate: Held::OfFile(&rate.gate), subject: subject(), cost: hits }))
}

fn subject(
    config: &EnvoyConfig,
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
    shared: &[(usize, &str)],
) -> Subject {
    config.subjects.subject(Values { domain: Some(&request.domain), entries: &descriptor.entries, shared, given: 0 })
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
    let options = &config.options;
    let windows = unit::of_override(instead.unit).and_then(|unit| unit::window(unit, options.strict));
    let limit = windows.and_then(|windows| limit_of("", instead.requests_per_unit, windows)?.ok());
    let Some(limit) = limit else {
        return Err(Refusal::Invalid("the limit of a descriptor has no unit; send one from SECOND to YEAR".into()));
    };
    let configured = domain.find(&descriptor.entries).and_then(|found| found.limit);
    let owner = configured.map_or("envoy-override", |limit| limit.owner.as_str());
    let full_key = configured.map_or("override", |limit| limit.full_key.as_str());
    let gate = gate(full_key, owner, limit, role(options.strict, false, options.quota));
    let subject = subject(config, request, descriptor, &[]);
    Ok(Line { gate: Held::OfRequest(Box::new(gate)), subject, cost: hits })
}

fn override_limit(instead: RateLimitOverride) -> RateLimit {
    let unit = unit::of_override(instead.unit).unwrap_or_default();
    RateLimit { name: String::new(), requests_per_unit: instead.requests_per_unit, unit: unit.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_its_domain_its_keys_and_its_values() {
        let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
        let entries = [entry("a", "1"), entry("b", "22")];
        let values = |shared| Values { domain: Some("d"), entries: &entries, shared, given: 0 };
        assert_eq!(values(&[]).map(Option::unwrap).collect::<Vec<_>>(), ["d", "a", "1", "b", "22"]);
        assert_eq!(values(&[(1, "2*")]).map(Option::unwrap).collect::<Vec<_>>(), ["d", "a", "1", "b", "2*"]);
        let mut left = values(&[]);
        for number in (0..5).rev() {
            left.next();
            assert_eq!(left.len(), number);
        }
    }
}
