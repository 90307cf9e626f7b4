//! The header field for requests that pass although the store failed. A copy that a client sends is removed.

use http::HeaderName;

/// `X-Tidegate-Degraded: true`: the store failed, and the request passes by the `on_failure` of its rules.
pub(crate) const DEGRADED_HEADER: HeaderName = HeaderName::from_static("x-tidegate-degraded");
