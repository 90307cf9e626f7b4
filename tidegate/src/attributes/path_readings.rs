//! `PathReadings`: the ways in which servers read one path. A server that decodes `%2F` reads `/api%2Flogin` as `/api/login`;
//! a limit for `/api/login` must count the request, whatever server is behind the limiter.

use std::borrow::Cow;

use super::canonical_path::{has_dot_segments, remove_dot_segments};
use super::path::{is_plain, path_of_target};
use super::path_escape::{decode, push_byte, split_escape};
use super::{ASTERISK_PATH, PathError, normalize_path};

/// The largest number of readings of a path. A path with more is refused: no client that means well writes one.
pub const MAX_READINGS: usize = 4;

/// The readings of a path, each in the normal form that patterns are written in, except that empty segments and dot segments
/// may be left. Most paths have one.
///
/// A path may be read in several ways if it has one of these. Each is read both ways, in every combination:
///
/// | in the path | is read as | and as |
/// |---|---|---|
/// | an escaped slash, `%2F` | a character of its segment | a slash |
/// | a backslash, or an escaped one (`%5C`) | a character of its segment | a slash |
/// | parameters, `/a;x=1/b` | a part of their segment | nothing: `/a/b` |
/// | empty segments, `/a//b` | segments without a name | nothing: `/a/b` |
/// | dot segments, `/a/../b`, which may be the result of the readings above | segments with this name | resolved: `/b` |
/// | escapes of escapes, `%252F` | as written | decoded once, twice, and so on |
///
/// ```
/// use tidegate::attributes::{PathError, PathReadings};
///
/// let readings = |path| PathReadings::new(path).map(|readings| readings.iter().map(str::to_owned).collect::<Vec<_>>());
/// assert_eq!(readings("/%61pi/login/")?, ["/api/login"]);
/// assert_eq!(readings("/api%2Flogin")?, ["/api%2Flogin", "/api/login"]);
/// assert_eq!(readings("/x%2F..%2Flogin")?, ["/x%2F..%2Flogin", "/x/../login", "/login"]);
/// assert_eq!(readings("/a;b%2F\\c"), Err(PathError::TooManyReadings));
/// # Ok::<(), PathError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReadings<'p> {
    as_written: Cow<'p, str>,
    others: Vec<String>,
}

/// The texts other than `/` that may separate segments.
#[derive(Clone, Copy)]
enum Separator {
    EscapedSlash,
    Backslash,
    EscapedBackslash,
}

impl<'p> PathReadings<'p> {
    /// The readings of a path, which may have a query, a fragment, a scheme and a host; these are removed.
    pub fn new(path: &'p str) -> Result<Self, PathError> {
        if is_plain(path) {
            return Ok(Self { as_written: Cow::Borrowed(path), others: Vec::new() });
        }
        let path = path_of_target(path);
        if path == ASTERISK_PATH || !may_be_ambiguous(path) {
            return Ok(Self { as_written: normalize_path(path), others: Vec::new() });
        }
        let mut readings = DistinctReadings(Vec::new());
        let mut text = path.as_bytes().to_vec();
        loop {
            readings.add_text(&text)?;
            let decoded = decode(&text);
            if decoded == text {
                break;
            }
            text = decoded;
        }
        let mut readings = readings.0.into_iter();
        Ok(Self { as_written: Cow::Owned(readings.next().unwrap_or_default()), others: readings.collect() })
    }

    /// The path as written, in its normal form.
    pub fn as_written(&self) -> &str {
        &self.as_written
    }

    /// Whether there is only one reading.
    pub const fn is_unique(&self) -> bool {
        self.others.is_empty()
    }

    /// All readings, each once, [as written](Self::as_written) first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        [self.as_written()].into_iter().chain(self.others.iter().map(String::as_str))
    }
}

/// Whether a path may have several readings. A path without them is not copied.
fn may_be_ambiguous(path: &str) -> bool {
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        // The slash at the end is not an empty segment.
        let is_empty = segment.is_empty() && segments.peek().is_some();
        if is_empty || matches!(segment, "." | "..") || segment.contains([';', '\\']) {
            return true;
        }
        // A percent sign that begins no escape may begin one after those behind it are decoded.
        let is_special = |value: u8| b"/\\;.%".contains(&value);
        let mut escapes = segment.match_indices('%').map(|(start, _)| split_escape(&segment.as_bytes()[start..]));
        if escapes.any(|escape| escape.is_none_or(|(value, _)| is_special(value))) {
            return true;
        }
    }
    false
}

