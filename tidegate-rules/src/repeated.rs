//! `RepeatedPolicies`: which value counts if a header or a query parameter comes more than once.

use std::collections::HashMap;

use smol_str::SmolStr;

/// The most values of one cookie that a request is judged for. Each counts.
pub(crate) const MAX_REPEATED_VALUES: usize = 4;

/// Which value counts if a source comes more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepeatedPolicy {
    /// None: the request is refused. Of a cookie, each value counts.
    #[default]
    Reject,
    /// The first.
    First,
    /// The last.
    Last,
}

/// The policy of each source.
#[derive(Clone, Debug, Default)]
pub struct RepeatedPolicies {
    pub(crate) otherwise: RepeatedPolicy,
    /// By the text of the source, with headers in lower case: `header:x-api-key`, `query:account`, `cookie:session`.
    pub(crate) by_source: HashMap<SmolStr, RepeatedPolicy>,
}

impl RepeatedPolicy {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::First => "first",
            Self::Last => "last",
        }
    }
}

impl RepeatedPolicies {
    /// The policy of a source.
    pub(crate) fn policy(&self, source: &str) -> RepeatedPolicy {
        self.by_source.get(source).copied().unwrap_or(self.otherwise)
    }
}
