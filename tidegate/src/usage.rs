//! `UsageKind`: which tokens of a language model are the actual cost of a request.

use crate::limit::MAX_AMOUNT;

/// Which tokens are the actual cost of a request to a language model, as its response reports them.
///
/// ```
/// use tidegate::rules::UsageKind;
///
/// assert_eq!([UsageKind::Total, UsageKind::Input, UsageKind::Output].map(|kind| kind.tokens(700, 55)), [755, 700, 55]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UsageKind {
    /// Those of the prompt and those of the answer.
    Total,
    /// Those of the prompt.
    Input,
    /// Those of the answer.
    Output,
}

impl UsageKind {
    /// The cost of a request that used this many tokens. Saturates at the largest amount of a limit.
    pub const fn tokens(self, input: u64, output: u64) -> u64 {
        let tokens = match self {
            Self::Total => input.saturating_add(output),
            Self::Input => input,
            Self::Output => output,
        };
        if tokens > MAX_AMOUNT { MAX_AMOUNT } else { tokens }
    }

    /// Its name in rule files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_saturate_at_the_largest_amount() {
        for kind in [UsageKind::Total, UsageKind::Input, UsageKind::Output] {
            assert_eq!(kind.tokens(u64::MAX, u64::MAX), MAX_AMOUNT, "{}", kind.as_str());
        }
        assert_eq!(UsageKind::Total.tokens(MAX_AMOUNT, 1), MAX_AMOUNT);
    }
}
