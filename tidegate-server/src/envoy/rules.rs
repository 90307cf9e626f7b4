//! From descriptors to checks by our own rule file: each descriptor is a request with attributes. Pure.

use tidegate::{Check, Limiter, Plan, Request, Store};

use super::pb::{Entry, RateLimitRequest};
use super::prepared::{Prepared, Told, Wanted, hits};

/// The keys that Envoy uses, and the attributes that rules read.
const ALSO: [(&str, &str); 4] =
    [("remote_address", "ip"), (":path", "path"), (":method", "method"), (":authority", "host")];

/// The checks of every descriptor. A rule that several of them meet with the same subject counts once, at the highest cost:
/// it is one request.
pub(super) fn prepare<'r, S: Store>(limiter: &'r Limiter<S>, request: &RateLimitRequest) -> Prepared<'r> {
    let (mut checks, mut looked, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for descriptor in &request.descriptors {
        let hits = hits(request, descriptor);
        let plan = limiter.plan(&asked(&request.domain, &descriptor.entries, hits.max(1)));
        let places = if hits == 0 { Vec::new() } else { add(&mut checks, &plan) };
        wanted.push(Wanted { told: Told::Rules, looks: hits == 0, places, looked: add(&mut looked, &plan) });
    }
    let looks = wanted.iter().any(|wanted| wanted.looks && !wanted.looked.is_empty());
    Prepared { checks, looked: looks.then_some(looked), wanted }
}

/// Adds the checks of a plan, and tells where they are.
fn add<'r>(checks: &mut Vec<Check<'r>>, plan: &Plan<'r>) -> Vec<usize> {
    let mut places = Vec::new();
    for check in plan.checks() {
        let known = checks.iter().position(|known| known.key() == check.key());
        if let Some(place) = known {
            if check.cost() > checks[place].cost() {
                checks[place] = *check;
            }
            places.push(place);
        } else {
            places.push(checks.len());
            checks.push(*check);
        }
    }
    places
}

/// A descriptor as a request.
fn asked<'a>(domain: &'a str, entries: &'a [Entry], cost: u64) -> Request<'a> {
    let mut asked = Request::new(domain).cost(cost).attribute("domain", domain);
    for Entry { key, value } in entries {
        if key == "path" {
            asked = with_path(asked, value);
        } else {
            asked = asked.attribute(key, value);
        }
    }
    for (key, name) in ALSO {
        let Some(entry) = entries.iter().find(|entry| entry.key == key) else { continue };
        asked = if name == "path" { with_path(asked, &entry.value) } else { asked.attribute(name, &entry.value) };
    }
    asked
}

fn with_path<'a>(asked: Request<'a>, target: &'a str) -> Request<'a> {
    match target.split_once('?') {
        Some((path, query)) => asked.attribute("path", path).attribute("query", query),
        None => asked.attribute("path", target),
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
            assert_eq!(asked.value(name), Some(value), "{name}");
        }
        assert_eq!((asked.action(), asked.units()), ("edge", 3));
    }
}
