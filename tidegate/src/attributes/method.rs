//! HTTP methods. They are case-sensitive (RFC 9110, section 9.1), but some servers read `post` as `POST`.

/// The methods of the IANA registry that clients send, and `PURGE`, which caches understand.
const KNOWN_METHODS: [&str; 41] = [
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// The known method that this is in other letters: `POST` for `post`. A rule for `POST` would not apply to it, while a server
/// may read it as `POST`, so a front end refuses it. `None` for a known method as it is written, and for unknown methods.
pub fn misspelled_method(method: &str) -> Option<&'static str> {
    if !method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return None;
    }
    KNOWN_METHODS.into_iter().find(|known| known.eq_ignore_ascii_case(method))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_method_in_other_letters_is_recognized() {
        for (method, known) in [("post", "POST"), ("Get", "GET"), ("OPTIONs", "OPTIONS"), ("propfind", "PROPFIND")] {
            assert_eq!(misspelled_method(method), Some(known), "{method}");
        }
        for method in ["POST", "GET", "PROPFIND", "Foo", "foo", "gett", "post ", ""] {
            assert_eq!(misspelled_method(method), None, "{method}");
        }
    }
}
