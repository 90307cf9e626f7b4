//! `Fields`: what answers say about limits, in the types of `http`. It only translates what the contract says.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tidegate::Decision;
use tidegate::http::{HeaderField, HeaderPolicy, Headers};

/// How many fields answers have unless they are told otherwise.
const USUAL: usize = 5;

/// The names, each in the place of its [`HeaderField`]: none has to be read anew for an answer.
static NAMES: [HeaderName; HeaderField::ALL.len()] = [
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
];

/// The fields of one answer.
pub(crate) struct Fields(Vec<(HeaderName, HeaderValue)>);

impl Fields {
    /// What `contract` says about a decision.
    pub(crate) fn of(contract: &HeaderPolicy, decision: &Decision) -> Self {
        let mut fields = Vec::new();
        contract.for_each_field(decision, |field, text| {
            if fields.is_empty() {
                fields.reserve_exact(USUAL);
            }
            // The contract writes plain ASCII, which every value may be.
            if let Ok(value) = HeaderValue::from_str(text) {
                fields.push((NAMES[field as usize].clone(), value));
            }
        });
        Self(fields)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them is there already.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        headers.keys().any(|known| self.0.iter().any(|(name, _)| name == known))
    }

    /// Adds them.
    pub(crate) fn add_to(self, headers: &mut HeaderMap) {
        headers.extend(self.0);
    }
}

/// Adds the fields of an answer of the contract, which are plain ASCII.
pub(crate) fn extend(map: &mut HeaderMap, headers: Headers) {
    let name = |text: &str| {
        let known = NAMES.iter().find(|known| known.as_str() == text).cloned();
        known.or_else(|| HeaderName::from_bytes(text.as_bytes()).ok())
    };
    let value = |text: String| HeaderValue::from_maybe_shared(Bytes::from(text)).ok();
    map.extend(headers.into_iter().filter_map(|(text, said)| Some((name(text)?, value(said)?))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_stands_in_the_place_of_its_field() {
        for field in HeaderField::ALL {
            assert_eq!(NAMES[field as usize], field.name());
        }
    }
}
