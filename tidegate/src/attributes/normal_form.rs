//! `NormalForms`: the spelling in which a value counts, so that one person has one bucket. Pure; a value that is normal is not copied.
//!
//! They are here and not with the rule file, because rules in code and rules of files must count the same value as the same subject.

use std::borrow::Cow;
use std::fmt;

use smallvec::SmallVec;
use unicode_normalization::{UnicodeNormalization, is_nfkc};

use super::credentials::{CredentialParts, has_two_credentials, is_credential_header, normalize_credentials};
use super::header_name;
use super::text::fold_case;

/// What separates an attribute from its normal forms, and these from each other.
const SEPARATOR: char = '|';

/// The word for no normal form.
const EXACT: &str = "exact";

/// Words of names whose values are what a person types to say who it is.
const ACCOUNT_WORDS: [&str; 14] = [
    "account",
    "accountid",
    "accountname",
    "email",
    "emailaddress",
    "login",
    "loginid",
    "loginname",
    "logon",
    "mail",
    "user",
    "useremail",
    "userid",
    "username",
];

/// Words of names whose values are compared exactly, although they belong to an account: `login_token`, `user-agent`.
const OPAQUE_WORDS: [&str; 7] = ["agent", "code", "key", "password", "secret", "session", "token"];

/// One spelling for all spellings of a value that a service treats alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NormalForm {
    /// Without what any common language trims at both ends: white space of Unicode, control characters, and characters of no width.
    Trim,
    /// Letters [without their case](super::fold_case), of all scripts.
    Lower,
    /// Unicode's form NFKC: `ﬁ` is `fi`, and a letter with an accent is one character.
    Nfkc,
    /// These three together. No rules of providers: `a.b+c@x.io` stays another address than `ab@x.io`.
    Email,
    /// Credentials as in `Authorization`: the scheme in lower case, one space, and the credentials; those of `Basic` decoded.
    Credentials,
    /// Credentials that have been verified: of `Basic` the user without the password, of a JSON Web Token the signed part.
    VerifiedCredentials,
}

/// Normal forms that apply one after the other. None if empty.
///
/// ```
/// use tidegate::attributes::NormalForms;
///
/// let (name, forms) = NormalForms::split("account | trim | lower")?;
/// assert_eq!(name, "account");
/// assert_eq!(forms.unwrap().apply(" Zed@X.io".into()), "zed@x.io");
/// assert!(NormalForms::split("account | lowr").unwrap_err().to_string().starts_with("there is no normal form `lowr`"));
/// # Ok::<(), tidegate::attributes::UnknownFormError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NormalForms(SmallVec<[NormalForm; 2]>);

/// A normal form that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFormError(String);

impl NormalForm {
    /// The forms that can be named.
    const NAMED: [(&str, Self); 5] = [
        ("trim", Self::Trim),
        ("lower", Self::Lower),
        ("nfkc", Self::Nfkc),
        ("email", Self::Email),
        ("credentials", Self::Credentials),
    ];

    /// The value in this form.
    pub fn apply(self, value: &str) -> Cow<'_, str> {
        match self {
            Self::Trim => Cow::Borrowed(value.trim_matches(is_trimmed)),
            Self::Lower => lower(value),
            Self::Nfkc => nfkc(value),
            Self::Email => email(value),
            Self::Credentials => normalize_credentials(value, CredentialParts::All),
            Self::VerifiedCredentials => normalize_credentials(value, CredentialParts::Identity),
        }
    }

    /// Whether servers read the value as that of two clients, so that a request with it cannot be judged.
    pub fn is_ambiguous(self, value: &str) -> bool {
        matches!(self, Self::Credentials | Self::VerifiedCredentials) && has_two_credentials(value)
    }
}

impl NormalForms {
    /// Splits `name | form | form`. `None` if no form is stated; `exact` states that there is none.
    pub fn split(text: &str) -> Result<(&str, Option<Self>), UnknownFormError> {
        let Some((name, forms)) = text.split_once(SEPARATOR) else { return Ok((text, None)) };
        Ok((name.trim(), Some(Self::parse(forms)?)))
    }

    fn parse(text: &str) -> Result<Self, UnknownFormError> {
        if text.trim() == EXACT {
            return Ok(Self::default());
        }
        let form = |name: &str| {
            let known = NormalForm::NAMED.into_iter().find(|(known, _)| *known == name.trim());
            known.map(|(_, form)| form).ok_or_else(|| UnknownFormError(name.trim().to_owned()))
        };
        text.split(SEPARATOR).map(form).collect::<Result<_, _>>().map(Self)
    }

    /// The forms of an attribute that states none: [credentials](NormalForm::Credentials) of the headers that have them; lower-cased and
    /// trimmed in a rule against guessing, if it [names an account](names_account); else none.
    pub fn default_for(attribute: &str, security: bool) -> Self {
        if header_name(attribute).is_some_and(is_credential_header) {
            return Self::from(NormalForm::Credentials);
        }
        if security && names_account(attribute) { Self::of_account() } else { Self::default() }
    }

