//! The description of the API, as it is served.

/// `OpenAPI` 3.1.
pub(crate) const TEXT: &str = include_str!("openapi.json");
