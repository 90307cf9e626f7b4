//! Values of query parameters and cookies.
//!
//! Accepts any text: an invalid query or cookie has no value.

/// The first parameter of this name in a query or a form (`application/x-www-form-urlencoded`), decoded.
///
/// `+` is a space. An invalid escape stays as it is, invalid UTF-8 becomes the replacement character, and a name without `=`
/// has an empty value.
pub(crate) fn query_parameter(query: &str, name: &str) -> Option<String> {
    let query = query.strip_prefix('?').unwrap_or(query);
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find_map(|(key, value)| (key == name).then(|| value.into_owned()))
}

/// The first cookie of this name in a `Cookie` header, without quotes around its value.
pub(crate) fn cookie(header: &str, name: &str) -> Option<String> {
    header.split(';').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let value = value.trim();
        let bare = value.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or(value);
        (key.trim() == name).then(|| bare.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parameters_are_decoded_and_the_first_wins() {
        for (query, expected) in [
            ("key=a", Some("a")),
            ("?key=a", Some("a")),
            ("x=1&key=a&key=b", Some("a")),
            ("key=", Some("")),
            ("key", Some("")),
            ("key=a=b", Some("a=b")),
            ("key=a+b%20c%2B", Some("a b c+")),
            ("key=caf%C3%a9", Some("café")),
            ("key=café", Some("café")),
            ("%6Bey=a", Some("a")),
            ("key=100%&b", Some("100%")),
            ("key=%zz%2", Some("%zz%2")),
            ("key=%2%41", Some("%2A")),
            ("key=%ff", Some("\u{fffd}")),
            ("&&key=a&", Some("a")),
            ("", None),
            ("Key=a", None),
            ("keys=a", None),
            ("x=key", None),
        ] {
            assert_eq!(query_parameter(query, "key").as_deref(), expected, "{query}");
        }
        assert_eq!(query_parameter("a+b=c", "a b").as_deref(), Some("c"));
        assert_eq!(query_parameter("&&", ""), None);
    }

    #[test]
    fn cookies_are_not_decoded_and_the_first_of_a_name_wins() {
        for (header, expected) in [
            ("id=a", Some("a")),
            ("x=1; id=a; id=b", Some("a")),
            ("x=1;id=a", Some("a")),
            (" id = a ", Some("a")),
            ("id=\"a b\"", Some("a b")),
            ("id=\"", Some("\"")),
            ("id=\"a", Some("\"a")),
            ("id=a%20b+c=d", Some("a%20b+c=d")),
            ("id=", Some("")),
            ("id", None),
            ("ID=a", None),
            ("", None),
        ] {
            assert_eq!(cookie(header, "id").as_deref(), expected, "{header}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_value_decodes_to_the_original(name in "\\PC{1,8}", value in "\\PC*") {
            let escape = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<Vec<_>>().concat();
            let query = format!("a=b&{}={}&c", escape(&name), escape(&value));
            prop_assume!(name != "a");
            prop_assert_eq!(query_parameter(&query, &name), Some(value));
        }
    }

    #[test]
    fn no_text_panics() {
        bolero::check!().with_type::<(String, String)>().for_each(|(text, name)| {
            // Decoding makes a text longer only by replacement characters for invalid bytes.
            assert!(query_parameter(text, name).is_none_or(|value| value.len() <= 3 * text.len()));
            assert!(cookie(text, name).is_none_or(|value| text.contains(&value)));
        });
    }
}
