//! Credentials: one spelling of the values of `Authorization` and `Proxy-Authorization`, which verifiers accept in several. Verifies
//! nothing.
//!
//! Each spelling that a verifier accepts and that stayed a value of its own would be a full limit for the same client.

use std::borrow::Cow;

use super::text::bytes_to_text;

/// The headers whose values are credentials by RFC 9110, section 11.
const CREDENTIAL_HEADERS: [&str; 2] = ["authorization", "proxy-authorization"];

/// How Envoy finds a token, wherever in the value it stands.
const BEARER_PREFIX: &str = "Bearer ";

/// What of credentials counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CredentialParts {
    /// Everything that the client sent.
    All,
    /// What identifies a client whose credentials have been verified: not the password, which verifiers compare in part, and not the
    /// signature of a token, of which there may be several valid ones.
    Identity,
}

/// Whether the values of a header are credentials: `Authorization` and `Proxy-Authorization`, in any letters.
pub fn is_credential_header(header: &str) -> bool {
    CREDENTIAL_HEADERS.iter().any(|name| header.eq_ignore_ascii_case(name))
}

/// Whether verifiers find two clients in a value: nginx a user of `Basic`, ends at the `=` after it, and Envoy the token in what follows.
pub(super) fn has_two_credentials(value: &str) -> bool {
    let Some((scheme, rest)) = value.trim_start().split_once(char::is_whitespace) else { return false };
    is_scheme(scheme, "basic", 1) && find_bearer_token(value).is_some() && decode_user_and_password(rest).is_some()
}

/// The scheme in lower case, one space, and the credentials. What has no scheme, or cannot be decoded, stays as it is.
pub(super) fn normalize_credentials(value: &str, parts: CredentialParts) -> Cow<'_, str> {
    let value = value.trim();
    let token = find_bearer_token(value);
    if let Some(token) = token.filter(|_| !has_two_credentials(value)) {
        return with_scheme(value, "bearer", token.part(parts));
    }
    let Some((scheme, rest)) = value.split_once(char::is_whitespace) else { return Cow::Borrowed(value) };
    let rest = rest.trim_start();
    if rest.is_empty() {
        return Cow::Borrowed(value);
    }
    if is_scheme(scheme, "basic", 1) {
        return match decode_user_and_password(rest) {
            Some(decoded) => Cow::Owned(format!("basic {}", basic_part(&decoded, parts))),
            None => Cow::Borrowed(value),
        };
    }
    let is_bearer = is_scheme(scheme, "bearer", 2);
    let name = if is_bearer { Cow::Borrowed("bearer") } else { lower(scheme) };
    // Many verifiers take the second word. Other schemes may have a list of parameters.
    let word = rest.split(char::is_whitespace).next().unwrap_or(rest);
    let credentials = if is_bearer || is_token68(word) { word } else { rest };
    with_scheme(value, &name, BearerToken::parse(credentials).map_or(credentials, |token| token.part(parts)))
}

/// Whether a word stands for this scheme: HAProxy also accepts its first letters, as many as make it unambiguous.
fn is_scheme(word: &str, scheme: &str, min_letters: usize) -> bool {
    word.len() >= min_letters && scheme.get(..word.len()).is_some_and(|letters| letters.eq_ignore_ascii_case(word))
}

/// Whether a word is the whole of the credentials (RFC 9110, section 11.2), and not the first of several parameters.
fn is_token68(word: &str) -> bool {
    let letters = word.trim_end_matches('=');
    !letters.is_empty() && letters.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte))
}

fn lower(scheme: &str) -> Cow<'_, str> {
    if scheme.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(scheme.to_ascii_lowercase())
    } else {
        Cow::Borrowed(scheme)
    }
}

/// The scheme, a space and the credentials, without a copy if `value` begins with them.
fn with_scheme<'v>(value: &'v str, scheme: &str, credentials: &str) -> Cow<'v, str> {
    let rest = value.strip_prefix(scheme).and_then(|rest| rest.strip_prefix(' '));
    match rest {
        Some(rest) if rest.starts_with(credentials) => Cow::Borrowed(&value[..=scheme.len() + credentials.len()]),
        _ => Cow::Owned([scheme, credentials].join(" ")),
    }
}

// === Basic ===

/// The part of a decoded `user:password` that counts, as text.
fn basic_part(decoded: &[u8], parts: CredentialParts) -> Cow<'_, str> {
    let user = decoded.split(|byte| *byte == b':').next().unwrap_or_default();
    bytes_to_text(if parts == CredentialParts::Identity { user } else { decoded })
}

