//! `Namespace`: the name that keeps deployments on one store apart.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::key::KEY_VERSION;

const MIN_BYTES: usize = 2;
const MAX_BYTES: usize = 32;

/// The name that the keys of a deployment begin with. Deployments with different namespaces share no limit on a common store, and do not
/// count each other as instances; a ledger belongs to one of them.
///
/// It has 2 to 32 ASCII letters, digits, `-`, `_`, `.` and `:`. A name other than the default one does not begin like it.
///
/// ```
/// use tidegate::spi::Namespace;
///
/// let shop: Namespace = "shop".parse()?;
/// assert_eq!(shop.key_pattern(), "shop1{*");
/// assert_eq!(Namespace::default().as_str(), "tg");
/// assert!("tg2".parse::<Namespace>().is_err());
/// # Ok::<(), tidegate::spi::NamespaceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace(Arc<str>);

/// Why a text is not the name of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceError(&'static str);

impl Namespace {
    /// The name of the default namespace.
    pub const DEFAULT: &str = "tg";

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The glob pattern of its keys, for the permissions of a user. No key of another namespace matches: a name contains no brace and no
    /// character of patterns.
    pub fn key_pattern(&self) -> String {
        format!("{self}{KEY_VERSION}{{*")
    }

    /// The names of other namespaces that this one begins with, the longest first.
    pub fn beginnings(&self) -> impl Iterator<Item = &str> {
        (MIN_BYTES..self.0.len()).rev().map(|length| &self.0[..length])
    }
}

impl FromStr for Namespace {
    type Err = NamespaceError;

    fn from_str(name: &str) -> Result<Self, NamespaceError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        if !(MIN_BYTES..=MAX_BYTES).contains(&name.len()) || !name.bytes().all(is_allowed) {
            return Err(NamespaceError("a namespace has 2 to 32 letters, digits, `-`, `_`, `.` and `:`"));
        }
        if name != Self::DEFAULT && name.starts_with(Self::DEFAULT) {
            return Err(NamespaceError(
                "a namespace must not begin with the name of another, and `tg` is the default one: choose a name that begins differently",
            ));
        }
        Ok(Self(name.into()))
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for NamespaceError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name with a character of patterns would give a user the keys of others, and a brace would move keys to other slots.
    #[test]
    fn a_name_that_could_match_the_keys_of_others_is_refused() {
        for name in [
            "",
            "a",
            "a*",
            "a?b",
            "[ab]",
            "a\\b",
            "a{b",
            "a}b",
            "a b",
            "ü1",
            "a\n",
            "t",
            "tg2",
            "tg-eu",
            &"n".repeat(33),
        ] {
            assert!(name.parse::<Namespace>().is_err(), "{name:?}");
        }
        for name in ["tg", "TG", "ab", "shop:eu-1.a_b", "t2", &"n".repeat(32)] {
            assert_eq!(name.parse::<Namespace>().unwrap().as_str(), name);
        }
    }

    #[test]
    fn the_names_that_a_name_begins_with_are_listed() {
        let beginnings =
            |name: &str| name.parse::<Namespace>().unwrap().beginnings().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(beginnings("shop2"), ["shop", "sho", "sh"]);
        assert!(beginnings("tg").is_empty());
    }
}
