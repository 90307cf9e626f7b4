//! The normal form of a host. Rules match hosts and count by them in this form alone.

use std::borrow::Cow;

/// The longest host name in bytes that can match a rule (RFC 1035, section 2.3.4).
pub const MAX_HOST_BYTES: usize = 253;

/// The normal form of the value of a `Host` header or of an authority; borrowed if only its start or end is removed.
///
/// - White space around it is removed.
/// - A port is removed: a colon and digits at the end, or a colon alone (RFC 3986, section 3.2.3: `port = *DIGIT`), after a
///   name without a colon or an address in brackets.
/// - One dot at the end is removed.
/// - ASCII letters become lower case. The brackets of an IPv6 address stay.
///
/// Everything else is kept and so matches no host of a rule: `a:b`, `a:1:2`, `a..`. Normalizing twice changes nothing.
pub fn normalize_host(host: &str) -> Cow<'_, str> {
    let host = host.trim();
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && has_no_port_or_space(name) => name,
        _ => host,
    };
    let host = host.strip_suffix('.').filter(|name| !name.ends_with('.') && has_no_port_or_space(name)).unwrap_or(host);
    let is_lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
    if is_lower { Cow::Borrowed(host) } else { Cow::Owned(host.to_ascii_lowercase()) }
}

/// The host and port of an authority, without its user information.
pub fn host_in_authority(authority: &str) -> &str {
    authority.rsplit('@').next().unwrap_or_default()
}

/// Whether `name` ends neither in a port nor in white space, which a second normalization would remove.
fn has_no_port_or_space(name: &str) -> bool {
    (name.ends_with(']') || !name.contains(':')) && !name.ends_with(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_spellings_of_a_host_have_one_normal_form() {
        for host in [
            "api.example.com",
            "API.example.com",
            "api.example.com:443",
            "api.example.com:",
            "api.example.com:99999",
            "api.example.com.",
            "Api.Example.Com.:80",
            " api.example.com.:80\t",
        ] {
            assert_eq!(normalize_host(host), "api.example.com", "{host:?}");
        }
    }

    #[test]
    fn addresses_lose_only_their_port_and_invalid_hosts_are_kept() {
        for (host, expected) in [
            ("[2001:DB8::1]:443", "[2001:db8::1]"),
            ("[2001:db8::1]:", "[2001:db8::1]"),
            ("[::1]", "[::1]"),
            ("[::1].", "[::1]"),
            ("203.0.113.9:80", "203.0.113.9"),
            ("localhost", "localhost"),
            ("", ""),
            (":80", ""),
            (".", ""),
            ("::1", "::1"),
            ("a:b", "a:b"),
            ("A:http", "a:http"),
            ("a:-80", "a:-80"),
            ("a:+80", "a:+80"),
            ("a: 80", "a: 80"),
            ("a :80", "a :80"),
            ("a:80:80", "a:80:80"),
            ("a:b:80", "a:b:80"),
            ("a::80", "a::80"),
            ("a:80.", "a:80."),
            ("a..", "a.."),
            ("a..:80", "a.."),
            ("a:٣", "a:٣"),
            ("a, b:80", "a, b"),
            ("a:80, b:80", "a:80, b:80"),
            ("me@a:80", "me@a"),
            ("http://a", "http://a"),
            ("É.example", "É.example"),
        ] {
            assert_eq!(normalize_host(host), expected, "{host:?}");
        }
    }

    #[test]
    fn user_information_is_removed_from_an_authority() {
        for (authority, expected) in
            [("a:80", "a:80"), ("me@a:80", "a:80"), ("me:secret@a", "a"), ("x@y@a", "a"), ("", "")]
        {
            assert_eq!(host_in_authority(authority), expected, "{authority}");
        }
    }

    proptest! {
        /// A front end and the rules may both normalize a host.
        #[test]
        fn normalizing_a_host_twice_changes_nothing(host in "[aB1:.\\[\\] é@,-]{0,12}") {
            let once = normalize_host(&host).into_owned();
            prop_assert_eq!(normalize_host(&once), &*once);
        }

        #[test]
        fn a_port_does_not_change_a_host(name in "[a-z0-9-]{1,8}(\\.[a-z0-9-]{1,8}){0,2}", port in "[0-9]{0,6}") {
            let with_port = format!("{name}:{port}");
            prop_assert_eq!(normalize_host(&with_port), &*name);
        }
    }
}
