//! Path patterns: what rules match the normal form of a path with. Pure.

use std::fmt;

use smol_str::SmolStr;
use tidegate::attributes::{ASTERISK_PATH, normalize_path, normalize_path_segment};

/// The longest path pattern.
const MAX_PATTERN_BYTES: usize = 8 * 1024;

/// The most segments of a pattern; bounds the depth of the [path tree](crate::path_tree).
const MAX_SEGMENTS: usize = 64;

/// A pattern for paths: literal segments, `{name}` for any one segment, a final `*` for everything below.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPattern {
    written: SmolStr,
    segments: Vec<Segment>,
}

/// What a segment of a path must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// This text, in its normal form.
    Literal(SmolStr),
    /// Any one segment.
    Any,
    /// One or more segments. As the only segment, it matches every path, the root included.
    Rest,
}

/// Why a text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathPatternError {
    /// Where in the text, in bytes.
    pub(crate) offset: usize,
    /// What is wrong.
    pub(crate) problem: String,
    /// What to write instead, if known.
    pub(crate) help: Option<String>,
}

/// The segments of a path, each after a slash. The root has none.
pub(crate) fn segments(path: &str) -> &str {
    if path == "/" { "" } else { path }
}

/// The first of the [`segments`] of a path, and those below it; `None` if there are none. A segment may be empty.
pub(crate) fn first_segment(segments: &str) -> Option<(&str, &str)> {
    let segments = segments.strip_prefix('/')?;
    Some(segments.split_at(segments.find('/').unwrap_or(segments.len())))
}

/// Whether this normal path names no resource, so that only a pattern for every path matches it.
pub(crate) fn is_asterisk(path: &str) -> bool {
    path == ASTERISK_PATH
}

impl PathPattern {
    /// Parses a pattern; one that could never match is an error.
    pub(crate) fn parse(text: &str) -> Result<Self, PathPatternError> {
        if text == ASTERISK_PATH {
            return Ok(Self { written: text.into(), segments: vec![Segment::Rest] });
        }
        check_whole(text)?;
        let mut segments = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        let mut offset = 1;
        for part in text[1..].split('/') {
            let end = offset + part.len();
            match part {
                // The root has no segments.
                "" if text == "/" => {}
                "*" if end == text.len() => segments.push(Segment::Rest),
                _ if part.contains(['{', '}']) => {
                    let name = name(part, offset)?;
                    if names.contains(&name) {
                        let help = "give each its own name".to_owned();
                        return Err(PathPatternError::new(offset, format!("{{{name}}} is used twice"), Some(help)));
                    }
                    names.push(name);
                    segments.push(Segment::Any);
                }
                _ => segments.push(literal(text, part, offset)?),
            }
            offset = end + 1;
        }
        Ok(Self { written: text.into(), segments })
    }

    /// The segments, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether it matches every path.
    pub(crate) fn is_everything(&self) -> bool {
        self.segments == [Segment::Rest]
    }

    /// Whether it matches a path, which must be in a normal form: one of its [readings](tidegate::attributes::PathReadings).
    pub fn matches(&self, normal_path: &str) -> bool {
        if self.is_everything() {
            return true;
        }
        if is_asterisk(normal_path) {
            return false;
        }
        let mut path = segments(normal_path);
        for segment in &self.segments {
            let Some((first, below)) = first_segment(path) else {
                return false;
            };
            match segment {
                Segment::Rest => return true,
                Segment::Literal(literal) if literal != first => return false,
                Segment::Literal(_) | Segment::Any => path = below,
            }
        }
        first_segment(path).is_none()
    }

