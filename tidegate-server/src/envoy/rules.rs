//! From descriptors to checks by our own rule file: each descriptor is a request with attributes. Pure.

use std::borrow::Cow;

use tidegate::spi::{Check, Few, MAX_CHECKS, Plan, PlanError, Store};
use tidegate::{Limiter, Request, attributes};

use super::pb::{Entry, RateLimitRequest};
use super::prepared::{Asks, Prepared, Refusal, Told, Wanted, hits, plan};

/// The keys that Envoy uses, and the attributes that rules read.
const ALSO: [(&str, &str); 4] = [
    ("remote_address", attributes::IP),
    (":path", attributes::PATH),
    (":method", attributes::METHOD),
    (":authority", attributes::HOST),
];

/// The checks of every descriptor. Each asks for its hits: a rule that several of them meet with the same subject counts them
/// all.
pub(super) fn prepare<'r, S: Store>(
    limiter: &'r Limiter<S>,
    request: &RateLimitRequest,
    strict: bool,
) -> Result<Prepared<'r>, Refusal> {
    let none = || plan([], strict);
    let (mut counted, mut returned, mut looked) = (none()?, none()?, Vec::new());
    let mut wanted: Few<Wanted<'r>> = Few::default();
    for descriptor in &request.descriptors {
        let (hits, asks) = hits(request, descriptor);
        let host = host(&descriptor.entries);
        let plan = limiter.plan(&asked(&request.domain, &descriptor.entries, host.as_deref(), hits.max(1)));
        let mut places = Few::default();
        match asks {
            Asks::Takes => counted = counted.and(&plan),
            Asks::Returns => returned = returned.and(&plan),
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
fn places_of(plan: &Plan<'_>, among: &[Check<'_>]) -> Few<usize> {
    let place = |check: &Check<'_>| among.iter().position(|known| known.key() == check.key());
    plan.checks().iter().filter_map(place).collect()
}

/// A descriptor as a request.
fn asked<'a>(domain: &'a str, entries: &'a [Entry], host: Option<&'a str>, cost: u64) -> Request<'a> {
    let mut asked = Request::new(domain).cost(cost).attribute("domain", domain);
    if let Some(host) = host {
        asked = asked.attribute(attributes::HOST, host);
    }
    for Entry { key, value } in entries {
        if key == attributes::PATH {
            asked = with_path(asked, value);
        } else {
            asked = asked.attribute(key, value);
        }
    }
    for (key, name) in ALSO {
        let Some(entry) = entries.iter().find(|entry| entry.key == key) else { continue };
        asked =
            if name == attributes::PATH { with_path(asked, &entry.value) } else { asked.attribute(name, &entry.value) };
    }
    asked
}

/// The host of a descriptor in its normal form: the first value of the key `host`, else of `:authority`.
fn host(entries: &[Entry]) -> Option<Cow<'_, str>> {
    let value = |key: &str| entries.iter().find(|entry| entry.key == key);
    let entry = value(attributes::HOST).or_else(|| value(":authority"))?;
    Some(attributes::normalize_host(&entry.value))
}

fn with_path<'a>(asked: Request<'a>, target: &'a str) -> Request<'a> {
    let (path, query) = attributes::split_target(target);
    let asked = asked.attribute(attributes::PATH, path);
    query.into_iter().fold(asked, |asked, query| asked.attribute(attributes::QUERY, query))
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
            entry(":authority", "API.example.com:443"),
            entry("header:x-api-key", "k1"),
            entry("header:x-api-key", "k2"),
        ];
        let host = host(&entries);
        let asked = asked("edge", &entries, host.as_deref(), 3);
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
            assert_eq!(asked.value(name), Some(value), "{name}");
        }
        assert_eq!((asked.action(), asked.units()), ("edge", 3));
    }
}
