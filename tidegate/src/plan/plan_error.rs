//! `PlanError`: why checks cannot form a plan.

use std::error::Error;
use std::fmt;

use super::MAX_CHECKS;

/// Checks that cannot form a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// Two checks have the same key.
    SharedKey {
        /// The rule of the second check.
        rule: String,
    },
    /// More than [`MAX_CHECKS`], not counting shadow checks.
    TooManyChecks {
        /// The number of checks, without shadow checks.
        checks: usize,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SharedKey { rule } => write!(f, "rule {rule:?}: another check of the plan has the same key"),
            Self::TooManyChecks { checks } => {
                write!(f, "{checks} checks in one plan; at most {MAX_CHECKS}")
            }
        }
    }
}

impl Error for PlanError {}
