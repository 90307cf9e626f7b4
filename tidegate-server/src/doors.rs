//! The front ends. Each turns its requests into attributes, calls the limiter, and turns the decision into a response.

pub(crate) mod check;
pub(crate) mod degraded;
pub(crate) mod door_gaps;
pub mod envoy;
pub(crate) mod forward_auth;
pub mod gateway;