/// Decodes Base64 as leniently as any verifier: without padding, with bits that are left over, in both alphabets. Characters of neither
/// are skipped, as Python does. At the first `=` after the user name nginx ends, whatever follows. `None` without a colon.
fn decode_user_and_password(text: &str) -> Option<Vec<u8>> {
    let mut decoded: Vec<u8> = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut bits, mut count, mut has_colon) = (0_u32, 0_u32, false);
    for byte in text.bytes() {
        if byte == b'=' && has_colon {
            break;
        }
        let Some(digit) = base64_digit(byte) else { continue };
        bits = (bits << 6 | u32::from(digit)) & 0xfff;
        count += 6;
        if count >= 8 {
            count -= 8;
            let byte = (bits >> count & 0xff) as u8;
            has_colon |= byte == b':';
            decoded.push(byte);
        }
    }
    has_colon.then_some(decoded)
}

const fn base64_digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}

// === Tokens ===

/// A JSON Web Token.
#[derive(Clone, Copy)]
struct BearerToken<'v> {
    text: &'v str,
    /// The length of the header and the payload, which the signature covers as they are written.
    signed_bytes: usize,
}

/// The token after `Bearer`. Envoy looks for `Bearer ` anywhere in the value, skips what cannot be part of a token, and ends at the first
/// such character after it. A token alone counts as a bearer token: some verifiers accept both.
fn find_bearer_token(value: &str) -> Option<BearerToken<'_>> {
    let start = value.find(BEARER_PREFIX).map(|start| start + BEARER_PREFIX.len());
    let rest = start.map_or_else(
        || match value.split_once(char::is_whitespace) {
            Some((scheme, rest)) => is_scheme(scheme, "bearer", 2).then_some(rest),
            None => Some(value),
        },
        |start| Some(&value[start..]),
    )?;
    let rest = rest.trim_start_matches(|letter| !is_token_letter(letter));
    BearerToken::parse(rest.split(|letter| !is_token_letter(letter)).next().unwrap_or_default())
}

const fn is_token_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')
}

impl<'v> BearerToken<'v> {
    /// A text of three parts in Base64 of which the first is an object. Other tokens are opaque.
    fn parse(text: &'v str) -> Option<Self> {
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let is_part = |part: &str| part.bytes().all(|byte| base64_digit(byte).is_some());
        // `{` and the next character in Base64.
        let is_object =
            header.starts_with('e') && header[1..].starts_with(|c: char| !matches!(c, 'A'..='Z' | 'a'..='v'));
        let is_token = is_object && !payload.is_empty() && [header, payload, signature].into_iter().all(is_part);
        is_token.then_some(Self { text, signed_bytes: signed.len() })
    }

