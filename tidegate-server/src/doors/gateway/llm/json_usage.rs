//! `UsageScanner`: finds the `usage` of a JSON response, or of an event that is too long to be kept, as its bytes arrive. It keeps no more
//! than that object, however long the text is.

use super::lenient_json::Lenient;
use super::stream_event::EventType;
use super::token_count::TokenCount;

/// The object with the usage. An event of OpenAI's responses has it within `response`.
const USAGE: &[u8] = b"usage";
const RESPONSE: &[u8] = b"response";
const TYPE: &[u8] = b"type";

/// The longest `usage` that is read.
pub(super) const MAX_USAGE_BYTES: usize = 64 * 1024;

/// Reads the outermost object of a text.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct UsageScanner {
    depth: u32,
    /// The depth of the object whose names are read: 1, or 2 within `response`. 0 if the outermost value is none.
    level: u32,
    in_string: bool,
    escaped: bool,
    /// Whether the next string of that object is a name.
    expects_name: bool,
    /// The beginning of the last name.
    name: Vec<u8>,
    /// The bytes of its value so far, if that is read.
    value: Option<Vec<u8>>,
    event_type: Option<EventType>,
    complete: bool,
}

impl UsageScanner {
    /// Reads further bytes.
    pub(super) fn push(&mut self, bytes: &[u8], count: &mut TokenCount) {
        for byte in bytes {
            if self.complete {
                return;
            }
            self.read(*byte, count);
        }
    }

    /// Whether the outermost object has ended.
    pub(super) const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The `type` of the outermost object, as soon as it is read.
    pub(super) const fn event_type(&self) -> Option<EventType> {
        self.event_type
    }

    fn read(&mut self, byte: u8, count: &mut TokenCount) {
        let is_at_level = !self.in_string && self.depth == self.level;
        if is_at_level && matches!(byte, b',' | b'}') {
            self.end_value(count);
        } else if let Some(value) = &mut self.value {
            if value.len() == MAX_USAGE_BYTES {
                self.value = None;
            } else {
                value.push(byte);
            }
        }
        if self.in_string {
            self.read_in_string(byte);
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if is_at_level && self.expects_name {
                    self.name.clear();
                }
            }
            b'{' | b'[' => {
                let is_response = self.level == 1 && !self.expects_name && self.name == RESPONSE;
                if byte == b'{' && is_at_level && (self.level == 0 || is_response) {
                    self.level += 1;
                    self.expects_name = true;
                }
                self.depth = self.depth.saturating_add(1);
            }
            b'}' | b']' => {
                if is_at_level && self.level == 2 {
                    self.level = 1;
                }
                self.depth = self.depth.saturating_sub(1);
                self.complete = self.depth == 0;
            }
            b':' if is_at_level => {
                self.expects_name = false;
                let is_read = self.name == USAGE || (self.level == 1 && self.name == TYPE);
                self.value = is_read.then(Vec::new);
            }
            b',' if is_at_level => self.expects_name = true,
            _ => {}
        }
    }

    fn read_in_string(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => {
                self.in_string = false;
                return;
            }
            _ => {}
        }
        if self.depth == self.level && self.expects_name && self.name.len() <= RESPONSE.len() {
            self.name.push(byte);
        }
    }

    fn end_value(&mut self, count: &mut TokenCount) {
        if let Some(value) = self.value.take() {
            if self.name == TYPE {
                self.event_type = serde_json::from_slice(&value).ok().map(|Lenient(event_type)| event_type);
            } else if let Ok(Lenient(Some(usage))) = serde_json::from_slice(&value) {
                count.add_usage(usage);
            }
        }
        self.name.clear();
    }
}

#[cfg(test)]
mod tests {
    use tidegate_tower::TokenUsage;

    use super::*;

