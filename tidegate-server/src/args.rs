//! The flags of `tidegate serve`: those that no part has for itself, and the parsers of values. Each other flag is declared where its value is used.

pub(crate) mod deployment;
pub(crate) mod flag_values;
pub(crate) mod serve_args;

/// Heading of the flags that bound what clients may use. Several structs have some of them, so each states its place under the heading
/// (`display_order`).
pub(crate) const LIMITS_HEADING: &str = "Limits on clients";
