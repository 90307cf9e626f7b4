//! The `OpenAPI` description of the check API, as it is served.

/// `OpenAPI` 3.1.
pub(crate) const TEXT: &str = include_str!("openapi.json");
