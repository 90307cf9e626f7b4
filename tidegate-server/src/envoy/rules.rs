//! From descriptors to checks by our own rule file: each descriptor is a request with attributes. Pure.

use smallvec::SmallVec;
use tidegate::spi::{Check, MAX_CHECKS, Plan, PlanError, Store};
use tidegate::{Limiter, Request};

use super::pb::{Entry, RateLimitRequest};
use super::prepared::{Asks, Prepared, Refusal, Told, Wanted, hits, plan};

/// The keys that Envoy uses, and the attributes that rules read.
const ALSO: [(&str, &str); 4] =
    [("remote_address", "ip"), (":path", "path"), (":method", "method"), (":authority", "host")];

/// The checks of every descriptor. Each asks for its hits: a rule that several of them meet with the same subject counts them
/// all.
pub(super) fn prepare<'r, S: Store>(
    limiter: &'r Limiter<S>,
    request: &RateLimitRequest,
    strict: bool,
) -> Result<Prepared<'r>, Refusal> {
    let none = || plan([], strict);
    let (mut counted, mut returned, mut looked) = (none()?, none()?, Vec::new());
    let mut wanted: SmallVec<[Wanted<'r>; 1]> = SmallVec::new();
    for descriptor in &request.descriptors {
        let (hits, asks) = hits(request, descriptor);
        let plan = limiter.plan(&asked(&request.domain, &descriptor.entries, hits.max(1)));
        let mut places = SmallVec::new();
        match asks {
            Asks::Takes => counted = counted.merge(&plan),
            Asks::Returns => returned = returned.merge(&plan),
            // Where they are is known once all others are.
            Asks::Looks => looked.push((wanted.len(), plan.clone())),
        }
        if asks != Asks::Looks {
            let among = if asks == Asks::Takes { &counted } else { &returned };
            places = places_of(&plan, among.checks());
        }
        wanted.push(Wanted { told: Told::Rules, asks, hits, ahead: 0, places });
    }
    let looked = look(&counted, &looked, &mut wanted, strict)?;
    let returned = if returned.checks().is_empty() { None } else { Some(bounded(returned)?) };
    Ok(Prepared { counted: bounded(counted)?, looked, returned, wanted, asks_before: false })
}

/// What is consumed and what is only looked at, in this order.
fn look<'r>(
    counted: &Plan<'r>,
    looked: &[(usize, Plan<'r>)],
    wanted: &mut [Wanted<'r>],
    strict: bool,
) -> Result<Option<Plan<'r>>, Refusal> {
    if looked.iter().all(|(_, looks)| looks.checks().is_empty()) {
        return Ok(None);
    }
    let mut all: Vec<Check<'r>> = counted.checks().to_vec();
    for (descriptor, looks) in looked {
        for check in looks.checks() {
            if !all.iter().any(|known| known.key() == check.key()) {
                all.push(*check);
            }
        }
        wanted[*descriptor].places = places_of(looks, &all);
    }
    plan(all, strict).map(Some)
}

/// The plan, unless it has become too large.
fn bounded(plan: Plan<'_>) -> Result<Plan<'_>, Refusal> {
    match plan.checks().len() {
        checks if checks > MAX_CHECKS => Err(Refusal::too_many(&PlanError::TooManyChecks { checks })),
        _ => Ok(plan),
    }
}

/// Where the checks of a plan are among others.
fn places_of(plan: &Plan<'_>, among: &[Check<'_>]) -> SmallVec<[usize; 1]> {
    let place = |check: &Check<'_>| among.iter().position(|known| known.key() == check.key());
    plan.checks().iter().filter_map(place).collect()
}

/// A descriptor as a request.
fn asked<'a>(domain: &'a str, entries: &'a [Entry], cost: u64) -> Request<'a> {
    let mut asked = Request::new(domain).with_cost(cost).with_attribute("domain", domain);
    for Entry { key, value } in entries {
        if key == "path" {
            asked = with_path(asked, value);
        } else {
            asked = asked.with_attribute(key, value);
        }
    }
    for (key, name) in ALSO {
        let Some(entry) = entries.iter().find(|entry| entry.key == key) else { continue };
        asked = if name == "path" { with_path(asked, &entry.value) } else { asked.with_attribute(name, &entry.value) };
    }
    asked
}

fn with_path<'a>(asked: Request<'a>, target: &'a str) -> Request<'a> {
    match target.split_once('?') {
        Some((path, query)) => asked.with_attribute("path", path).with_attribute("query", query),
        None => asked.with_attribute("path", target),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn entries_become_the_attributes_that_rules_read() {
        let entries = [
            entry("domain", "forged"),
            entry("remote_address", "203.0.113.9"),
            entry(":path", "/search?q=tide"),
            entry(":method", "POST"),
            entry(":authority", "api.example.com"),
            entry("header:x-api-key", "k1"),
            entry("header:x-api-key", "k2"),
        ];
        let asked = asked("edge", &entries, 3);
        let expected = [
            ("domain", "edge"),
            ("remote_address", "203.0.113.9"),
            ("ip", "203.0.113.9"),
            ("path", "/search"),
            ("query", "q=tide"),
            ("method", "POST"),
            ("host", "api.example.com"),
            ("header:x-api-key", "k1"),
        ];
        for (name, value) in expected {
            assert_eq!(asked.attribute(name), Some(value), "{name}");
        }
        assert_eq!((asked.action(), asked.cost()), ("edge", 3));
    }
}
