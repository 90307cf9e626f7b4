//! The normal form of a path, in which patterns are written. Rules match paths and count by them in this form alone: a client
//! that could write `/login` as `/%6Cogin` would evade its limit. A path that servers read in several ways has a normal form
//! for [each reading](super::PathReadings).

use std::borrow::Cow;

use super::path_escape::{needs_no_escape, push_normalized, split_escape};

/// The path of `OPTIONS *`, which applies to the whole server.
pub const ASTERISK_PATH: &str = "*";

/// The normal form of a path after every dot segment is resolved and every empty segment removed; borrowed if only a query, a
/// fragment, a scheme or a host is removed.
///
/// - Query and fragment are removed, and scheme and host of `http://host/path`. `*` stays `*`.
/// - Escapes of characters that need none in a segment (letters, digits and `-._~!$&'()*+,;=:@`) are decoded. All other
///   escapes are kept, in upper case, so that `%2F` never separates segments. All other bytes are escaped, including a `%`
///   without two hexadecimal digits.
/// - Empty segments, `.` and the slash at the end are removed; `..` removes the segment before it, if there is one.
/// - It starts with a slash. Case is kept.
/// - The length is not bounded here: if a long path were truncated, a client could evade the limit of its last segments. Front
///   doors bound the length of requests.
pub fn normalize_path(path: &str) -> Cow<'_, str> {
    if is_plain(path) {
        return Cow::Borrowed(path);
    }
    let path = path_of_target(path);
    if path == ASTERISK_PATH || is_normal(path) {
        return Cow::Borrowed(path);
    }
    let mut normal = String::with_capacity(path.len() + 1);
    for segment in path.split('/') {
        let start = normal.len();
        normal.push('/');
        push_normalized(&mut normal, segment.as_bytes());
        match &normal[start + 1..] {
            "" | "." => normal.truncate(start),
            ".." => {
                normal.truncate(start);
                normal.truncate(normal.rfind('/').unwrap_or(0));
            }
            _ => {}
        }
    }
    if normal.is_empty() {
        normal.push('/');
    }
    Cow::Owned(normal)
}

/// The normal form of the escapes of one segment. Dots are not resolved.
pub fn normalize_path_segment(segment: &str) -> String {
    let mut normal = String::with_capacity(segment.len());
    push_normalized(&mut normal, segment.as_bytes());
    normal
}

/// The path without a query, a fragment, a scheme and a host.
pub(super) fn path_of_target(target: &str) -> &str {
    without_authority(&target[..target.find(['?', '#']).unwrap_or(target.len())])
}

/// The path after scheme and host, if it has them.
fn without_authority(path: &str) -> &str {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    match path.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => rest.find('/').map_or("/", |at| &rest[at..]),
        _ => path,
    }
}

/// A quick test that most paths pass: no query, no escapes, and no dot at the start of a segment. A path that passes is
/// normal, and has no other reading.
pub(crate) fn is_plain(path: &str) -> bool {
    let mut last = 0;
    for byte in path.bytes() {
        let fits = match byte {
            b'/' => last != b'/',
            b'.' => last != b'/' && last != 0,
            _ => last != 0 && (byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~')),
        };
        if !fits {
            return false;
        }
        last = byte;
    }
    last != 0 && (last != b'/' || path.len() == 1)
}

fn is_normal(path: &str) -> bool {
    let Some(relative) = path.strip_prefix('/') else {
        return false;
    };
    relative.is_empty() || relative.split('/').all(is_normal_segment)
}

fn is_normal_segment(segment: &str) -> bool {
    if matches!(segment, "" | "." | "..") {
        return false;
    }
    let mut bytes = segment.as_bytes();
    while let [first, rest @ ..] = bytes {
        bytes = match split_escape(bytes) {
            Some((value, after)) if !needs_no_escape(value) && !bytes[1..3].iter().any(u8::is_ascii_lowercase) => after,
            None if needs_no_escape(*first) => rest,
            _ => return false,
        };
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_spellings_of_a_path_have_one_normal_form() {
        for text in [
            "/api/login",
            "/api/login/",
            "//api///login",
            "/api/./login/.",
            "/api/x/../login",
            "/../api/login",
            "/api/x/%2e%2E/login",
            "/api/%2e/login",
            "/%61pi/%6C%6fgin",
            "/api/login?next=/",
            "/api/login#top",
            "/api/login?a#b",
            "api/login",
            "http://host/api/login",
            "HTTPS://user@host:1/api/login?x",
        ] {
            assert_eq!(normalize_path(text), "/api/login", "{text}");
        }
    }

    #[test]
    fn different_paths_stay_different() {
        for (text, expected) in [
            ("", "/"),
            ("/", "/"),
            ("///", "/"),
            ("/..", "/"),
            ("/a/..", "/"),
            ("*", "*"),
            ("*?x", "*"),
            ("/*", "/*"),
            ("?a", "/"),
            ("http://host", "/"),
            ("http://host?x=/a", "/"),
            ("/http://host/a", "/http:/host/a"),
            ("/a%2fb", "/a%2Fb"),
            ("/a/..%2fb", "/a/..%2Fb"),
            ("/a%252Fb", "/a%252Fb"),
            ("/A", "/A"),
            ("/...", "/..."),
            ("/café", "/caf%C3%A9"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a b", "/a%20b"),
            ("/a\u{0}\n\\{}", "/a%00%0A%5C%7B%7D"),
            ("/100%", "/100%25"),
            ("/%zz%4", "/%25zz%254"),
            ("/a@b:c;d=e,f", "/a@b:c;d=e,f"),
            ("/a%40b", "/a@b"),
            ("/a+b", "/a+b"),
        ] {
            assert_eq!(normalize_path(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_normal_path_is_not_copied() {
        for text in ["/", "/api/login", "/api/login?x=%zz", "/a%2Fb", "*", "http://host/api"] {
            assert!(matches!(normalize_path(text), Cow::Borrowed(_)), "{text}");
        }
    }

    /// Regression: a path was truncated after escaping, which triples some characters, and its limit did not apply.
    #[test]
    fn a_long_path_is_not_truncated() {
        for filling in ["a".repeat(100_000), "\"".repeat(3_000), "é".repeat(2_000), "/.".repeat(5_000)] {
            let path = normalize_path(&format!("/users/{filling}/login")).into_owned();
            assert!(path.ends_with("/login") && is_normal(&path));
        }
    }

    proptest! {
        #[test]
        fn normalizing_a_path_twice_changes_nothing(text in "[a.%/2eE5f?#*é: \\{+]{0,40}") {
            let once = normalize_path(&text).into_owned();
            prop_assert!(is_normal(&once) || once == "*", "{}", once);
            prop_assert_eq!(normalize_path(&once), &*once);
        }

        #[test]
        fn a_path_that_passes_the_quick_test_is_normal(text in "[a./~%?é-]{0,8}|(/[a.]{1,3}){0,4}") {
            prop_assert!(!is_plain(&text) || is_normal(&text), "{}", text);
        }

        #[test]
        fn escaping_every_letter_changes_nothing(path in "(/[a-z]{1,3}){1,4}") {
            let escaped: String = path.bytes().map(|b| if b == b'/' { "/".into() } else { format!("%{b:02x}") }).collect();
            prop_assert_eq!(normalize_path(&escaped), path);
        }
    }

    #[test]
    fn every_text_has_a_normal_form() {
        bolero::check!().with_type::<String>().for_each(|text| {
            let once = normalize_path(text).into_owned();
            assert!(once == "*" || is_normal(&once), "{once}");
            assert_eq!(normalize_path(&once), once);
        });
    }
}
