//! Header names, and how several lines of one header become one value.

use std::borrow::Cow;

use super::bytes_to_text;

/// Whether a header can have this name (RFC 9110, section 5.1: a token).
pub fn is_header_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// Headers whose lines are one list for every server.
const LIST_HEADERS: [&str; 5] = ["x-forwarded-for", "forwarded", "via", "cookie", "accept"];

/// Whether several lines of this header are one list for every server: `X-Forwarded-For`, `Forwarded`, `Via`, `Cookie`, `Accept` and
/// `Accept-*`. Of any other header that comes twice, some servers read the first line, some the last, and some both.
pub fn is_list_header(name: &str) -> bool {
    let begins_with_accept = name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("accept-"));
    begins_with_accept || LIST_HEADERS.iter().any(|list| name.eq_ignore_ascii_case(list))
}

/// All lines of the header `name` as one value, in their order and as [text](bytes_to_text); `None` if there is no line.
///
/// Lines are joined with `, ` (RFC 9110, section 5.3), those of `Cookie` with `; ` (RFC 9113, section 8.2.3). Every line
/// counts. If only the first counted, a client could hide the line of a proxy behind its own; if only the last, the reverse.
/// [Attributes](super::RequestAttributes::add_header) join the lines of [lists](is_list_header) only.
pub fn join_header_lines<'a>(name: &str, lines: impl IntoIterator<Item = &'a [u8]>) -> Option<Cow<'a, str>> {
    let mut lines = lines.into_iter().map(bytes_to_text);
    let mut value = lines.next()?;
    for line in lines {
        let value = value.to_mut();
        value.push_str(if name.eq_ignore_ascii_case("cookie") { "; " } else { ", " });
        value.push_str(&line);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_header_are_joined_in_their_order() {
        let join = |name: &str, lines: &[&'static str]| {
            join_header_lines(name, lines.iter().map(|line| line.as_bytes())).map(Cow::into_owned)
        };
        for (name, lines, expected) in [
            ("x-key", &[][..], None),
            ("x-key", &["a"], Some("a")),
            ("x-key", &["a", "b", "a"], Some("a, b, a")),
            ("x-key", &["", ""], Some(", ")),
            ("cookie", &["a=1", "b=2"], Some("a=1; b=2")),
            ("Cookie", &["a=1", "b=2"], Some("a=1; b=2")),
            ("set-cookie", &["a=1", "b=2"], Some("a=1, b=2")),
        ] {
            assert_eq!(join(name, lines).as_deref(), expected, "{name} {lines:?}");
        }
    }

    #[test]
    fn only_headers_that_every_server_joins_are_lists() {
        for name in ["X-Forwarded-For", "forwarded", "Via", "cookie", "Accept", "accept-language", "Accept-Encoding"] {
            assert!(is_list_header(name), "{name}");
        }
        for name in ["x-api-key", "authorization", "acceptance", "accepté", "host", "x-real-ip", ""] {
            assert!(!is_list_header(name), "{name}");
        }
    }

    #[test]
    fn a_single_line_is_not_copied() {
        assert!(matches!(join_header_lines("x-key", [&b"a"[..]]), Some(Cow::Borrowed("a"))));
    }

    #[test]
    fn a_header_name_is_a_token() {
        for name in ["x-key", "X_Key", "!#$%&'*+-.^_`|~", "0"] {
            assert!(is_header_name(name), "{name}");
        }
        for name in ["", "x key", "x:key", "x\nkey", "x(key)", "é"] {
            assert!(!is_header_name(name), "{name}");
        }
    }
}
