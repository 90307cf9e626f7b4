//! The canonical path: what a gateway decides on and forwards. Dot segments are resolved, everything else stays as written.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use super::path_escape::split_escape;
use super::path_readings::MAX_READINGS;

/// What a gateway does with escaped slashes in paths: `%2F`, and `%252F` and so on, which some servers decode twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EscapedSlashes {
    /// Forwards them as written. The path counts as written and as decoded.
    #[default]
    Both,
    /// Refuses the request.
    Reject,
    /// Decodes them, and forwards the decoded path. A front end that cannot change the request treats this as `Both`.
    Decode,
}

/// Why a path is refused. The text is the message of a 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathError {
    /// It has more than [four readings](super::PathReadings).
    TooManyReadings,
    /// It has an escaped slash, which the rules [reject](EscapedSlashes::Reject).
    EscapedSlash,
    /// It is `*`, and the method is not `OPTIONS`.
    Asterisk,
}

/// The path as a gateway decides on and forwards it; borrowed if that is how it was written.
///
/// - Dot segments are resolved (RFC 3986, section 5.2.4), those with escaped dots (`%2e`) too.
/// - Escaped slashes are kept, decoded or refused.
/// - Everything else stays as written: empty segments, escapes, parameters, and the slash at the end.
///
/// ```
/// use tidegate::attributes::{EscapedSlashes, canonical_path};
///
/// let canonical = |path| canonical_path(path, EscapedSlashes::Both).unwrap();
/// assert_eq!(canonical("/files/../%2e/login"), "/login");
/// assert_eq!(canonical("/fetch/https://x"), "/fetch/https://x");
/// assert_eq!(canonical("/projects/group%2Fname"), "/projects/group%2Fname");
/// ```
///
/// `path` is a path alone, without a query.
pub fn canonical_path(path: &str, escaped_slashes: EscapedSlashes) -> Result<Cow<'_, str>, PathError> {
    // Most paths have neither an escape nor a segment that starts with a dot.
    if !path.contains('%') && !path.contains("/.") {
        return Ok(Cow::Borrowed(path));
    }
    escaped_slashes.validate(path)?;
    let path = match escaped_slashes {
        EscapedSlashes::Decode => decode_slashes(path),
        EscapedSlashes::Both | EscapedSlashes::Reject => Cow::Borrowed(path),
    };
    Ok(if has_dot_segments(&path) { Cow::Owned(remove_dot_segments(&path)) } else { path })
}

impl EscapedSlashes {
    /// Fails if the path has an escaped slash and these are rejected.
    pub fn validate(self, path: &str) -> Result<(), PathError> {
        match self {
            Self::Reject if matches!(decode_slashes(path), Cow::Owned(_)) => Err(PathError::EscapedSlash),
            _ => Ok(()),
        }
    }
}

/// Resolves dot segments. Empty segments count as segments.
pub(super) fn remove_dot_segments(path: &str) -> String {
    let relative = path.strip_prefix('/').unwrap_or(path);
    let mut resolved = String::with_capacity(path.len());
    let mut segments = relative.split('/').peekable();
    while let Some(segment) = segments.next() {
        let dots = count_dots(segment);
        match dots {
            1 => {}
            2 => resolved.truncate(resolved.rfind('/').unwrap_or(0)),
            _ => {
                resolved.push('/');
                resolved.push_str(segment);
            }
        }
        // `/a/b/..` is `/a/`.
        if segments.peek().is_none() && matches!(dots, 1 | 2) {
            resolved.push('/');
        }
    }
    resolved
}

pub(super) fn has_dot_segments(path: &str) -> bool {
    path.split('/').any(|segment| matches!(count_dots(segment), 1 | 2))
}

/// The number of dots in a segment that consists of nothing else; 0 for other segments.
fn count_dots(segment: &str) -> usize {
    let (mut bytes, mut dots) = (segment.as_bytes(), 0);
    while let [first, rest @ ..] = bytes {
        let (value, after) = split_escape(bytes).unwrap_or((*first, rest));
        if value != b'.' {
            return 0;
        }
        (bytes, dots) = (after, dots + 1);
    }
    dots
}

/// Decodes slashes that are escaped once or several times; borrowed if there are none.
fn decode_slashes(path: &str) -> Cow<'_, str> {
    let mut decoded = String::new();
    let mut written = 0;
    for (start, _) in path.match_indices('%') {
        let mut rest = &path[start + 1..];
        while let Some(after) = rest.strip_prefix("25") {
            rest = after;
        }
        if let Some(after) = rest.strip_prefix("2F").or_else(|| rest.strip_prefix("2f")) {
            decoded.push_str(&path[written..start]);
            decoded.push('/');
            written = path.len() - after.len();
        }
    }
    if written == 0 {
        return Cow::Borrowed(path);
    }
    decoded.push_str(&path[written..]);
    Cow::Owned(decoded)
}

