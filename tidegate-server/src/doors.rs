//! The front ends. Each turns its requests into attributes, calls the limiter, and turns the decision into a response.

pub(crate) mod check;
pub(crate) mod door_gaps;
pub mod envoy;
pub(crate) mod forward_auth;
pub mod gateway;

use http::HeaderName;

/// `X-Tidegate-Degraded: true`: the store failed, and the request passes by the `on_failure` of its rules. A copy that
/// a client sends is removed.
pub(crate) const DEGRADED_HEADER: HeaderName = HeaderName::from_static("x-tidegate-degraded");
