//! Resolves the descriptors of a request to checks by the rule file: each descriptor becomes a request with attributes. Pure.

use std::net::Ipv6Addr;

use smallvec::SmallVec;
use tidegate::Limiter;
use tidegate::attributes::{CONTENT_LENGTH_HEADER, HOST, IP, METHOD, PATH, RequestAttributes, SIZE, misspelled_method};
use tidegate::spi::{Check, Plan, PlanError, Role, Store};

use super::messages::{Entry, RateLimitRequest};
use super::request_plan::{AppliedLimit, DecideError, DeniedHits, DescriptorPlan, HitsMode, RequestPlan, hits, plan};

/// The descriptor key of the requested host, as Envoy names it.
const AUTHORITY: &str = ":authority";

/// Common descriptor keys, and the attributes of rule files that get their values too.
const KEY_ATTRIBUTES: [(&str, &str); 4] =
    [("remote_address", IP), (":path", PATH), (":method", METHOD), (CONTENT_LENGTH_HEADER, SIZE)];

/// The plan of a request. Descriptors for which the same rule counts the same subject are summed.
pub(super) fn resolve<'r, S: Store>(
    limiter: &'r Limiter<S>,
    request: &RateLimitRequest,
    strict: bool,
) -> Result<RequestPlan<'r>, DecideError> {
    let empty = || plan([], strict);
    let (mut consume, mut refund, mut peeks) = (empty()?, empty()?, Vec::new());
    let mut descriptors: SmallVec<[DescriptorPlan<'r>; 1]> = SmallVec::new();
    for descriptor in &request.descriptors {
        let (hits, mode) = hits(request, descriptor);
        let attributes = descriptor_attributes(&request.domain, &descriptor.entries, hits.max(1));
        let plan = limiter.plan(&attributes.request());
        let checks = match mode {
            HitsMode::Consume => {
                consume = consume.merge(&plan);
                check_indexes(&plan, consume.checks())
            }
            HitsMode::Refund => {
                refund = refund.merge(&plan);
                check_indexes(&plan, refund.checks())
            }
            // Set by `peek_plan`, once all consuming checks are known.
            HitsMode::Peek => {
                peeks.push((descriptors.len(), plan));
                SmallVec::new()
            }
        };
        let limit = AppliedLimit::Rules;
        descriptors.push(DescriptorPlan {
            limit,
            mode,
            hits,
            hits_before: 0,
            denied_hits: DeniedHits::Ignored,
            checks,
        });
    }
    let peek = peek_plan(&consume, &peeks, &mut descriptors, strict)?;
    let refund = if refund.checks().is_empty() { None } else { Some(validate_size(refund)?) };
    let (peek, refund) = (peek.map(Box::new), refund.map(Box::new));
    Ok(RequestPlan { consume: validate_size(consume)?, peek, refund, descriptors, peeks_before: false })
}

