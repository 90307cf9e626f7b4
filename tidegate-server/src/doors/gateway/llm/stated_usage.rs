//! `StatedUsage`: the tokens that a `usage` object states, in OpenAI's form or Anthropic's.

use serde::de::{IgnoredAny, MapAccess};
use tidegate::spi::MAX_AMOUNT;

use super::lenient_json::{Lenient, MemberName, ReadJson, Scalar};

/// The tokens that a response states. Each number is `None` until it is stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StatedUsage {
    input: Option<u64>,
    output: Option<u64>,
    /// Both. Some servers count the tokens of reasoning here only.
    total: Option<u64>,
    /// Whether the output is there, and no number of tokens.
    is_output_unreadable: bool,
}

/// A number of tokens. The larger of two counts.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum TokenNumber {
    /// `null`, too.
    #[default]
    Absent,
    /// Negative, no integer or larger than any limit.
    Unreadable,
    Stated(u64),
}

impl StatedUsage {
    /// Adds what another part of the response states: numbers are cumulative, so the largest one counts.
    pub(super) fn merge(&mut self, other: Self) {
        self.input = self.input.max(other.input);
        self.output = self.output.max(other.output);
        self.total = self.total.max(other.total);
        self.is_output_unreadable |= other.is_output_unreadable;
    }

    /// Whether the tokens are known from it alone.
    pub(super) const fn is_sufficient(self) -> bool {
        self.output.is_some() || self.total.is_some() || (self.input.is_some() && !self.is_output_unreadable)
    }

    /// Whether tokens of an answer are stated.
    pub(super) fn has_output(self) -> bool {
        self.output.unwrap_or(0) > 0 || self.total.unwrap_or(0) > self.input.unwrap_or(0)
    }

    /// The input, and the output if it is stated. An input of 0 counts as not stated; it is estimated as at most the total.
    pub(super) fn tokens(self, prompt_tokens: u64) -> (u64, Option<u64>) {
        let total = self.total.filter(|total| *total > 0);
        let estimate =
            total.map_or(prompt_tokens, |total| total.saturating_sub(self.output.unwrap_or(0)).min(prompt_tokens));
        let input = self.input.filter(|input| *input > 0).unwrap_or(estimate);
        (input, self.output.max(total.map(|total| total.saturating_sub(input))))
    }
}

/// `None` if it is no object.
impl ReadJson for Option<StatedUsage> {
    fn read_members<'de, A: MapAccess<'de>>(&mut self, mut members: A) -> Result<(), A::Error> {
        let [mut prompt, mut input, mut written, mut read] = [TokenNumber::Absent; 4];
        let [mut completion, mut output, mut total] = [TokenNumber::Absent; 3];
        while let Some(MemberName(name)) = members.next_key()? {
            let number = match &*name {
                "prompt_tokens" => &mut prompt,
                "input_tokens" => &mut input,
                "cache_creation_input_tokens" => &mut written,
                "cache_read_input_tokens" => &mut read,
                "completion_tokens" => &mut completion,
                "output_tokens" => &mut output,
                "total_tokens" => &mut total,
                _ => {
                    members.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *number = members.next_value::<Lenient<TokenNumber>>()?.0.max(*number);
        }
        // In Anthropic's form, `input_tokens` are those that are neither read from the cache nor written to it. `prompt_tokens` are all.
        let cached = [written, read].into_iter().filter_map(TokenNumber::stated).sum();
        let input = prompt.stated().or_else(|| Some(input.stated()?.saturating_add(cached)));
        let is_unreadable = [completion, output].contains(&TokenNumber::Unreadable);
        let output = completion.stated().or_else(|| output.stated());
        let is_output_unreadable = output.is_none() && is_unreadable;
        *self = Some(StatedUsage { input, output, total: total.stated(), is_output_unreadable });
        Ok(())
    }
}

impl TokenNumber {
    const fn stated(self) -> Option<u64> {
        match self {
            Self::Stated(number) => Some(number),
            Self::Absent | Self::Unreadable => None,
        }
    }
}

impl ReadJson for TokenNumber {
    fn read_scalar(&mut self, scalar: Scalar<'_>) {
        *self = match scalar {
            Scalar::Null => Self::Absent,
            Scalar::Integer(number) if number <= MAX_AMOUNT => Self::Stated(number),
            Scalar::Integer(_) | Scalar::Text(_) | Scalar::Other => Self::Unreadable,
        };
    }
}