    fn part(self, parts: CredentialParts) -> &'v str {
        match parts {
            CredentialParts::All => self.text,
            CredentialParts::Identity => &self.text[..self.signed_bytes],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token, and the same with another valid signature.
    const TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ6ZWQifQ.c2lnbmF0dXJl";
    const SIGNED_AGAIN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ6ZWQifQ.b3RoZXI";

    fn all(value: &str) -> String {
        normalize_credentials(value, CredentialParts::All).into_owned()
    }

    fn identity(value: &str) -> String {
        normalize_credentials(value, CredentialParts::Identity).into_owned()
    }

    /// `zed:pw` in Base64 is `emVkOnB3`, and `zed:p` is `emVkOnA=`.
    #[test]
    fn all_spellings_of_a_user_and_password_have_one_value() {
        for value in [
            "Basic emVkOnB3",
            "basic emVkOnB3",
            "bAsIc emVkOnB3",
            "Basic   emVkOnB3",
            "Basic\temVkOnB3 ",
            " Basic emVkOnB3",
            "Basic emVkOnB3=",
            "Basic emVkOnB3==junk",
            "Basic emVk!OnB3",
            "Basic em=VkOnB3",
            "b emVkOnB3",
            "BAS emVkOnB3",
        ] {
            assert_eq!((all(value).as_str(), identity(value).as_str()), ("basic zed:pw", "basic zed"), "{value}");
        }
        for value in ["Basic emVkOnA=", "Basic emVkOnA", "Basic emVkOnB=", "Basic emVkOnC=", "Basic emVkOnD"] {
            assert_eq!((all(value).as_str(), identity(value).as_str()), ("basic zed:p", "basic zed"), "{value}");
        }
        assert_eq!(identity("Basic Onhw"), "basic ");
        assert_eq!(all("Basic /zp4"), "basic \u{fffd}ff:x");
        assert_eq!((all("Basic -zo_"), all("Basic +zo/")), (all("basic +zo/"), all("basic -zo_")));
    }

    #[test]
    fn different_users_passwords_and_keys_have_different_values() {
        let values = [
            "Basic emVkOnB3",
            "Basic emVkOnB4",
            "Basic WmVkOnB3",
            "Bearer emVkOnB3",
            "emVkOnB3",
            "Bearer k1",
            "Bearer K1",
        ];
        for (index, value) in values.iter().enumerate() {
            for other in &values[..index] {
                assert_ne!(all(value), all(other));
            }
        }
        assert_ne!(identity("Basic emVkOnB3"), identity("Basic WmVkOnB3"));
    }

    #[test]
    fn what_cannot_be_decoded_stays_as_it_is() {
        for value in ["Basic emVk", "Basic !", "Basic", "BASIC  emVk", "secret-Key", "é", ""] {
            assert_eq!((all(value).as_str(), identity(value).as_str()), (value, value), "{value}");
        }
        assert_eq!(all("Basic "), "Basic");
    }

    #[test]
    fn all_spellings_of_a_bearer_token_have_one_value() {
        for value in ["Bearer k1", "bearer k1", "BEARER   k1 ", "Bearer\tk1", " bEaReR \t k1"] {
            assert_eq!((all(value).as_str(), identity(value).as_str()), ("bearer k1", "bearer k1"), "{value}");
        }
        for value in ["Token k1", "TOKEN  k1 ", "token k1 junk", "Token\tk1 7"] {
            assert_eq!(all(value), "token k1", "{value}");
        }
        assert_eq!((all("Bearer 1|k2 junk"), all("Bearer 1|k3")), ("bearer 1|k2".into(), "bearer 1|k3".into()));
        assert_eq!(all("Digest username=\"zed\",  realm=\"r\""), "digest username=\"zed\",  realm=\"r\"");
        for value in [
            TOKEN.to_owned(),
            format!("Bearer {TOKEN}"),
            format!("be  {TOKEN}"),
            format!("Bearer \"{TOKEN}\", junk"),
            format!("junk Bearer {TOKEN}~junk"),
            format!("bearer eyJ9.x.y Bearer {TOKEN}"),
        ] {
            assert_eq!(all(&value), format!("bearer {TOKEN}"), "{value}");
        }
    }

    /// A client signs nothing, but of some signatures it can compute another valid one.
    #[test]
    fn a_verified_token_is_the_same_under_another_signature() {
        assert_ne!(all(&format!("Bearer {TOKEN}")), all(&format!("Bearer {SIGNED_AGAIN}")));
        for scheme in ["Bearer ", "bearer  ", "JWT ", ""] {
            let [one, two] = [TOKEN, SIGNED_AGAIN].map(|token| identity(&format!("{scheme}{token}")));
            assert_eq!(one, two, "{scheme}");
        }
        // An opaque key with dots.
        assert_ne!(identity("Bearer a.b.c"), identity("Bearer a.b.d"));
        assert_ne!(identity("Bearer eab.b.c"), identity("Bearer eab.b.d"));
    }

    #[test]
    fn a_user_before_a_token_is_ambiguous() {
        for value in [format!("Basic emVkOnA= Bearer {TOKEN}"), format!("b emVkOnA=Bearer {TOKEN}")] {
            assert!(has_two_credentials(&value), "{value}");
        }
        for value in [
            format!("Bearer {TOKEN}"),
            format!("Basic emVk Bearer {TOKEN}"),
            "Basic emVkOnA= Bearer x".into(),
            TOKEN.into(),
        ] {
            assert!(!has_two_credentials(&value), "{value}");
        }
    }

    #[test]
    fn a_normal_value_is_not_copied() {
        let token = format!("bearer {TOKEN}");
        for value in ["bearer k1", "k1", token.as_str()] {
            for parts in [CredentialParts::All, CredentialParts::Identity] {
                assert!(matches!(normalize_credentials(value, parts), Cow::Borrowed(_)), "{value}");
            }
        }
    }

    #[test]
    fn no_text_panics_or_becomes_much_longer() {
        bolero::check!().with_type::<(String, String)>().for_each(|(scheme, rest)| {
            for value in [scheme.clone(), format!("{scheme} {rest}"), format!("Basic {rest}"), format!("Bearer {rest}")]
            {
                assert!(identity(&value).len() <= 5 * value.len() + 8);
                assert!(all(&value).len() <= 5 * value.len() + 8);
            }
        });
    }
}
