//! How an upstream is told that a request was judged without the store: one field, the same through every door. A copy
//! that a client sends is taken off.

use http::HeaderName;

/// `X-Tidegate-Degraded: true`: the store failed, and the request passes by what its rules say of that.
pub(crate) const DEGRADED: HeaderName = HeaderName::from_static("x-tidegate-degraded");
