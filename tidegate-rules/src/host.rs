//! The normal form of a host: lower case, no port, no dot at the end. It must be the same to rules that match it and to
//! rules that count by it.

use std::borrow::Cow;

/// The normal form of a `HostPattern` header or an authority; borrowed if it has it already.
pub(crate) fn normal(host: &str) -> Cow<'_, str> {
    let host = host.trim();
    let host = match host.rsplit_once(':') {
        Some((name, port)) if !name.ends_with(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    let lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
    if lower { Cow::Borrowed(host) } else { Cow::Owned(host.to_ascii_lowercase()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        for written in
            ["api.example.com", "API.example.com", "api.example.com:443", "api.example.com.", " api.example.com.:80"]
        {
            assert_eq!(normal(written), "api.example.com", "{written}");
        }
        assert_eq!(normal("[2001:DB8::1]:443"), "[2001:db8::1]");
        assert_eq!(normal("::1"), "::1");
        assert_eq!(normal(""), "");
    }
}
