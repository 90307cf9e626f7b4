//! `TokenCount`: the tokens that a response used, as it states them and as far as they were seen. Pure.
//!
//! Reads OpenAI's forms (chat completions, completions, responses, embeddings) and Anthropic's (messages), each streamed or not. Which
//! one it is follows from the fields of the events.

use serde_json::Value;
use tidegate::spi::MAX_AMOUNT;
use tidegate_tower::TokenUsage;

/// The usual number of bytes of a token, for what nobody has counted.
pub(super) const BYTES_PER_TOKEN: u64 = 4;

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

/// What is known of the tokens of a response.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenCount {
    stated: StatedUsage,
    /// Parts of the answer that were streamed. Each is at least one token.
    deltas: u64,
    /// The length of these parts, and of events that were too long to be read.
    text_bytes: u64,
    /// Whether it states a number of output tokens, and not only a first one before the model works.
    states_output: bool,
    /// Whether the stream has said that it is complete.
    complete: bool,
}

/// What an event of a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    /// One that the client gets.
    Plain,
    /// One that states the usage and nothing else, which OpenAI's API sends only if it is asked to.
    UsageOnly,
}

impl StatedUsage {
    /// Reads a `usage` object. A number that is negative, no integer or larger than any limit counts as not stated.
    pub(super) fn from_json(usage: &Value) -> Self {
        let number = |name: &str| usage.get(name).and_then(Value::as_u64).filter(|number| *number <= MAX_AMOUNT);
        // In Anthropic's form, `input_tokens` are those that are neither read from the cache nor written to it. `prompt_tokens` are all.
        let cached: u64 =
            ["cache_creation_input_tokens", "cache_read_input_tokens"].into_iter().filter_map(number).sum();
        let input = number("prompt_tokens").or_else(|| Some(number("input_tokens")?.saturating_add(cached)));
        let output = number("completion_tokens").or_else(|| number("output_tokens"));
        let is_there = |name: &str| usage.get(name).is_some_and(|value| !value.is_null());
        let is_output_unreadable = output.is_none() && (is_there("completion_tokens") || is_there("output_tokens"));
        Self { input, output, total: number("total_tokens"), is_output_unreadable }
    }

    /// Adds what another part of the response states: numbers are cumulative, so the largest one counts.
    pub(super) fn merge(&mut self, other: Self) {
        self.input = self.input.max(other.input);
        self.output = self.output.max(other.output);
        self.total = self.total.max(other.total);
        self.is_output_unreadable |= other.is_output_unreadable;
    }

    /// Whether the tokens are known from it alone.
    const fn is_sufficient(self) -> bool {
        self.output.is_some() || self.total.is_some() || (self.input.is_some() && !self.is_output_unreadable)
    }

    /// Whether tokens of an answer are stated.
    fn has_output(self) -> bool {
        self.output.unwrap_or(0) > 0 || self.total.unwrap_or(0) > self.input.unwrap_or(0)
    }

    /// The input, and the output if it is stated. An input of 0 counts as not stated; it is estimated as at most the total.
    fn tokens(self, prompt_tokens: u64) -> (u64, Option<u64>) {
        let total = self.total.filter(|total| *total > 0);
        let estimate =
            total.map_or(prompt_tokens, |total| total.saturating_sub(self.output.unwrap_or(0)).min(prompt_tokens));
        let input = self.input.filter(|input| *input > 0).unwrap_or(estimate);
        (input, self.output.max(total.map(|total| total.saturating_sub(input))))
    }
}

