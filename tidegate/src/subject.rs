//! `Subject`: who is limited, hashed with a secret before it reaches a key, a log or a metric.

use std::fmt;

use sha2::{Digest, Sha256};
use siphasher::sip128::SipHasher24;

/// The secret that all instances of a fleet share, so that they hash a subject alike and nobody else can.
#[derive(Clone)]
pub struct Secret(SipHasher24);

/// Hashes the values of a fixed tuple of attributes.
///
/// Its keys are derived from the secret and the names, so that a user named like an IP address is not that address, and
/// nobody can tell that they share a name.
#[derive(Clone)]
pub struct SubjectHasher {
    /// For a single value, which most subjects are: its bytes are hashed as they are.
    alone: SipHasher24,
    /// For a list, and for a missing value.
    listed: SipHasher24,
}

/// A hashed subject: 128 bits that tell nothing about who it is without the [`Secret`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(u128);

impl Secret {
    /// The secret of this fleet; any bytes will do, sixteen random ones are enough.
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        let digest = Sha256::digest(secret.as_ref());
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Self(SipHasher24::new_with_key(&key))
    }

    /// A fixed key that everybody knows: instances agree, but whoever reads the store can guess subjects.
    pub fn public() -> Self {
        Self::new(b"tidegate: no secret")
    }

    /// What hashes the values of these attributes.
    pub fn hasher<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> SubjectHasher {
        let mut bytes = Vec::new();
        for name in names {
            push(&mut bytes, Some(name));
        }
        let derive = |purpose: u8| {
            let key = self.0.hash(&[&[purpose], bytes.as_slice()].concat());
            SipHasher24::new_with_key(&key.as_bytes())
        };
        SubjectHasher { alone: derive(1), listed: derive(2) }
    }
}

impl SubjectHasher {
    /// The subject with these values, in the order of the names. A missing value is told apart from an empty one.
    #[inline(always)]
    pub fn subject<'v>(&self, mut values: impl ExactSizeIterator<Item = Option<&'v str>>) -> Subject {
        if values.len() == 1
            && let Some(Some(only)) = values.next()
        {
            return Subject(self.alone.hash(only.as_bytes()).as_u128());
        }
        // (Of a single value that is missing, nothing is left here: an empty list, which no other subject has.)
        let mut bytes = Vec::with_capacity(128);
        for value in values {
            push(&mut bytes, value);
        }
        Subject(self.listed.hash(&bytes).as_u128())
    }
}

/// Appends a length and the text, so that no two lists look alike; what is missing has a length that nothing has.
fn push(bytes: &mut Vec<u8>, text: Option<&str>) {
    bytes.extend_from_slice(&text.map_or(u64::MAX, |text| text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.unwrap_or_default().as_bytes());
}

impl Default for Secret {
    fn default() -> Self {
        Self::public()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl fmt::Debug for SubjectHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubjectHasher(…)")
    }
}

impl Subject {
    /// A subject from a hash that was made elsewhere.
    pub const fn from_hash(hash: u128) -> Self {
        Self(hash)
    }

    /// The hash.
    pub const fn hash(self) -> u128 {
        self.0
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subject({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(secret: &str, parts: &[(&str, Option<&str>)]) -> Subject {
        Secret::new(secret).hasher(parts.iter().map(|part| part.0)).subject(parts.iter().map(|part| part.1))
    }

    /// Trap: `("a_b", "c")` and `("a", "b_c")` gave one key.
    #[test]
    fn no_two_tuples_share_a_subject() {
        let tuples: [&[(&str, Option<&str>)]; 10] = [
            &[("a_b", Some("c"))],
            &[("a", Some("b_c"))],
            &[("a", Some("")), ("b", Some("c"))],
            &[("a", None), ("b", Some("c"))],
            &[("a", Some("b")), ("c", None)],
            &[("ab", Some("c"))],
            &[("a", Some("bc"))],
            &[("a", Some(""))],
            &[("a", None)],
            &[],
        ];
        let subjects: std::collections::HashSet<_> = tuples.iter().map(|parts| hash("s", parts)).collect();
        assert_eq!(subjects.len(), tuples.len());
    }

    #[test]
    fn the_secret_decides_and_stays_secret() {
        let parts = [("user", Some("42"))];
        assert_eq!(hash("a", &parts), hash("a", &parts));
        assert_ne!(hash("a", &parts), hash("b", &parts));
        assert_ne!(hash("a", &parts), hash("a", &[("ip", Some("42"))]));
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?} {:?}", secret.hasher(["user"])), "Secret(…) SubjectHasher(…)");
    }
}