    /// The forms of an account in a rule against guessing.
    pub fn of_account() -> Self {
        Self([NormalForm::Trim, NormalForm::Lower].into_iter().collect())
    }

    /// The same for values that have been verified before they are read.
    pub fn of_verified(mut self) -> Self {
        let credentials = self.0.iter_mut().filter(|form| **form == NormalForm::Credentials);
        credentials.for_each(|form| *form = NormalForm::VerifiedCredentials);
        self
    }

    /// Whether these forms include one of credentials.
    pub fn decodes_credentials(&self) -> bool {
        self.0.iter().any(|form| matches!(form, NormalForm::Credentials | NormalForm::VerifiedCredentials))
    }

    /// Whether servers read the value as that of [two clients](NormalForm::is_ambiguous).
    pub fn is_ambiguous(&self, value: &str) -> bool {
        self.0.iter().any(|form| form.is_ambiguous(value))
    }

    /// Whether values stay as they are.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These forms, and after them others.
    pub fn then(mut self, others: &Self) -> Self {
        self.0.extend_from_slice(&others.0);
        self
    }

    /// The value in these forms.
    pub fn apply<'v>(&self, value: Cow<'v, str>) -> Cow<'v, str> {
        self.0.iter().fold(value, |value, form| match value {
            Cow::Borrowed(value) => form.apply(value),
            Cow::Owned(value) => {
                let normal = form.apply(&value);
                let is_same = matches!(normal, Cow::Borrowed(normal) if normal.len() == value.len());
                let normal = if is_same { None } else { Some(normal.into_owned()) };
                Cow::Owned(normal.unwrap_or(value))
            }
        })
    }
}

impl From<NormalForm> for NormalForms {
    fn from(form: NormalForm) -> Self {
        Self([form].into_iter().collect())
    }
}

/// Whether a name is that of an account, a user, an e-mail address or a login, which a person may spell in several ways: `body:account`,
/// `x-user-id`, `userEmail`. Not `user_token` or `user-agent`.
pub fn names_account(name: &str) -> bool {
    let is_one_of = |words: &[&str], word: &str| words.iter().any(|listed| listed.eq_ignore_ascii_case(word));
    words(name).any(|word| is_one_of(&ACCOUNT_WORDS, word)) && !words(name).any(|word| is_one_of(&OPAQUE_WORDS, word))
}

/// The words of a name: `userEmail` and `user-email` have two.
fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|letter: char| !letter.is_ascii_alphanumeric()).flat_map(|part| {
        let mut rest = part;
        std::iter::from_fn(move || {
            let starts =
                rest.as_bytes().windows(2).position(|two| two[0].is_ascii_lowercase() && two[1].is_ascii_uppercase());
            let (word, after) = rest.split_at(starts.map_or(rest.len(), |before| before + 1));
            rest = after;
            (!word.is_empty()).then_some(word)
        })
    })
}

fn is_trimmed(letter: char) -> bool {
    letter.is_whitespace() || letter.is_control() || matches!(letter, '\u{180e}' | '\u{200b}' | '\u{2060}' | '\u{feff}')
}

fn lower(value: &str) -> Cow<'_, str> {
    let is_lower = |letter: char| {
        if letter.is_ascii() { !letter.is_ascii_uppercase() } else { fold_case(letter).eq(std::iter::once(letter)) }
    };
    if value.chars().all(is_lower) {
        Cow::Borrowed(value)
    } else {
        Cow::Owned(value.chars().flat_map(fold_case).collect())
    }
}

fn nfkc(value: &str) -> Cow<'_, str> {
    if value.is_ascii() || is_nfkc(value) { Cow::Borrowed(value) } else { Cow::Owned(value.nfkc().collect()) }
}

fn email(value: &str) -> Cow<'_, str> {
    if value.is_ascii() {
        return lower(value.trim_matches(is_trimmed));
    }
    // Letters without their case may compose anew, and compatible forms of letters may have a case.
    let normal: String = value.nfkc().flat_map(fold_case).nfkc().collect();
    match normal.trim_matches(is_trimmed) {
        same if same == value => Cow::Borrowed(value),
        normal => Cow::Owned(normal.to_owned()),
    }
}

impl fmt::Display for UnknownFormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = NormalForm::NAMED.iter().map(|(name, _)| *name).collect();
        write!(
            f,
            "there is no normal form `{}`; there are `{}`, and `{EXACT}` alone for none",
            self.0,
            names.join("`, `")
        )
    }
}

