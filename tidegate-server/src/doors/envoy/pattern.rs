//! `Pattern`: a text with `*` wildcards, each of which matches any text, including none. Matching takes linear time.

/// The texts between the wildcards.
#[derive(Debug)]
pub(super) struct Pattern {
    first: String,
    between: Vec<String>,
    last: String,
}

impl Pattern {
    /// Parses a pattern; `None` if the text has no `*`.
    pub(super) fn new(text: &str) -> Option<Self> {
        let (first, rest) = text.split_once('*')?;
        let (between, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let between = between.split('*').filter(|piece| !piece.is_empty()).map(str::to_owned).collect();
        Some(Self { first: first.to_owned(), between, last: last.to_owned() })
    }

    /// Whether `key_value` starts with the pattern's prefix: a cheap test that excludes most texts.
    pub(super) fn may_match(&self, key: &str, value: &str) -> bool {
        let first = self.first.as_bytes();
        let mut text = key.bytes().chain([b'_']).chain(value.bytes());
        first.iter().all(|byte| text.next() == Some(*byte))
    }

    /// Whether the pattern matches the whole `text`.
    pub(super) fn matches(&self, text: &str) -> bool {
        let rest = text.strip_prefix(self.first.as_str()).and_then(|rest| rest.strip_suffix(self.last.as_str()));
        let Some(mut rest) = rest else { return false };
        for piece in &self.between {
            // The leftmost match leaves the most text for the pieces after it.
            let Some(start) = rest.find(piece.as_str()) else { return false };
            rest = &rest[start + piece.len()..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_matches_any_text_including_none() {
        let cases = [
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*", "ba", false),
            ("*", "", true),
            ("*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "abcd", false),
            ("a*a", "a", false),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "ac", false),
            ("a**c", "abc", true),
            ("*bb*bb*", "abbb", false),
            ("*bb*bb*", "abbbbc", true),
            ("ü*ß", "üxß", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(Pattern::new(pattern).map(|pattern| pattern.matches(text)), Some(expected), "{pattern} {text}");
        }
        assert!(Pattern::new("plain").is_none());
    }

    #[test]
    fn a_text_with_another_prefix_cannot_match() {
        let may_match = |pattern: &str, key: &str, value: &str| Pattern::new(pattern).unwrap().may_match(key, value);
        assert!(may_match("k_v*", "k", "v1") && may_match("*", "", "") && may_match("k_*", "k", ""));
        assert!(!may_match("k_v*", "k", "w") && !may_match("k_v*", "other", "v") && !may_match("k_vv*", "k", "v"));
    }
}
