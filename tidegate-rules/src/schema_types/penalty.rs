//! The section `penalty`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::BoundedAmount;
use crate::read::{Required, Spanned};

/// Growing blocks for a subject that the rule denies again and again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Penalty")]
pub(crate) struct PenaltySpec {
    /// The strike that begins the first block: 1 to 100. Each denial by a limit of the rule is a strike.
    pub(crate) after: Required<BoundedAmount<1, 100>>,
    /// The length of the first block: `1m`.
    pub(crate) block: Required<String>,
    /// How many times longer each further block is: 1 to 1,000; 1 keeps all equally long. 2 if missing.
    pub(crate) factor: Option<Spanned<BoundedAmount<1, 1_000>>>,
    /// The longest block: `1h`. Strikes are forgotten when none follows for so long after a block.
    pub(crate) max: Required<String>,
}