    /// The tokens that a response states, wherever its bytes are cut, and whether it ended.
    fn scan(text: &str) -> (Option<(u64, u64)>, bool) {
        let mut results = (1..=text.len().min(50)).map(|size| {
            let (mut scanner, mut count) = (UsageScanner::default(), TokenCount::default());
            text.as_bytes().chunks(size).for_each(|chunk| scanner.push(chunk, &mut count));
            let TokenUsage { input, output } = count.tokens(1000);
            (count.has_usage().then_some((input, output)), scanner.is_complete())
        });
        let first = results.next().unwrap();
        assert!(results.all(|other| other == first), "{text}");
        first
    }

    #[test]
    fn the_usage_of_the_outermost_object_is_found() {
        const USAGE: &str = r#"{"prompt_tokens":7,"completion_tokens":5}"#;
        for text in [
            format!(r#"{{"id":"x","choices":[{{"message":{{"content":"hi"}}}}],"usage":{USAGE}}}"#),
            format!(r#"{{ "usage" : {USAGE} , "id":"x"}}"#),
            format!("{{\n  \"a\": \"}}\\\"{{,\",\n  \"usage\": {USAGE}\n}}\n"),
            format!(r#"{{"usage":{{"prompt_tokens":1}},"usage":{USAGE}}}"#),
            format!(r#"{{"choices":[{{"usage":{{"prompt_tokens":99}}}}],"usage":{USAGE}}}"#),
            format!(r#"{{"response":{{"a":{{"usage":{{"prompt_tokens":99}}}},"usage":{USAGE}}},"b":[1]}}"#),
            format!(r#"{{"response":{{}},"a":{{"usage":{{"prompt_tokens":99}}}},"usage":{USAGE}}}"#),
        ] {
            assert_eq!(scan(&text), (Some((7, 5)), true), "{text}");
        }
    }

    #[test]
    fn a_response_without_usage_has_none() {
        for (text, complete) in [
            (r#"{"id":"usage","choices":[]}"#, true),
            (r#"{"text":"\"usage\":{\"prompt_tokens\":9}"}"#, true),
            (r#"{"a":{"usage":{"prompt_tokens":9}}}"#, true),
            (r#"[{"usage":{"prompt_tokens":9}}]"#, true),
            (r#"{"usage":null}"#, true),
            (r#"{"usage":{"prompt_tokens":-4,"completion_tokens":"x"}}"#, true),
            (r#"{"usages":{"prompt_tokens":9}}"#, true),
            (r#"{"response":[{"usage":{"prompt_tokens":9}}]}"#, true),
            (r#"{"response":"x","a":{"usage":{"prompt_tokens":9}}}"#, true),
            (r#"{"a":{"response":{"usage":{"prompt_tokens":9}}}}"#, true),
            (r#"["response",{"usage":{"prompt_tokens":9}}]"#, true),
            (r#"{"usage":{"prompt_tokens":9}"#, false),
            ("<html>usage</html>", false),
            ("", false),
        ] {
            if !text.is_empty() {
                assert_eq!(scan(text), (None, complete), "{text}");
            }
        }
    }

    #[test]
    fn the_type_of_an_event_is_found() {
        for (text, expected) in [
            (r#"{"type":"response.completed","response":{"type":"x"}}"#, Some(EventType::Last)),
            (r#"{"response":{"type":"x"},"type" : "response.output_text.delta" }"#, Some(EventType::Delta)),
            (r#"{"type":7}"#, Some(EventType::Other)),
            (r#"{"type":"response.completed""#, None),
            (r#"{"response":{"type":"response.completed"}}"#, None),
        ] {
            let mut scanner = UsageScanner::default();
            scanner.push(text.as_bytes(), &mut TokenCount::default());
            assert_eq!(scanner.event_type(), expected, "{text}");
        }
    }

    #[test]
    fn usage_that_is_too_long_is_not_kept() {
        let long = format!(r#"{{"usage":{{"x":"{}","prompt_tokens":9}}}}"#, "x".repeat(MAX_USAGE_BYTES));
        let (mut scanner, mut count) = (UsageScanner::default(), TokenCount::default());
        scanner.push(long.as_bytes(), &mut count);
        assert!(scanner.is_complete() && !count.has_usage());
    }
}