/// Readings without repetitions, in the order in which they were found.
struct DistinctReadings(Vec<String>);

impl DistinctReadings {
    /// Adds the readings of a text of which no escapes are decoded but those of separators.
    fn add_text(&mut self, text: &[u8]) -> Result<(), PathError> {
        self.add_separated(text)?;
        // Some servers remove parameters before they decode slashes, others after it.
        if text.contains(&b';') { self.add_separated(&remove_parameters(text)) } else { Ok(()) }
    }

    /// Adds the readings of a text for every choice of separators.
    fn add_separated(&mut self, text: &[u8]) -> Result<(), PathError> {
        let present: Vec<_> = Separator::ALL.into_iter().filter(|separator| separator.is_in(text)).collect();
        for choice in 0..1_u32 << present.len() {
            let is_chosen = |(index, _): &(usize, &Separator)| choice >> index & 1 == 1;
            let chosen: Vec<_> =
                present.iter().enumerate().filter(is_chosen).map(|(_, separator)| *separator).collect();
            let path = normalize(text, &chosen);
            let without_parameters = path.contains(';').then(|| remove_parameters(path.as_bytes()));
            self.add_segments(path)?;
            if let Some(path) = without_parameters {
                self.add_segments(normalize(&path, &[]))?;
            }
        }
        Ok(())
    }

    /// Adds a path, and the same without its empty segments and dot segments. Servers differ in which of them they remove
    /// first: `/a//../b` is `/a/b` or `/b`.
    fn add_segments(&mut self, path: String) -> Result<(), PathError> {
        let mut others = Vec::new();
        let merged = path.contains("//").then(|| merge_slashes(&path));
        if has_dot_segments(&path) {
            let resolved = remove_dot_segments(&path);
            others.extend(merged.as_deref().map(remove_dot_segments));
            others.push(merge_slashes(&resolved));
            others.push(resolved);
        }
        others.extend(merged);
        self.add(path)?;
        others.into_iter().try_for_each(|other| self.add(other))
    }

    fn add(&mut self, mut path: String) -> Result<(), PathError> {
        if path.len() > 1 && path.ends_with('/') {
            path.pop();
        }
        if self.0.contains(&path) {
            return Ok(());
        }
        if self.0.len() == MAX_READINGS {
            return Err(PathError::TooManyReadings);
        }
        self.0.push(path);
        Ok(())
    }
}

/// The text with the escapes of the normal form, in which `separators` separate segments too. Starts with a slash.
fn normalize(text: &[u8], separators: &[Separator]) -> String {
    let mut normal = String::with_capacity(text.len() + 1);
    let mut bytes = text.strip_prefix(b"/").unwrap_or(text);
    normal.push('/');
    while let [first, rest @ ..] = bytes {
        let separator = separators.iter().find_map(|separator| separator.split_from(bytes));
        let slash = separator.or_else(|| (*first == b'/').then_some(rest));
        if let Some(after) = slash {
            normal.push('/');
            bytes = after;
        } else {
            let (value, after) = split_escape(bytes).unwrap_or((*first, rest));
            push_byte(&mut normal, value);
            bytes = after;
        }
    }
    normal
}

/// Removes what follows a semicolon within its segment.
fn remove_parameters(text: &[u8]) -> Vec<u8> {
    let mut is_parameter = false;
    let keep = |byte: &&u8| {
        is_parameter = **byte == b';' || (is_parameter && **byte != b'/');
        !is_parameter
    };
    text.iter().filter(keep).copied().collect()
}

/// Removes empty segments, and keeps the slash at the end.
fn merge_slashes(path: &str) -> String {
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    merged
}

// === impl Separator ===

impl Separator {
    const ALL: [Self; 3] = [Self::EscapedSlash, Self::Backslash, Self::EscapedBackslash];

    /// What follows the separator at the start of a text, if it is there.
    fn split_from(self, bytes: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Backslash => bytes.strip_prefix(b"\\"),
            Self::EscapedSlash => split_escape(bytes).filter(|(value, _)| *value == b'/').map(|(_, after)| after),
            Self::EscapedBackslash => split_escape(bytes).filter(|(value, _)| *value == b'\\').map(|(_, after)| after),
        }
    }

    fn is_in(self, text: &[u8]) -> bool {
        (0..text.len()).any(|start| self.split_from(&text[start..]).is_some())
    }
}

#[cfg(test)]
mod tests;