/// A plan of the consuming checks, followed by those of descriptors that only peek.
fn peek_plan<'r>(
    consume: &Plan<'r>,
    peeks: &[(usize, Plan<'r>)],
    descriptors: &mut [DescriptorPlan<'r>],
    strict: bool,
) -> Result<Option<Plan<'r>>, DecideError> {
    if peeks.iter().all(|(_, peek)| peek.checks().is_empty()) {
        return Ok(None);
    }
    let mut checks: Vec<Check<'r>> = consume.checks().to_vec();
    for (_, peek) in peeks {
        for check in peek.checks() {
            if !checks.iter().any(|existing| existing.key() == check.key()) {
                checks.push(*check);
            }
        }
    }
    let plan = plan(checks, strict)?;
    for (descriptor, peek) in peeks {
        descriptors[*descriptor].checks = check_indexes(peek, plan.checks());
    }
    Ok(Some(plan))
}

/// Rejects a plan with too many checks.
fn validate_size(plan: Plan<'_>) -> Result<Plan<'_>, DecideError> {
    if !plan.is_too_large() {
        return Ok(plan);
    }
    let checks = plan.checks().iter().filter(|check| check.gate().role() != Role::Shadow).count();
    Err(DecideError::too_many_checks(&PlanError::TooManyChecks { checks }))
}

/// The indexes of a plan's checks in `checks`.
fn check_indexes(plan: &Plan<'_>, checks: &[Check<'_>]) -> SmallVec<[usize; 1]> {
    let index = |check: &Check<'_>| checks.iter().position(|other| other.key() == check.key());
    plan.checks().iter().filter_map(index).collect()
}

/// The attributes of the request that a descriptor stands for. Its entries are named by Envoy's configuration, and Envoy sends one value for
/// each: so the first one of a name counts, even of a header, and none is a further line of it.
fn descriptor_attributes<'a>(domain: &'a str, entries: &'a [Entry], cost: u64) -> RequestAttributes<'a> {
    let find = |key: &str| entries.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
    let mut attributes = RequestAttributes::new(domain, cost);
    attributes.add("domain", domain);
    attributes.add_host(find(HOST).or_else(|| find(AUTHORITY)), []);
    for Entry { key, value } in entries {
        add(&mut attributes, key, value);
    }
    for (key, name) in KEY_ATTRIBUTES {
        if let Some(value) = find(key) {
            add(&mut attributes, name, value);
        }
    }
    attributes
}

/// Adds a value that Envoy sends.
fn add<'a>(attributes: &mut RequestAttributes<'a>, name: &'a str, value: &'a str) {
    match name {
        PATH => attributes.add_target(value),
        // The service may read `post` as `POST`, and Envoy cannot be told to refuse it.
        METHOD => attributes.add(name, misspelled_method(value).unwrap_or(value)),
        IP => match value.parse::<Ipv6Addr>() {
            Ok(address) => attributes.add_address(address.into()),
            // An IPv4 address has one spelling, and may have a port.
            Err(_) => attributes.add(name, value),
        },
        _ => attributes.add(name, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.to_owned(), value: value.to_owned() }
    }

    fn attribute(entries: &[Entry], name: &str) -> Option<String> {
        descriptor_attributes("edge", entries, 1).request().attribute(name).map(str::to_owned)
    }

    #[test]
    fn descriptor_entries_become_request_attributes() {
        let entries = [
            entry("domain", "forged"),
            entry("remote_address", "203.0.113.9"),
            entry(":path", "/search?q=tide"),
            entry(":method", "POST"),
            entry(":authority", "API.example.com:443"),
            entry("header:x-api-key", "k1"),
            entry("header:x-api-key", "k2"),
            entry("header:content-length", "7"),
        ];
        let attributes = descriptor_attributes("edge", &entries, 3);
        let request = attributes.request();
        let expected = [
            ("domain", "edge"),
            ("remote_address", "203.0.113.9"),
            ("ip", "203.0.113.9"),
            ("path", "/search"),
            ("query", "q=tide"),
            ("method", "POST"),
            ("host", "api.example.com"),
            ("header:x-api-key", "k1"),
            ("header:content-length", "7"),
            ("request:size", "7"),
        ];
        for (name, value) in expected {
            assert_eq!(request.attribute(name), Some(value), "{name}");
        }
        assert_eq!((request.action(), request.cost()), ("edge", 3));
    }

    #[test]
    fn a_known_method_in_other_letters_is_judged_as_that_method() {
        for key in [":method", "method"] {
            for (method, expected) in [("post", "POST"), ("POST", "POST"), ("foo", "foo")] {
                assert_eq!(attribute(&[entry(key, method)], "method").as_deref(), Some(expected), "{key}");
            }
        }
    }

    /// Rules would count it as two requests, or as two clients.
    #[test]
    fn parts_of_a_request_have_the_form_that_they_have_at_every_front_end() {
        for (key, value, name, expected) in [
            (":path", "/a?b=c#d", "query", "b=c"),
            (":path", "/a#b", "path", "/a"),
            ("path", "/a#b", "path", "/a"),
            (":authority", "me@API.example:443", "host", "api.example"),
            ("remote_address", "::ffff:203.0.113.9", "ip", "203.0.113.9"),
            ("remote_address", "2001:DB8::1", "ip", "2001:db8::1"),
            ("remote_address", "203.0.113.9:5000", "ip", "203.0.113.9:5000"),
            ("remote_address", "::ffff:203.0.113.9", "remote_address", "::ffff:203.0.113.9"),
        ] {
            assert_eq!(attribute(&[entry(key, value)], name).as_deref(), Some(expected), "{key} {value}");
        }
    }
}
