//! The sections `anonymous` and `authenticated`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Amount;
use crate::read::Spanned;

/// Bounds for unauthenticated subjects, such as addresses.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Anonymous")]
pub(crate) struct AnonymousSpec {
    /// The most such subjects with a limit of their own in a shared store; further ones share overflow buckets. 1,000,000 if
    /// missing.
    pub(crate) most: Option<Spanned<Amount>>,
    /// When an idle subject is forgotten, even if its limit remembers longer: `10m`.
    pub(crate) forget_after: Option<Spanned<String>>,
}

/// Bounds for authenticated subjects, such as API keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Authenticated")]
pub(crate) struct AuthenticatedSpec {
    /// The most such subjects with a limit of their own in a shared store; further ones share overflow buckets. 10,000,000 if
    /// missing.
    pub(crate) most: Option<Spanned<Amount>>,
}
