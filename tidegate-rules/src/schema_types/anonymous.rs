//! What becomes of strangers, as it is written.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Amount;
use crate::read::Spanned;

/// What becomes of those whom nobody vouches for, such as addresses, when there are many.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Anonymous")]
pub(crate) struct AnonymousSpec {
    /// How many of them a shared store remembers at the same time; further new ones share overflow buckets. 1,000,000 if left
    /// out.
    pub(crate) most: Option<Spanned<Amount>>,
    /// After how much time one that has not been seen is forgotten, even if its limit remembers longer: `10m`.
    pub(crate) forget_after: Option<Spanned<String>>,
}
