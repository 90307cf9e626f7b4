//! Attribute names, and which of them are reserved for front ends.

/// The HTTP method, in its own case.
pub const METHOD: &str = "method";
/// The path of the request target, without its query.
pub const PATH: &str = "path";
/// The query string as it was sent, without the `?`.
pub const QUERY: &str = "query";
/// The requested host; see [`normalize_host`](super::normalize_host).
pub const HOST: &str = "host";
/// The address of the TCP peer.
pub const IP: &str = "ip";
/// The text of the body.
pub const BODY: &str = "body";
/// The size of the body in bytes, in decimal digits. Missing if the front end does not know it; `0` without a body.
pub const SIZE: &str = "request:size";
/// The tenant. Not reserved: the application sets it.
pub const TENANT: &str = "tenant";
/// The plan, which selects the limit of a rule that has several. Not reserved: the application sets it.
pub const PLAN: &str = "plan";

/// The prefix of the attribute names of headers.
pub const HEADER_PREFIX: &str = "header:";
/// The attribute of the `Host` header.
pub const HOST_HEADER: &str = "header:host";
/// The attribute of the `Cookie` header.
pub const COOKIE_HEADER: &str = "header:cookie";
/// The attribute of the `Accept` header.
pub const ACCEPT_HEADER: &str = "header:accept";
/// The attribute of the `Content-Length` header.
pub const CONTENT_LENGTH_HEADER: &str = "header:content-length";

/// Names without a colon that only a front end sets.
const RESERVED: [&str; 6] = [METHOD, PATH, QUERY, HOST, IP, BODY];

/// Whether only a front end may set this attribute. Such an attribute describes the request itself, so an application
/// cannot set it and thereby pass for another address or header. All names with a colon are reserved.
pub fn is_reserved(name: &str) -> bool {
    name.contains(':') || RESERVED.contains(&name)
}

/// The attribute name of a header: `header:` and the header's name in lower case.
pub fn header_attribute(header: &str) -> String {
    let mut attribute = String::with_capacity(HEADER_PREFIX.len() + header.len());
    attribute.push_str(HEADER_PREFIX);
    attribute.push_str(header);
    attribute.make_ascii_lowercase();
    attribute
}

/// The header name in the attribute name of a header; `None` for other attributes.
pub fn header_name(attribute: &str) -> Option<&str> {
    attribute.strip_prefix(HEADER_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_only_front_doors_set_are_reserved() {
        for name in
            ["method", "path", "query", "host", "ip", "body", "header:x-key", "cookie:id", "request:size", ":", "x:y"]
        {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["tenant", "plan", "user", "header", "cookie", "action", "Host", ""] {
            assert!(!is_reserved(name), "{name}");
        }
    }

    #[test]
    fn the_attribute_of_a_header_does_not_depend_on_case() {
        for name in ["x-api-key", "X-Api-Key", "X-API-KEY"] {
            assert_eq!(header_attribute(name), "header:x-api-key");
        }
        for (name, attribute) in [
            ("Host", HOST_HEADER),
            ("Cookie", COOKIE_HEADER),
            ("Accept", ACCEPT_HEADER),
            ("Content-Length", CONTENT_LENGTH_HEADER),
        ] {
            assert_eq!(header_attribute(name), attribute);
        }
        assert_eq!(header_name("header:x-api-key"), Some("x-api-key"));
        assert_eq!(header_name("x-api-key"), None);
    }
}