impl TokenCount {
    /// Adds the data of an event of a stream.
    pub(super) fn add_event(&mut self, data: &[u8]) -> EventKind {
        if data == b"[DONE]" {
            self.complete = true;
            return EventKind::Plain;
        }
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            self.text_bytes = self.text_bytes.saturating_add(data.len() as u64);
            return EventKind::Plain;
        };
        for usage in [event.get("usage"), event.pointer("/response/usage")].into_iter().flatten() {
            self.add_usage(usage);
        }
        // Anthropic's form states an output of 1 at the start, before anything is done.
        if let Some(usage) = event.pointer("/message/usage") {
            self.stated.merge(StatedUsage::from_json(usage));
        }
        match event.get("choices").and_then(Value::as_array) {
            Some(choices) => choices.iter().for_each(|choice| self.add_choice(choice)),
            None => self.add_typed_event(&event),
        }
        let has_no_choice = event.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty);
        let is_usage_only = has_no_choice && event.get("usage").is_some_and(Value::is_object);
        if is_usage_only { EventKind::UsageOnly } else { EventKind::Plain }
    }

    /// Adds an event that is too long to be read.
    pub(super) fn add_unread(&mut self, bytes: u64) {
        self.text_bytes = self.text_bytes.saturating_add(bytes);
    }

    /// Adds a `usage`, which may be the last one.
    pub(super) fn add_usage(&mut self, usage: &Value) {
        let usage = StatedUsage::from_json(usage);
        self.states_output |= usage.has_output();
        self.stated.merge(usage);
    }

    /// Whether the response states usage.
    pub(super) const fn has_usage(&self) -> bool {
        self.stated.is_sufficient()
    }

    /// Whether a part of the answer was streamed, or its tokens are stated.
    pub(super) const fn has_output(&self) -> bool {
        self.deltas > 0 || self.text_bytes > 0 || self.states_output || self.complete
    }

    /// Whether the stream has said that it is complete.
    pub(super) const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The tokens of the request. `prompt_tokens` is an estimate, which counts if the response does not state the input.
    ///
    /// Stated output is never less than the parts that were seen. As long as the stream is not complete, or if it states none, the output
    /// is also at least its length by the usual bytes of a token.
    pub(super) fn tokens(&self, prompt_tokens: u64) -> TokenUsage {
        let seen = self.deltas.max(self.text_bytes.div_ceil(BYTES_PER_TOKEN));
        let (input, output) = self.stated.tokens(prompt_tokens);
        let output = match output {
            Some(stated) if self.complete => stated.max(self.deltas),
            Some(stated) => stated.max(seen),
            None => seen,
        };
        TokenUsage { input, output }
    }

    /// A choice of OpenAI's chat completions (`delta`) or completions (`text`).
    fn add_choice(&mut self, choice: &Value) {
        let of_delta = choice.get("delta").and_then(Value::as_object).map_or(0, |delta| {
            delta.iter().filter(|(name, _)| *name != "role").map(|(_, value)| text_bytes(value)).sum()
        });
        self.add_delta(of_delta + choice.get("text").map_or(0, text_bytes));
    }

    /// An event of OpenAI's responses or of Anthropic's messages, which have a type.
    fn add_typed_event(&mut self, event: &Value) {
        let delta = event.get("delta");
        match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "message_stop" | "response.completed" | "response.incomplete" | "response.failed" => self.complete = true,
            "content_block_delta" => {
                let text = |name: &str| delta.and_then(|delta| delta.get(name)).map_or(0, text_bytes);
                self.add_delta(["text", "partial_json", "thinking"].into_iter().map(text).sum());
            }
            kind if kind.rsplit('.').next() == Some("delta") => self.add_delta(delta.map_or(0, text_bytes)),
            _ => {}
        }
    }

    fn add_delta(&mut self, bytes: u64) {
        if bytes > 0 {
            self.deltas = self.deltas.saturating_add(1);
            self.text_bytes = self.text_bytes.saturating_add(bytes);
        }
    }
}

