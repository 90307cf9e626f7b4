//! `LimitHeaders`: the rate-limit headers of a response, in the types of `http`. Their values come from the
//! [`HeaderPolicy`].

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tidegate::Decision;
use tidegate::http::{HeaderField, HeaderPolicy, Headers};

/// The number of headers that the default policy writes; space for them is reserved at once.
const DEFAULT_HEADER_COUNT: usize = 5;

/// The header names by the index of their [`HeaderField`], parsed once.
static HEADER_NAMES: [HeaderName; HeaderField::ALL.len()] = [
    HeaderName::from_static(HeaderField::Policy.name()),
    HeaderName::from_static(HeaderField::RateLimit.name()),
    HeaderName::from_static(HeaderField::XLimit.name()),
    HeaderName::from_static(HeaderField::XRemaining.name()),
    HeaderName::from_static(HeaderField::XReset.name()),
    HeaderName::from_static(HeaderField::Limit.name()),
    HeaderName::from_static(HeaderField::Remaining.name()),
    HeaderName::from_static(HeaderField::Reset.name()),
    RETRY_AFTER,
    HeaderName::from_static(HeaderField::RetryAfterMs.name()),
    HeaderName::from_static(HeaderField::Grace.name()),
];

/// The rate-limit headers of one response.
pub(crate) struct LimitHeaders(Vec<(HeaderName, HeaderValue)>);

impl LimitHeaders {
    /// The headers that `policy` writes for a decision.
    pub(crate) fn from_decision(policy: &HeaderPolicy, decision: &Decision) -> Self {
        let mut headers = Vec::new();
        policy.for_each_field(decision, |field, text| {
            if headers.is_empty() {
                headers.reserve_exact(DEFAULT_HEADER_COUNT);
            }
            // The policy writes ASCII, which is always a valid value.
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.push((HEADER_NAMES[field as usize].clone(), value));
            }
        });
        Self(headers)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `headers` already has one of these names.
    pub(crate) fn overlaps(&self, headers: &HeaderMap) -> bool {
        headers.keys().any(|present| self.0.iter().any(|(name, _)| name == present))
    }

    pub(crate) fn append_to(self, headers: &mut HeaderMap) {
        headers.extend(self.0);
    }
}

/// Appends the headers of a rejection.
pub(crate) fn append_headers(map: &mut HeaderMap, headers: Headers) {
    let parse_name = |text: &str| {
        let parsed = HEADER_NAMES.iter().find(|name| name.as_str() == text).cloned();
        parsed.or_else(|| HeaderName::from_bytes(text.as_bytes()).ok())
    };
    let parse_value = |text: String| HeaderValue::from_maybe_shared(Bytes::from(text)).ok();
    map.extend(headers.into_iter().filter_map(|(name, value)| Some((parse_name(name)?, parse_value(value)?))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_header_name_has_the_index_of_its_field() {
        for field in HeaderField::ALL {
            assert_eq!(HEADER_NAMES[field as usize], field.name());
        }
    }
}