    /// Whether it matches every path that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        if self.is_everything() || other.is_everything() {
            return self.is_everything();
        }
        let mut others = other.segments.iter();
        for segment in &self.segments {
            match (segment, others.next()) {
                (Segment::Rest, Some(_)) => return true,
                (Segment::Any, Some(Segment::Literal(_) | Segment::Any)) => {}
                (Segment::Literal(literal), Some(Segment::Literal(other))) if literal == other => {}
                _ => return false,
            }
        }
        others.next().is_none()
    }

    /// A path that it matches.
    pub(crate) fn example(&self) -> String {
        if self.is_everything() || self.segments.is_empty() {
            return "/".into();
        }
        let parts = self.segments.iter().map(|segment| match segment {
            Segment::Literal(literal) => literal,
            Segment::Any | Segment::Rest => "x",
        });
        parts.flat_map(|part| ["/", part]).collect()
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl PathPatternError {
    fn new(offset: usize, problem: impl Into<String>, help: Option<String>) -> Self {
        Self { offset, problem: problem.into(), help }
    }
}

/// Checks a pattern before it is split into segments.
fn check_whole(text: &str) -> Result<(), PathPatternError> {
    if let Some(offset) = text.find(['?', '#']) {
        let help = "only paths are matched; remove it and the rest".to_owned();
        return Err(PathPatternError::new(offset, "a path pattern cannot have a query or fragment", Some(help)));
    }
    if text.len() > MAX_PATTERN_BYTES || text.split('/').count() > MAX_SEGMENTS + 1 {
        let problem = format!("a path pattern can have at most {MAX_SEGMENTS} segments and {MAX_PATTERN_BYTES} bytes");
        return Err(PathPatternError::new(0, problem, Some("end it earlier, with /*".to_owned())));
    }
    if !text.starts_with('/') {
        let problem = "a path pattern starts with a slash, or is * for every path";
        let help = if text.starts_with('*') { "write * alone".into() } else { format!("write {}", rewritten(text)) };
        return Err(PathPatternError::new(0, problem, Some(help)));
    }
    Ok(())
}

/// The name in a segment such as `{name}`.
fn name(part: &str, offset: usize) -> Result<&str, PathPatternError> {
    let error = |problem: &str, help: &str| Err(PathPatternError::new(offset, problem, Some(help.to_owned())));
    let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else {
        return match (part.find('{'), part.find('}')) {
            (Some(open), Some(close)) if open < close => {
                error("braces must enclose a whole segment, not a part of it", "write {name} between slashes")
            }
            (Some(_), _) => error("a brace is not closed within its segment", "write {name}"),
            _ => error("a closing brace has no opening one", "write {name}, or %7D for the character"),
        };
    };
    if name.is_empty() {
        return error("the braces are empty", "name the segment, as in {id}");
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)) {
        return error(
            "a name consists of letters, digits, _ and -",
            "write {id} for any one segment, * at the end for all",
        );
    }
    Ok(name)
}

/// A literal segment.
fn literal(text: &str, part: &str, offset: usize) -> Result<Segment, PathPatternError> {
    let error = |problem: &str| {
        let help = format!("write {}", rewritten(text));
        Err(PathPatternError::new(offset, problem, Some(help)))
    };
    if let Some(at) = part.find('*') {
        let help = "write {name} for any one segment".to_owned();
        return Err(PathPatternError::new(offset + at, "* must be alone after the last slash", Some(help)));
    }
    let normal = normalize_path_segment(part);
    match normal.as_str() {
        "" if offset == text.len() => error("paths are matched without the slash at their end"),
        "" => error("a pattern has no empty segments; a path with some is matched without them too"),
        "." | ".." => error("a pattern has no dot segments; a path with some is matched after they are resolved too"),
        _ if normal != part => error("paths are matched in their normal form, which this is not"),
        _ => Ok(Segment::Literal(normal.into())),
    }
}