impl std::error::Error for UnknownFormError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [NormalForm; 6] = [
        NormalForm::Trim,
        NormalForm::Lower,
        NormalForm::Nfkc,
        NormalForm::Email,
        NormalForm::Credentials,
        NormalForm::VerifiedCredentials,
    ];

    fn forms(text: &str) -> NormalForms {
        NormalForms::split(&format!("x | {text}")).unwrap().1.unwrap()
    }

    #[test]
    fn spellings_of_one_value_have_one_normal_form() {
        for (form, expected, spellings) in [
            ("trim", "Zed", &["Zed", " Zed\t", "\u{3000}Zed\u{a0}", "Zed\u{1f}\0", "\u{feff}Zed\u{200b}"][..]),
            ("lower", "zed@x.io", &["zed@x.io", "Zed@X.IO", "ZED@x.io"]),
            ("lower", "kiss", &["kiss", "KISS", "\u{212a}i\u{17f}S"]),
            ("lower", "οδοσ", &["οδος", "ΟΔΟΣ", "οδοσ"]),
            ("nfkc", "café fi", &["café fi", "cafe\u{301} fi", "café\u{a0}ﬁ"]),
            ("email", "zoé@x.io", &["zoé@x.io", " ZOE\u{301}@X.io\u{a0}", "ｚｏé＠ｘ．ｉｏ"]),
            ("trim | lower", "zed", &[" ZED "]),
            ("nfkc | trim", "\u{301}", &["\u{b4}"]),
        ] {
            for spelling in spellings {
                assert_eq!(forms(form).apply((*spelling).into()), expected, "{form}: {spelling:?}");
                assert_eq!(forms(form).apply((*spelling).to_owned().into()), expected, "{form}: {spelling:?}");
            }
        }
        for value in ["a.b+c@x.io", "ab@x.io"] {
            assert_eq!(forms("email").apply(value.into()), value, "no rules of providers");
        }
    }

    #[test]
    fn a_normal_value_is_not_copied() {
        for form in ALL {
            for value in ["zed@x.io", "zoé@x.io", "49 151", ""] {
                assert!(matches!(form.apply(value), Cow::Borrowed(same) if same == value), "{form:?} {value}");
            }
        }
    }

    #[test]
    fn a_normal_form_is_normal_for_every_character() {
        // Beyond this are only ideographs without another form, and characters without a meaning.
        for letter in '\0'..='\u{2fa1f}' {
            for form in [NormalForm::Trim, NormalForm::Lower, NormalForm::Nfkc, NormalForm::Email] {
                for text in [letter.to_string(), format!("a{letter}\u{301}Z")] {
                    let normal = form.apply(&text).into_owned();
                    assert_eq!(form.apply(&normal), normal, "{form:?} {text:?}");
                }
            }
        }
    }

    #[test]
    fn only_names_of_accounts_have_a_default_form() {
        for name in [
            "account",
            "body:account",
            "header:x-user-id",
            "userEmail",
            "body:user.email",
            "e-mail",
            "LOGIN",
            "claim:email",
        ] {
            assert!(names_account(name), "{name}");
            assert_eq!(NormalForms::default_for(name, true), NormalForms::of_account(), "{name}");
            assert!(NormalForms::default_for(name, false).is_empty(), "{name}");
        }
        for name in
            ["ip", "header:user-agent", "login_token", "x-api-key", "accounting", "body:phone", "userSessionId", ""]
        {
            assert!(!names_account(name), "{name}");
        }
        for header in ["header:authorization", "header:proxy-authorization"] {
            assert_eq!(NormalForms::default_for(header, false), NormalForm::Credentials.into());
        }
    }

    #[test]
    fn forms_follow_a_name_and_exact_means_none() {
        assert_eq!(NormalForms::split("body:x"), Ok(("body:x", None)));
        assert_eq!(NormalForms::split("body:x|exact"), Ok(("body:x", Some(NormalForms::default()))));
        let chained = NormalForms::from(NormalForm::Nfkc).then(&NormalForm::Lower.into());
        assert_eq!(NormalForms::split("body:x | nfkc|lower "), Ok(("body:x", Some(chained))));
        for wrong in ["x |", "x | lower |", "x | exact | lower", "x | Lower", "x || lower"] {
            assert!(NormalForms::split(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_normal_form_is_normal(text in "\\PC*") {
            for form in [NormalForm::Trim, NormalForm::Lower, NormalForm::Nfkc, NormalForm::Email] {
                let normal = form.apply(&text).into_owned();
                prop_assert_eq!(form.apply(&normal).into_owned(), normal, "{:?}", form);
            }
        }
    }

    #[test]
    fn no_text_panics() {
        bolero::check!().with_type::<String>().for_each(|text| {
            for form in ALL {
                // U+FDFA is three bytes, and eighteen letters in NFKC.
                assert!(form.apply(text).len() <= 11 * text.len() + 8, "{form:?}");
            }
            let _ = NormalForms::split(text);
        });
    }
}
