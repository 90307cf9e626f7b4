//! `Retry-After` and `retry-after-ms` of refusals that no rule decides: overload, and too many wrong tokens. Some client libraries
//! read the milliseconds first.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The fields of a refusal that may be retried after a second.
pub(crate) const RETRY_AFTER_ONE_SECOND: [(HeaderName, HeaderValue); 2] =
    [(RETRY_AFTER, HeaderValue::from_static("1")), (RETRY_AFTER_MS, HeaderValue::from_static("1000"))];

/// Sets both fields: whole seconds, rounded up, at least one.
pub(crate) fn insert_retry_after(headers: &mut HeaderMap, retry: Duration) {
    let seconds = retry.as_secs().saturating_add((retry.subsec_nanos() > 0).into()).max(1);
    headers.insert(RETRY_AFTER, seconds.into());
    headers.insert(RETRY_AFTER_MS, seconds.saturating_mul(1_000).into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_fields_have_the_same_whole_seconds() {
        for (millis, seconds, shown_millis) in [(0, 1, 1_000), (1_000, 1, 1_000), (1_001, 2, 2_000)] {
            let mut headers = HeaderMap::new();
            insert_retry_after(&mut headers, Duration::from_millis(millis));
            assert_eq!(headers[RETRY_AFTER], HeaderValue::from(seconds));
            assert_eq!(headers[RETRY_AFTER_MS], HeaderValue::from(shown_millis));
        }
    }
}
