//! `LimitName`: the rule, the period and the name of the limit that a key stem stands for.

use tidegate::limits::Period;
use tidegate::spi::AccountKey;

/// What the key stem of a limit says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitName {
    /// The id of the rule, or `$` and the name of the budget.
    pub(crate) rule: String,
    /// The name of the limit within its rule. Empty if it has none.
    pub(crate) limit: String,
    /// The length of its periods. `None` if this version does not know it.
    pub(crate) period: Option<Period>,
}

impl LimitName {
    /// The name of the limit of an account. A stem that this version does not know becomes the name of the rule: its entries are kept.
    pub(crate) fn from_key(key: &AccountKey) -> Self {
        match key.parse() {
            Some((rule, period, limit)) => Self { rule, limit, period: Some(period) },
            None => Self { rule: key.stem.clone(), limit: String::new(), period: None },
        }
    }

    pub(crate) fn period_text(&self) -> &str {
        self.period.map_or("", Period::as_str)
    }
}