/// The length of all texts in a value.
fn text_bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(values) => values.iter().map(text_bytes).sum(),
        Value::Object(members) => members.values().map(text_bytes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(events: &[&str]) -> TokenCount {
        let mut count = TokenCount::default();
        for event in events {
            count.add_event(event.as_bytes());
        }
        count
    }

    fn tokens(events: &[&str]) -> (u64, u64) {
        let TokenUsage { input, output } = count(events).tokens(1000);
        (input, output)
    }

    const DELTA: &str = r#"{"choices":[{"index":0,"delta":{"content":"ab"}}],"usage":null}"#;

    #[test]
    fn usage_is_read_in_every_form() {
        for (usage, expected) in [
            (r#"{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}"#, (7, 5)),
            (r#"{"prompt_tokens":7,"completion_tokens":5,"total_tokens":20}"#, (7, 13)),
            (r#"{"prompt_tokens":7,"total_tokens":7}"#, (7, 0)),
            (r#"{"prompt_tokens":7,"completion_tokens":-1,"total_tokens":9}"#, (7, 2)),
            // The estimate of the prompt is a part of the total.
            (r#"{"prompt_tokens":-1,"total_tokens":1900}"#, (1000, 900)),
            (r#"{"prompt_tokens":-1,"total_tokens":900}"#, (900, 0)),
            (r#"{"prompt_tokens":0,"completion_tokens":5,"total_tokens":12}"#, (7, 5)),
            (r#"{"input_tokens":7,"output_tokens":5,"input_tokens_details":{"cached_tokens":3}}"#, (7, 5)),
            (
                r#"{"input_tokens":7,"cache_creation_input_tokens":20,"cache_read_input_tokens":10,"output_tokens":5}"#,
                (37, 5),
            ),
            (r#"{"input_tokens":7,"cache_read_input_tokens":null,"output_tokens":5}"#, (7, 5)),
            // OpenAI's `prompt_tokens` include those of the cache, which some servers state in Anthropic's words beside them.
            (
                r#"{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"cache_read_input_tokens":90}"#,
                (100, 5),
            ),
        ] {
            let mut count = TokenCount::default();
            count.add_usage(&serde_json::from_str(usage).unwrap());
            assert!(count.has_usage());
            let TokenUsage { input, output } = count.tokens(1000);
            assert_eq!((input, output), expected, "{usage}");
        }
    }

    #[test]
    fn usage_that_is_no_number_of_tokens_counts_as_not_stated() {
        for wrong in ["-1", "1.5", "1e3", "\"7\"", "null", "[]", "9007199254740993", "99999999999999999999999999"] {
            let usage = format!(r#"{{"choices":[],"usage":{{"prompt_tokens":{wrong},"completion_tokens":{wrong}}}}}"#);
            assert_eq!(tokens(&[DELTA, &usage, "[DONE]"]), (1000, 1), "{wrong}");
        }
        for wrong in ["7", "[]", "null", "\"x\"", "{}"] {
            assert_eq!(
                tokens(&[DELTA, &format!(r#"{{"choices":[],"usage":{wrong}}}"#), "[DONE]"]),
                (1000, 1),
                "{wrong}"
            );
        }
    }

    /// The answer would cost nothing otherwise.
    #[test]
    fn usage_whose_output_is_no_number_of_tokens_does_not_suffice() {
        for (usage, suffices) in [
            (r#"{"prompt_tokens":7,"completion_tokens":-1}"#, false),
            (r#"{"input_tokens":7,"output_tokens":"many"}"#, false),
            (r#"{"prompt_tokens":7,"completion_tokens":null}"#, true),
            (r#"{"prompt_tokens":7}"#, true),
            (r#"{"total_tokens":-1}"#, false),
            ("{}", false),
        ] {
            let mut count = TokenCount::default();
            count.add_usage(&serde_json::from_str(usage).unwrap());
            assert_eq!(count.has_usage(), suffices, "{usage}");
        }
    }

    #[test]
    fn of_two_usages_the_larger_one_counts() {
        let usage = |input: u64, output: u64| {
            format!(r#"{{"choices":[],"usage":{{"prompt_tokens":{input},"completion_tokens":{output}}}}}"#)
        };
        assert_eq!(tokens(&[&usage(9, 2), &usage(3, 8), "[DONE]"]), (9, 8));
        let twice = r#"{"choices":[],"usage":{"prompt_tokens":1,"prompt_tokens":9,"completion_tokens":8}}"#;
        assert_eq!(tokens(&[twice, "[DONE]"]), (9, 8));
    }

    #[test]
    fn stated_output_is_never_less_than_what_was_seen() {
        let lie = r#"{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}"#;
        assert_eq!(tokens(&[DELTA, DELTA, DELTA, lie, "[DONE]"]), (1000, 3));
        let long = format!(r#"{{"choices":[{{"delta":{{"content":"{}"}}}}]}}"#, "x".repeat(400));
        assert_eq!(tokens(&[&long, DELTA]), (1000, 101), "without usage, the length counts");
        let honest = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":60}}"#;
        assert_eq!(tokens(&[&long, DELTA, honest, "[DONE]"]), (5, 60), "tokens may be longer than usual");
    }

    #[test]
    fn every_kind_of_delta_is_counted_and_empty_ones_are_not() {
        for (event, deltas) in [
            (DELTA, 1),
            (r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#, 0),
            (r#"{"choices":[{"delta":{"role":"assistant","content":null,"refusal":null}}]}"#, 0),
            (r#"{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"b"}}]}"#, 2),
            (r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a"}}]}}]}"#, 1),
            (r#"{"choices":[{"delta":{"reasoning_content":"hm"}}],"obfuscation":"xyz"}"#, 1),
            (r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, 0),
            (r#"{"choices":[{"text":"a","index":0}]}"#, 1),
            (r#"{"type":"response.output_text.delta","delta":"a"}"#, 1),
            (r#"{"type":"response.output_text.done","text":"a"}"#, 0),
            (r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}"#, 1),
            (r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}"#, 1),
            (r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"abc"}}"#, 0),
            (r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#, 0),
            (r#"{"type":"ping"}"#, 0),
            ("7", 0),
            ("null", 0),
        ] {
            assert_eq!(count(&[event]).deltas, deltas, "{event}");
        }
    }

    #[test]
    fn anthropic_states_the_input_at_the_start_and_the_output_at_the_end() {
        let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}"#;
        let delta = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"abcdefgh"}}"#;
        let end = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}"#;
        assert_eq!(tokens(&[start, delta]), (25, 2), "a client that leaves pays for what was streamed");
        assert_eq!(tokens(&[start, delta, end, r#"{"type":"message_stop"}"#]), (25, 15));
        let completed = r#"{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":4}}}"#;
        assert_eq!(tokens(&[completed]), (3, 4));
    }

    #[test]
    fn only_an_event_without_choices_and_with_usage_is_one_of_usage_only() {
        for (event, kind) in [
            (r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#, EventKind::UsageOnly),
            (r#"{"choices":[],"usage":null,"prompt_filter_results":[]}"#, EventKind::Plain),
            (r#"{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#, EventKind::Plain),
            (r#"{"type":"message_delta","usage":{"output_tokens":1}}"#, EventKind::Plain),
            ("[DONE]", EventKind::Plain),
            ("broken", EventKind::Plain),
        ] {
            assert_eq!(TokenCount::default().add_event(event.as_bytes()), kind, "{event}");
        }
    }
}
