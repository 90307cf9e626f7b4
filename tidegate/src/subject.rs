//! `Subject`: the values that a rule counts by, hashed with a secret before they reach a key, a log or a metric.

use std::fmt;

use sha2::{Digest, Sha256};
use siphasher::sip128::SipHasher24;

use crate::key::PARTITIONS;
use crate::network::NetworkHasher;
use crate::plan::LeaseOwner;
use crate::random::random_u128;

/// The key for hashing subjects. All instances that share a store must have the same secret.
#[derive(Clone)]
pub struct Secret(SipHasher24);

/// Hashes the values of a fixed tuple of attributes.
///
/// The hash depends on the secret and on the names of the attributes, so that a user and an IP address with equal text have
/// different hashes.
#[derive(Clone)]
pub struct SubjectHasher {
    /// For a single value, the common case: its bytes are hashed without a copy.
    single: SipHasher24,
    /// For several values, and for a missing value.
    list: SipHasher24,
}

/// A hashed subject: 128 bits that do not reveal it without the [`Secret`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(u128);

impl Secret {
    /// A secret from any bytes; sixteen random ones are enough.
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        let digest = Sha256::digest(secret.as_ref());
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Self(SipHasher24::new_with_key(&key))
    }

    /// A random secret, for a store that no other process reads: nobody can compute the hash of a subject.
    pub fn random() -> Self {
        Self::new(random_u128().to_le_bytes())
    }

    /// A fixed, publicly known key. Anyone who can read the store can guess subjects.
    pub fn public() -> Self {
        Self::new(b"tidegate: no secret")
    }

    /// A hasher for the values of these attributes.
    pub fn hasher<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> SubjectHasher {
        let mut bytes = Vec::new();
        for name in names {
            push(&mut bytes, Some(name));
        }
        let derive = |purpose: u8| {
            let key = self.0.hash(&[&[purpose], bytes.as_slice()].concat());
            SipHasher24::new_with_key(&key.as_bytes())
        };
        SubjectHasher { single: derive(1), list: derive(2) }
    }

    /// The owner of the reservation with this idempotency key, under limits and for subjects with these hashes.
    pub(crate) fn reservation_owner(&self, idempotency_key: &str, keys: &[(u128, Subject)]) -> LeaseOwner {
        let mut bytes = vec![4];
        push(&mut bytes, Some(idempotency_key));
        for (limit, subject) in keys {
            bytes.extend_from_slice(&limit.to_le_bytes());
            bytes.extend_from_slice(&subject.0.to_le_bytes());
        }
        LeaseOwner::from_hash(self.0.hash(&bytes).as_u128())
    }

    /// A hasher for the networks of addresses.
    pub(crate) fn network_hasher(&self) -> NetworkHasher {
        NetworkHasher::new(&self.0.hash(&[3]).as_bytes())
    }
}

impl SubjectHasher {
    /// The subject with these values, in the order of the names. A missing value differs from an empty one.
    #[inline(always)]
    pub fn subject<'v>(&self, mut values: impl ExactSizeIterator<Item = Option<&'v str>>) -> Subject {
        if values.len() == 1
            && let Some(Some(only)) = values.next()
        {
            return Subject(self.single.hash(only.as_bytes()).as_u128());
        }
        // A single missing value has been taken from the iterator: it becomes an empty list, which no other subject has.
        let mut bytes = Vec::with_capacity(128);
        for value in values {
            push(&mut bytes, value);
        }
        Subject(self.list.hash(&bytes).as_u128())
    }
}

/// Appends a length and the text, so that different lists have different bytes. A missing text has an impossible length.
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
    /// A subject from an existing hash.
    pub const fn from_hash(hash: u128) -> Self {
        Self(hash)
    }

    /// The hash.
    pub const fn hash(self) -> u128 {
        self.0
    }

    /// The partition of keys that this subject decides, below [`PARTITIONS`].
    pub const fn partition(self) -> u16 {
        (self.0 >> 96) as u16 % PARTITIONS
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

    /// Regression: `("a_b", "c")` and `("a", "b_c")` had the same key.
    #[test]
    fn different_attributes_have_different_subjects() {
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
    fn two_random_secrets_hash_differently() {
        let subject = |secret: &Secret| secret.hasher(["user"]).subject([Some("42")].into_iter());
        assert_ne!(subject(&Secret::random()), subject(&Secret::random()));
    }

    #[test]
    fn the_hash_depends_on_the_secret_and_debug_output_hides_it() {
        let parts = [("user", Some("42"))];
        assert_eq!(hash("a", &parts), hash("a", &parts));
        assert_ne!(hash("a", &parts), hash("b", &parts));
        assert_ne!(hash("a", &parts), hash("a", &[("ip", Some("42"))]));
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?} {:?}", secret.hasher(["user"])), "Secret(…) SubjectHasher(…)");
    }
}
