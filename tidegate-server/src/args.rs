//! The flags of `tidegate serve`, and the parsers of their values.

pub(crate) mod bound_args;
pub(crate) mod flag_values;
pub(crate) mod namespace_args;
pub(crate) mod secret;
pub(crate) mod serve_args;
pub(crate) mod upstream_args;
