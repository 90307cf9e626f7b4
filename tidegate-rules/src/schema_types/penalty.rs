//! The section `penalty`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Amount;
use crate::read::Spanned;

/// Growing blocks for a subject that the rule refuses again and again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Penalty")]
pub(crate) struct PenaltySpec {
    /// The refusal that begins the first block: 1 to 100.
    pub(crate) after: Spanned<Amount>,
    /// The length of the first block: `1m`.
    pub(crate) block: Spanned<String>,
    /// How many times longer each further block is: 1 to 1,000. 2 if missing.
    pub(crate) factor: Option<Spanned<Amount>>,
    /// The longest block: `1h`. Refusals are forgotten when none follows for so long after a block.
    pub(crate) max: Spanned<String>,
}
