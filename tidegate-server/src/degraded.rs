//! How an upstream is told that a request passed without having been counted: one field, the same through every door. A copy
//! that a client sends is taken off.

use http::HeaderName;

/// `X-Tidegate-Degraded: true`: the store failed, and the rules let requests pass then.
pub(crate) const DEGRADED: HeaderName = HeaderName::from_static("x-tidegate-degraded");
