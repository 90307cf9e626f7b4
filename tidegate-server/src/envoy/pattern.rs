//! `Pattern`: text with `*` in it, each of which stands for any text, even none. Linear work, whatever is matched.

/// The pieces between the stars.
#[derive(Debug)]
pub(super) struct Pattern {
    first: String,
    between: Vec<String>,
    last: String,
}

impl Pattern {
    /// The pattern that is written like this; none without a star.
    pub(super) fn new(text: &str) -> Option<Self> {
        let (first, rest) = text.split_once('*')?;
        let (between, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let between = between.split('*').filter(|piece| !piece.is_empty()).map(str::to_owned).collect();
        Some(Self { first: first.to_owned(), between, last: last.to_owned() })
    }

    /// Whether `key_value` begins as the pattern says: most texts that do not match are told apart by it.
    pub(super) fn may_match(&self, key: &str, value: &str) -> bool {
        let first = self.first.as_bytes();
        let mut text = key.bytes().chain([b'_']).chain(value.bytes());
        first.iter().all(|byte| text.next() == Some(*byte))
    }

    /// Whether all of `text` is as the pattern says.
    pub(super) fn matches(&self, text: &str) -> bool {
        let rest = text.strip_prefix(self.first.as_str()).and_then(|rest| rest.strip_suffix(self.last.as_str()));
        let Some(mut rest) = rest else { return false };
        for piece in &self.between {
            // The first place of a piece leaves the most for those after it.
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
    fn a_star_stands_for_any_text_even_none() {
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
    fn what_begins_differently_cannot_match() {
        let begins = |pattern: &str, key: &str, value: &str| Pattern::new(pattern).unwrap().may_match(key, value);
        assert!(begins("k_v*", "k", "v1") && begins("*", "", "") && begins("k_*", "k", ""));
        assert!(!begins("k_v*", "k", "w") && !begins("k_v*", "other", "v") && !begins("k_vv*", "k", "v"));
    }
}
