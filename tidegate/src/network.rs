//! `Network`: a hash of the network of an address. Newcomers share [overflow buckets](crate::overflow) by it.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;

use siphasher::sip128::SipHasher24;

/// A hash of the network that the address of a subject belongs to: the first 24 bits of an IPv4 address, the first 48 of an IPv6
/// address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network(NonZeroU32);

/// Hashes the networks of addresses.
#[derive(Clone)]
pub(crate) struct NetworkHasher(SipHasher24);

impl Network {
    /// A network from an existing hash.
    pub const fn from_hash(hash: u32) -> Self {
        match NonZeroU32::new(hash) {
            Some(hash) => Self(hash),
            None => Self(NonZeroU32::MIN),
        }
    }

    /// The hash.
    pub const fn hash(self) -> u32 {
        self.0.get()
    }
}

/// Without the hash: there are few networks, so that with a public secret it could be guessed.
impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Network(…)")
    }
}

impl NetworkHasher {
    pub(crate) fn new(key: &[u8; 16]) -> Self {
        Self(SipHasher24::new_with_key(key))
    }

    /// The network of an address. An IPv4 address mapped into IPv6 is that IPv4 address.
    pub(crate) fn network(&self, address: IpAddr) -> Network {
        // The version, then the first three or six bytes.
        let mut prefix = [0; 7];
        match address.to_canonical() {
            IpAddr::V4(address) => {
                prefix[0] = 4;
                prefix[1..4].copy_from_slice(&address.octets()[..3]);
            }
            IpAddr::V6(address) => {
                prefix[0] = 6;
                prefix[1..].copy_from_slice(&address.octets()[..6]);
            }
        }
        Network::from_hash(self.0.hash(&prefix).as_u128() as u32)
    }
}

impl fmt::Debug for NetworkHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkHasher(…)")
    }
}

/// The address that a subject's text is, or begins with: `203.0.113.9`, or a network such as `2001:db8::/64`.
pub(crate) fn address_in_text(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;

    fn network(secret: &str, address: &str) -> Network {
        Secret::new(secret).network_hasher().network(address_in_text(address).unwrap())
    }

    #[test]
    fn addresses_of_one_network_have_the_same_hash() {
        for (one, other) in [
            ("203.0.113.9", "203.0.113.200"),
            ("203.0.113.9", "::ffff:203.0.113.1"),
            ("203.0.113.9", "203.0.113.0/24"),
            ("2001:db8:1:2::/64", "2001:db8:1:ffff:1:2:3:4"),
        ] {
            assert_eq!(network("s", one), network("s", other), "{one} {other}");
        }
        for (one, other) in
            [("203.0.113.9", "203.0.112.9"), ("203.0.113.9", "2001:db8::1"), ("2001:db8:1::", "2001:db8:2::")]
        {
            assert_ne!(network("s", one), network("s", other), "{one} {other}");
        }
    }

    #[test]
    fn the_hash_depends_on_the_secret_and_is_not_shown() {
        assert_ne!(network("a", "203.0.113.9"), network("b", "203.0.113.9"));
        let shown = format!("{:?} {:?}", network("a", "203.0.113.9"), Secret::new("a").network_hasher());
        assert_eq!(shown, "Network(…) NetworkHasher(…)");
    }

    #[test]
    fn a_text_that_is_no_address_has_no_network() {
        for text in ["", "ann", "/24", "203.0.113", "203.0.113.9:80"] {
            assert_eq!(address_in_text(text), None, "{text}");
        }
    }
}
