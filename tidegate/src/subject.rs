//! `Subject`: who is limited, hashed with a secret before it reaches a key, a log or a metric.

use std::fmt;

use sha2::{Digest, Sha256};
use siphasher::sip128::SipHasher24;
use smallvec::SmallVec;

/// The secret that all instances of a fleet share, so that they hash a subject alike and nobody else can.
#[derive(Clone)]
pub struct Secret(SipHasher24);

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

    /// Hashes the parts that a rule counts by. A missing value is told apart from an empty one, and the names belong to
    /// it, so that a user named like an IP address is not that address.
    pub fn subject<'a>(&self, parts: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Subject {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        for (name, value) in parts {
            push(&mut bytes, name);
            match value {
                Some(value) => push(&mut bytes, value),
                None => bytes.extend_from_slice(&u32::MAX.to_le_bytes()),
            }
        }
        Subject(self.0.hash(&bytes).as_u128())
    }
}

/// Length first, then the bytes: no two lists of parts look alike.
fn push(bytes: &mut SmallVec<[u8; 128]>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
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

    /// Trap: `("a_b", "c")` and `("a", "b_c")` gave one key.
    #[test]
    fn no_two_tuples_share_a_subject() {
        let secret = Secret::new("s");
        let tuples: [&[(&str, Option<&str>)]; 8] = [
            &[("a_b", Some("c"))],
            &[("a", Some("b_c"))],
            &[("a", Some("")), ("b", Some("c"))],
            &[("a", None), ("b", Some("c"))],
            &[("a", Some("b")), ("c", None)],
            &[("ab", Some("c"))],
            &[("a", Some("bc"))],
            &[],
        ];
        let subjects: std::collections::HashSet<_> =
            tuples.iter().map(|parts| secret.subject(parts.iter().copied())).collect();
        assert_eq!(subjects.len(), tuples.len());
    }

    #[test]
    fn the_secret_decides_and_stays_secret() {
        let parts = [("user", Some("42"))];
        assert_eq!(Secret::new("a").subject(parts), Secret::new("a").subject(parts));
        assert_ne!(Secret::new("a").subject(parts), Secret::new("b").subject(parts));
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }
}
