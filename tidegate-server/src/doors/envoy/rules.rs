//! Resolves the descriptors of a request to checks by the rule file: each descriptor becomes a request with attributes. Pure.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate::attributes::{
    CONTENT_LENGTH_HEADER, HOST, IP, METHOD, PATH, QUERY, SIZE, misspelled_method, normalize_host, split_target,
};
use tidegate::spi::{Check, Plan, PlanError, Role, Store};
use tidegate::{Limiter, Request};

use super::messages::{Entry, RateLimitRequest};
use super::request_plan::{AppliedLimit, DecideError, DeniedHits, DescriptorPlan, HitsMode, RequestPlan, hits, plan};

/// The descriptor key of the requested host, as Envoy names it.
const AUTHORITY: &str = ":authority";

/// Common descriptor keys, and the attributes of rule files that get their values too.
const KEY_ATTRIBUTES: [(&str, &str); 5] =
    [("remote_address", IP), (":path", PATH), (":method", METHOD), (AUTHORITY, HOST), (CONTENT_LENGTH_HEADER, SIZE)];

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
        let host = host(&descriptor.entries);
        let plan =
            limiter.plan(&descriptor_request(&request.domain, &descriptor.entries, host.as_deref(), hits.max(1)));
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

/// The request for the limiter that a descriptor stands for.
fn descriptor_request<'a>(domain: &'a str, entries: &'a [Entry], host: Option<&'a str>, cost: u64) -> Request<'a> {
    let mut request = Request::new(domain).with_cost(cost).with_attribute("domain", domain);
    // Of two values of an attribute, the first counts.
    if let Some(host) = host {
        request = request.with_attribute(HOST, host);
    }
    for Entry { key, value } in entries {
        if key == PATH {
            request = with_path(request, value);
        } else {
            request = request.with_attribute(key, value);
        }
    }
    for (key, name) in KEY_ATTRIBUTES {
        let Some(entry) = entries.iter().find(|entry| entry.key == key) else { continue };
        request = match name {
            PATH => with_path(request, &entry.value),
            // The service may read `post` as `POST`, and Envoy cannot be told to refuse it.
            METHOD => request.with_attribute(name, misspelled_method(&entry.value).unwrap_or(&entry.value)),
            _ => request.with_attribute(name, &entry.value),
        };
    }
    request
}

/// The host of a descriptor in its normal form: the first value of the key `host`, else of `:authority`.
fn host(entries: &[Entry]) -> Option<Cow<'_, str>> {
    let find = |key: &str| entries.iter().find(|entry| entry.key == key);
    Some(normalize_host(&find(HOST).or_else(|| find(AUTHORITY))?.value))
}

fn with_path<'a>(request: Request<'a>, target: &'a str) -> Request<'a> {
    let (path, query) = split_target(target);
    let request = request.with_attribute(PATH, path);
    match query {
        Some(query) => request.with_attribute(QUERY, query),
        None => request,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.to_owned(), value: value.to_owned() }
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
        let host = host(&entries);
        let request = descriptor_request("edge", &entries, host.as_deref(), 3);
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
        for (method, expected) in [("post", "POST"), ("POST", "POST"), ("foo", "foo")] {
            let entries = [entry(":method", method)];
            assert_eq!(descriptor_request("edge", &entries, None, 1).attribute("method"), Some(expected));
        }
    }
}
