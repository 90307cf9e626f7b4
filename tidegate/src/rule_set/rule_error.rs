//! `RuleError`: why a rule cannot be part of a set.

use std::error::Error;
use std::fmt;

use smol_str::SmolStr;

/// An invalid rule: its id, and what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    pub(super) rule: SmolStr,
    pub(super) problem: String,
}

impl RuleError {
    /// The id of the invalid rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {:?}: {}", self.rule, self.problem)
    }
}

impl Error for RuleError {}
