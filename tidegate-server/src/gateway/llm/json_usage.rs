//! `UsageScanner`: finds the `usage` of a JSON response as its bytes arrive. It keeps no more than that object, however long the response is.

use serde_json::Value;

use super::token_count::TokenCount;

/// The name of the object.
const NAME: &[u8] = b"usage";

/// The longest one that is read.
const MAX_USAGE_BYTES: usize = 64 * 1024;

/// Reads the outermost object of a response.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct UsageScanner {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// Whether the next string of the outermost object is a name.
    expects_name: bool,
    /// The beginning of the last name.
    name: Vec<u8>,
    /// The bytes of the value so far, if it is the usage.
    value: Option<Vec<u8>>,
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

    fn read(&mut self, byte: u8, count: &mut TokenCount) {
        let ends_value = !self.in_string && self.depth == 1 && matches!(byte, b',' | b'}');
        if ends_value {
            self.end_value(count);
        } else if let Some(value) = &mut self.value {
            value.push(byte);
            if value.len() > MAX_USAGE_BYTES {
                self.value = None;
            }
        }
        if self.in_string {
            self.read_in_string(byte);
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 && self.expects_name {
                    self.name.clear();
                }
            }
            b'{' | b'[' => {
                self.depth = self.depth.saturating_add(1);
                if self.depth == 1 {
                    self.expects_name = byte == b'{';
                }
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.complete = self.depth == 0;
            }
            b':' if self.depth == 1 => {
                self.expects_name = false;
                if self.name == NAME {
                    self.value = Some(Vec::new());
                }
            }
            b',' if self.depth == 1 => self.expects_name = true,
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
        if self.depth == 1 && self.expects_name && self.name.len() <= NAME.len() {
            self.name.push(byte);
        }
    }

    fn end_value(&mut self, count: &mut TokenCount) {
        self.name.clear();
        if let Some(usage) = self.value.take().and_then(|value| serde_json::from_slice::<Value>(&value).ok()) {
            count.add_usage(&usage);
        }
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
    fn usage_that_is_too_long_is_not_kept() {
        let long = format!(r#"{{"usage":{{"x":"{}","prompt_tokens":9}}}}"#, "x".repeat(MAX_USAGE_BYTES));
        let (mut scanner, mut count) = (UsageScanner::default(), TokenCount::default());
        scanner.push(long.as_bytes(), &mut count);
        assert!(scanner.is_complete() && !count.has_usage());
    }
}