/// A pattern in the normal form that paths have.
fn rewritten(text: &str) -> String {
    normalize_path(text).replace("%7B", "{").replace("%7D", "}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> PathPattern {
        PathPattern::parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"))
    }

    #[test]
    fn a_pattern_matches_the_end_of_a_long_path() {
        let pattern = pattern("/users/{id}/login");
        assert!(pattern.matches(&normalize_path(&format!("/users/{}/login", "\"".repeat(3_000)))));
    }

    #[test]
    fn patterns_match_the_expected_paths() {
        for (text, matcher, others) in [
            ("/", &["/"][..], &["/a", "*"][..]),
            ("/a/b", &["/a/b"], &["/a", "/a/b/c", "/a/B", "/", "/a/b/", "/a//b", "//a/b", "/a/./b"]),
            ("/a/{id}", &["/a/1", "/a/%2F"], &["/a", "/a/1/2", "/b/1"]),
            ("/a/*", &["/a/b", "/a/b/c", "/a/", "/a//b", "/a/../b"], &["/a", "/ab", "/", "//a/b"]),
            ("/{x}/*", &["/a/b", "/a/b/c", "//a"], &["/a", "/", "*"]),
            ("/*", &["/", "/a", "/a/b", "*"], &[]),
            ("*", &["/", "/a", "/a/b", "*"], &[]),
        ] {
            let pattern = pattern(text);
            assert!(matcher.iter().all(|path| pattern.matches(path)), "{text}");
            assert!(!others.iter().any(|path| pattern.matches(path)), "{text}");
            assert_eq!(pattern.to_string(), text);
        }
    }

    #[test]
    fn the_error_of_an_invalid_pattern_names_a_valid_one() {
        for (text, offset, problem, help) in [
            ("", 0, "starts with a slash", "write /"),
            ("api/x", 0, "starts with a slash", "write /api/x"),
            ("/a?x=1", 2, "cannot have a query", "remove it and the rest"),
            ("/a#b", 2, "fragment", "remove it"),
            ("/x-{id}", 1, "not a part of it", "between slashes"),
            ("/a/{id}x", 3, "not a part of it", "between slashes"),
            ("/a/{id", 3, "not closed", "{name}"),
            ("/a/{i/d}", 3, "not closed", "{name}"),
            ("/a/id}", 3, "no opening one", "%7D"),
            ("/a/{}", 3, "empty", "{id}"),
            ("/a/{i d}", 3, "letters, digits", "{id}"),
            ("/a/{*rest}", 3, "letters, digits", "* at the end"),
            ("/{id}/{id}", 6, "{id} is used twice", "its own name"),
            ("/a/*/b", 3, "* must be alone", "{name}"),
            ("/a/b*", 4, "* must be alone", "{name}"),
            ("**", 0, "starts with a slash", "write * alone"),
            ("//a", 1, "no empty segments", "write /a"),
            ("/a//b", 3, "no empty segments", "write /a/b"),
            ("/a/", 3, "slash at their end", "write /a"),
            ("/a/../{b}", 3, "no dot segments", "write /{b}"),
            ("/a/%2e", 3, "no dot segments", "write /a"),
            ("/%61", 1, "normal form", "write /a"),
            ("/caf\u{e9}/{x}", 1, "normal form", "write /caf%C3%A9/{x}"),
            ("/a%2fb", 1, "normal form", "write /a%2Fb"),
            ("/a b", 1, "normal form", "write /a%20b"),
        ] {
            let error = PathPattern::parse(text).unwrap_err();
            assert_eq!(error.offset, offset, "{text}: {error:?}");
            assert!(error.problem.contains(problem), "{text}: {error:?}");
            assert!(error.help.as_ref().unwrap().contains(help), "{text}: {error:?}");
        }
        assert!(PathPattern::parse(&"/a".repeat(MAX_SEGMENTS)).is_ok());
        assert!(PathPattern::parse(&"/a".repeat(MAX_SEGMENTS + 1)).unwrap_err().problem.contains("at most 64"));
        assert!(PathPattern::parse(&format!("/{}", "a".repeat(MAX_PATTERN_BYTES))).is_err());
    }

    #[test]
    fn a_wider_pattern_covers_a_narrower_one() {
        for (wide, narrow) in [
            ("*", "/"),
            ("/*", "*"),
            ("/a/*", "/a/*"),
            ("/a/*", "/a/{x}"),
            ("/a/*", "/a/b/*"),
            ("/{x}", "/a"),
            ("/{x}/*", "/a/*"),
            ("/{x}", "/{y}"),
        ] {
            assert!(pattern(wide).covers(&pattern(narrow)), "{wide} {narrow}");
        }
        for (one, other) in
            [("/a", "/{x}"), ("/a/*", "/a"), ("/{x}", "/a/b"), ("/{x}", "/*"), ("/{x}/{y}", "/a/*"), ("/", "*")]
        {
            assert!(!pattern(one).covers(&pattern(other)), "{one} {other}");
        }
    }

    /// Paths that match this pattern, and others only if they cover it: `{name}` is replaced by segments that no pattern has.
    fn witnesses(pattern: &PathPattern) -> Vec<String> {
        if pattern.is_everything() {
            return ["*", "/", "/fresh", "/fresh/fresh/fresh/fresh/fresh"].map(String::from).to_vec();
        }
        ["fresh", "fresh/fresh"]
            .map(|rest| {
                let parts = pattern.segments().iter().map(|segment| match segment {
                    Segment::Literal(literal) => literal,
                    Segment::Any => "fresh",
                    Segment::Rest => rest,
                });
                normalize_path(&parts.flat_map(|part| ["/", part]).collect::<String>()).into_owned()
            })
            .to_vec()
    }

    const PATTERN: &str = "(/(a|b|\\{x\\})){0,1}(/(a|b|\\{y\\})){0,1}(/(a|b|\\{z\\}|\\*))";

    proptest! {
        #[test]
        fn a_pattern_covers_another_exactly_if_it_matches_all_its_paths(one in PATTERN, other in PATTERN) {
            let (one, other) = (pattern(&one), pattern(&other));
            prop_assert_eq!(one.covers(&other), witnesses(&other).iter().all(|path| one.matches(path)));
        }

        #[test]
        fn a_pattern_matches_its_example_and_covers_itself(text in PATTERN) {
            let pattern = pattern(&text);
            prop_assert!(pattern.matches(&normalize_path(&pattern.example())));
            prop_assert!(normalize_path(&pattern.example()) == pattern.example() && pattern.covers(&pattern));
        }

        #[test]
        fn no_pattern_of_typical_characters_panics(text in "[ab.%/2e?#*é\\{\\}]{0,20}") {
            match PathPattern::parse(&text) {
                Ok(pattern) => prop_assert!(pattern.matches(&pattern.example())),
                Err(error) => prop_assert!(text.is_char_boundary(error.offset)),
            }
        }
    }

    #[test]
    fn no_text_panics() {
        bolero::check!().with_type::<String>().for_each(|text| {
            // A path that is a valid pattern matches itself.
            if let Ok(pattern) = PathPattern::parse(text) {
                assert!(pattern.matches(&pattern.example()));
            }
        });
    }
}
