//! `TokenCount`: the tokens that a response used, as it states them and as far as they were seen. Pure.
//!
//! Reads OpenAI's forms (chat completions, completions, responses, embeddings) and Anthropic's (messages), each streamed or not. Which
//! one it is follows from the fields of the events.

use tidegate_tower::TokenUsage;

use super::lenient_json::Lenient;
use super::stated_usage::StatedUsage;
use super::stream_event::{EventType, StreamEvent};

/// The usual number of bytes of a token, for what nobody has counted.
pub(super) const BYTES_PER_TOKEN: u64 = 4;

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

impl TokenCount {
    /// Adds the data of an event of a stream.
    pub(super) fn add_event(&mut self, data: &[u8]) -> EventKind {
        if data == b"[DONE]" {
            self.complete = true;
            return EventKind::Plain;
        }
        let Ok(Lenient(event)) = serde_json::from_slice::<Lenient<StreamEvent>>(data) else {
            self.add_unread(data.len() as u64);
            return EventKind::Plain;
        };
        if let Some(usage) = event.first_usage {
            self.stated.merge(usage);
        }
        if let Some(usage) = event.usage {
            self.add_usage(usage);
        }
        let Some(choices) = &event.choices else {
            let bytes = event.delta_bytes();
            self.add_deltas(u64::from(bytes > 0), bytes);
            self.complete |= event.kind == EventType::Last;
            return EventKind::Plain;
        };
        self.add_deltas(choices.deltas, choices.text_bytes);
        let is_usage_only = choices.count == 0 && event.usage.is_some();
        if is_usage_only { EventKind::UsageOnly } else { EventKind::Plain }
    }

    /// Adds bytes of an event that is too long to be read, or no JSON.
    pub(super) fn add_unread(&mut self, bytes: u64) {
        self.text_bytes = self.text_bytes.saturating_add(bytes);
    }

    /// Removes bytes that were added, and are no part of the answer.
    pub(super) const fn remove_unread(&mut self, bytes: u64) {
        self.text_bytes = self.text_bytes.saturating_sub(bytes);
    }

    /// The last event of the stream was seen.
    pub(super) const fn set_complete(&mut self) {
        self.complete = true;
    }

    /// Adds a `usage`, which may be the last one.
    pub(super) fn add_usage(&mut self, usage: StatedUsage) {
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

    fn add_deltas(&mut self, deltas: u64, bytes: u64) {
        self.deltas = self.deltas.saturating_add(deltas);
        self.text_bytes = self.text_bytes.saturating_add(bytes);
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

    fn stated(usage: &str) -> StatedUsage {
        let Lenient(stated) = serde_json::from_str::<Lenient<Option<_>>>(usage).unwrap();
        stated.unwrap()
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
            count.add_usage(stated(usage));
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
            count.add_usage(stated(usage));
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
        for twice in [
            r#"{"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens":1,"completion_tokens":8}}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":8},"usage":null}"#,
            r#"{"usage":null,"choices":[],"usage":{"prompt_tokens":9},"usage":{"completion_tokens":8}}"#,
            r#"{"type":"response.completed","response":{"usage":{"input_tokens":9,"output_tokens":8},"usage":{}}}"#,
        ] {
            assert_eq!(tokens(&[twice, "[DONE]"]), (9, 8), "{twice}");
        }
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
            (r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1},"usage":null}"#, EventKind::UsageOnly),
            (r#"{"choices":[],"usage":null,"prompt_filter_results":[]}"#, EventKind::Plain),
            (r#"{"choices":[],"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}"#, EventKind::Plain),
            (r#"{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#, EventKind::Plain),
            (r#"{"type":"message_delta","usage":{"output_tokens":1}}"#, EventKind::Plain),
            ("[DONE]", EventKind::Plain),
            ("broken", EventKind::Plain),
        ] {
            assert_eq!(TokenCount::default().add_event(event.as_bytes()), kind, "{event}");
        }
    }
}
