//! The claims of the token of a request.
//!
//! Nothing here is verified. Claims may be used only behind a proxy that checks the signature, expiry and audience of every
//! token.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tidegate::attributes::NormalForm;

/// The longest token that is read, in bytes. A request with a longer one is refused.
pub(crate) const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// The token in an `Authorization` header, found as any verifier finds it: a client must not hide its claims by a spelling of `Bearer`
/// that the proxy in front accepts. `None` if there is another scheme.
pub(crate) fn token(authorization: &str) -> Option<Cow<'_, str>> {
    match NormalForm::Credentials.apply(authorization) {
        Cow::Borrowed(normal) => normal.strip_prefix("bearer ").map(Cow::Borrowed),
        Cow::Owned(normal) => normal.strip_prefix("bearer ").map(|token| Cow::Owned(token.to_owned())),
    }
}

/// The claims of a JSON Web Token, **without any verification**; `None` if it is too long.
pub(crate) fn decode_claims(token: &str) -> Option<Value> {
    if token.len() > MAX_TOKEN_BYTES {
        return None;
    }
    // Header, payload, signature; an encrypted token has five parts.
    let mut parts = token.split('.');
    let (Some(header), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    if header.contains(char::is_whitespace) {
        return None;
    }
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    serde_json::from_slice(&payload).ok()
}

/// A claim, as text. `name` is a key; if there is no such key, its dots separate keys of nested objects. `None`
/// unless the value is a string, an integer or a boolean.
pub(crate) fn field_text(value: &Value, name: &str) -> Option<String> {
    text(find(value, name)?)
}

/// The value under `name`: first as one key, then under the longest key that the name begins with and so on.
///
/// Each object is visited at most once, because only one sequence of keys leads to it.
fn find<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let object = value.as_object()?;
    let nested = || {
        let mut dots = name.rmatch_indices('.');
        dots.find_map(|(dot, _)| find(object.get(&name[..dot])?, &name[dot + 1..]))
    };
    object.get(name).or_else(nested)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(truth) => Some(truth.to_string()),
        // Decimals and numbers beyond 64 bits have more than one spelling.
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(authorization: &str, name: &str) -> Option<String> {
        field_text(&decode_claims(&super::token(authorization)?)?, name)
    }

    fn token(payload: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload))
    }

    fn claim_in(payload: &str, name: &str) -> Option<String> {
        claim(&token(payload), name)
    }

    #[test]
    fn a_claim_is_read_from_a_bearer_token() {
        let token = token(r#"{"sub":"u1","org":{"id":7}}"#);
        for authorization in [
            token.clone(),
            format!("Bearer {token}"),
            format!("bearer  {token} "),
            format!("BEARER {token}"),
            format!("Bearer\t{token}"),
            format!("junk Bearer \"{token}\""),
            format!("Bearer {token}, junk"),
        ] {
            assert_eq!(claim(&authorization, "sub").as_deref(), Some("u1"), "{authorization}");
        }
    }

    #[test]
    fn strings_integers_and_booleans_are_text_and_nothing_else_is() {
        let payload = r#"{"s":"é","e":"","i":-7,"u":18446744073709551615,"t":true,"f":1.5,"x":1e3,"n":null,"a":["b"],
            "o":{},"big":18446744073709551616}"#;
        for (name, expected) in [("s", "é"), ("e", ""), ("i", "-7"), ("u", "18446744073709551615"), ("t", "true")] {
            assert_eq!(claim_in(payload, name).as_deref(), Some(expected), "{name}");
        }
        for name in ["f", "x", "n", "a", "o", "big", "missing", "a.0", "s.x", "", ".", "o."] {
            assert_eq!(claim_in(payload, name), None, "{name}");
        }
    }

    #[test]
    fn dots_separate_nested_keys_unless_a_key_contains_them() {
        assert_eq!(claim_in(r#"{"realm":{"org":"a"}}"#, "realm.org").as_deref(), Some("a"));
        assert_eq!(claim_in(r#"{"realm":{"org":"a"},"realm.org":"b"}"#, "realm.org").as_deref(), Some("b"));
        assert_eq!(claim_in(r#"{"realm":{"org":"a"},"realm.org":[]}"#, "realm.org"), None);
        let url = r#"{"https://example.com/app":{"org":{"id":"c"}}}"#;
        assert_eq!(claim_in(url, "https://example.com/app.org.id").as_deref(), Some("c"));
        assert_eq!(claim_in(r#"{"a.b":{},"a":{"b":{"c":1}}}"#, "a.b.c").as_deref(), Some("1"));
    }

    #[test]
    fn an_invalid_token_has_no_claims() {
        let good = token(r#"{"sub":"u1"}"#);
        let payload = good.split('.').nth(1).unwrap();
        for bad in [
            String::new(),
            "Bearer".into(),
            format!("Basic {good}"),
            format!("Bearer Bearer {good}"),
            payload.into(),
            format!("e30.{payload}"),
            format!("{good}.more"),
            format!("e30.{payload}==.c2ln"),
            "e30.!!!.c2ln".into(),
            token("[]"),
            token("{"),
            token("\"sub\""),
            token(r#"{"sub":"u1"} more"#),
            token(&format!("{{\"sub\":\"u1\",\"x\":\"{}\"}}", "a".repeat(MAX_TOKEN_BYTES))),
        ] {
            assert_eq!(claim(&bad, "sub"), None, "{bad}");
        }
        assert_eq!(claim(&good, "sub").as_deref(), Some("u1"));
    }

    #[test]
    fn no_text_panics() {
        bolero::check!().with_type::<(String, String)>().for_each(|(text, name)| {
            let _ = (claim(text, name), claim(&token(text), name));
        });
    }
}