impl PathError {
    /// The text, which contains nothing of the request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooManyReadings => "The path can be read in more than four ways. Write it without escapes.",
            Self::EscapedSlash => "The path has an escaped slash, which is not allowed here.",
            Self::Asterisk => "The target * is for the method OPTIONS alone.",
        }
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error for PathError {}

const _: () = assert!(MAX_READINGS == 4, "`PathError::as_str` says four");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(path: &str) -> Cow<'_, str> {
        canonical_path(path, EscapedSlashes::Both).unwrap()
    }

    #[test]
    fn dot_segments_are_resolved_and_nothing_else_changes() {
        for (path, expected) in [
            ("/a/b/c/./../../g", "/a/g"),
            ("/a/../x", "/x"),
            ("/..", "/"),
            ("/../../a", "/a"),
            ("/.", "/"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/a/./b", "/a/b"),
            ("/a/%2e%2E/x", "/x"),
            ("/a/.%2e/x", "/x"),
            ("/a/%2e/x", "/a/x"),
            ("/api/files/big/../../../healthz", "/healthz"),
            // An empty segment is a segment.
            ("/a//../b", "/a/b"),
            ("//a/..", "//"),
            ("/..//a", "//a"),
        ] {
            assert_eq!(canonical(path), expected, "{path}");
        }
    }

    #[test]
    fn a_path_without_dot_segments_is_forwarded_as_written() {
        for path in [
            "/",
            "",
            "*",
            "//",
            "/fetch/https://x",
            "/projects/group%2Fname",
            "/projects/group%2fname",
            "/a%252Fb",
            "/a;x=1/b",
            "/a\\b%5c",
            "/.well-known/x",
            "/...",
            "/%2e%2e%2e",
            "/a..",
            "/..;/a",
            "/a%2F..%2Fb",
            "/a%252e%252e",
            "/%61%zz%",
            "/caf\u{e9}/",
        ] {
            assert!(matches!(canonical(path), Cow::Borrowed(same) if same == path), "{path}");
        }
    }

    #[test]
    fn escaped_slashes_can_be_refused_or_decoded() {
        let reject = |path| canonical_path(path, EscapedSlashes::Reject);
        for path in ["/a%2Fb", "/a%2fb", "/a%252Fb", "/a%25252f", "/a/..%2Fb", "/%25%2F"] {
            assert_eq!(reject(path), Err(PathError::EscapedSlash), "{path}");
        }
        for path in ["/a/b", "/a%20b", "/a%25b", "/a%5Cb", "/a%252", "/%2"] {
            assert_eq!(reject(path).unwrap(), path);
        }
        for (path, expected) in [
            ("/a%2Fb%2fc", "/a/b/c"),
            ("/a%252Fb%25252f", "/a/b/"),
            ("/x%2F..%2Flogin", "/login"),
            ("/x%2F%2e%2e/login", "/login"),
            ("/%2Flogin", "//login"),
            ("/%25%2Fx", "/%25/x"),
            ("/a%5Cb", "/a%5Cb"),
            ("/a%20b", "/a%20b"),
        ] {
            assert_eq!(canonical_path(path, EscapedSlashes::Decode).unwrap(), expected, "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_canonical_path_is_its_own_canonical_path(path in "/[a.%/2eE5fF;\\\\]{0,24}") {
            for escaped_slashes in [EscapedSlashes::Both, EscapedSlashes::Decode] {
                let once = canonical_path(&path, escaped_slashes).unwrap().into_owned();
                prop_assert!(once.starts_with('/') && !has_dot_segments(&once), "{}", once);
                prop_assert_eq!(canonical_path(&once, escaped_slashes).unwrap(), &*once);
                if escaped_slashes == EscapedSlashes::Decode {
                    prop_assert!(EscapedSlashes::Reject.validate(&once).is_ok(), "{}", once);
                }
            }
        }
    }

    #[test]
    fn no_path_panics() {
        bolero::check!().with_type::<String>().for_each(|text| {
            for escaped_slashes in [EscapedSlashes::Both, EscapedSlashes::Reject, EscapedSlashes::Decode] {
                if let Ok(path) = canonical_path(text, escaped_slashes) {
                    assert_eq!(canonical_path(&path, escaped_slashes).as_deref(), Ok(&*path));
                }
            }
        });
    }
}
