//! `GrantTokens`: what a caller of the check API holds, as a signed text that any instance with the same secret renews and ends. Nothing is
//! stored for it.
//!
//! ```text
//! check ──▶ Grant ──▶ issue: token ──▶ caller ──▶ read: Grant ──▶ refund │ renew, release │ commit, release
//!                     of one kind                 of that kind    receipts   leases          reservations
//! ```
//!
//! The payload is one byte of version, one of the kind, three numbers of eight bytes (a time, the instance that wrote the first token of the
//! grant, and the number of the grant there), and the [grant](Grant::to_bytes). Subjects are in it as keyed hashes only. A token of one kind is
//! refused as another: a client that holds the lease of a request may not refund it.
//!
//! What must happen once is recorded by [`ended_grants`].

mod ended_grants;
pub(crate) mod leases;
pub(crate) mod receipts;
pub(crate) mod reservations;
mod text_signer;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use ring::hmac;
use tidegate::{Grant, SystemClock, Timestamp};

use crate::doors::check::BadRequest;
use text_signer::TextSigner;

/// The version of the payload. Payloads of earlier ones began with 0 or 1.
const LAYOUT_VERSION: u8 = 2;

/// Longest token that is read. That of a plan with 32 limits is shorter.
const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// Writes and reads tokens.
#[derive(Debug)]
pub(crate) struct GrantTokens {
    /// None if instances have no secret in common.
    signer: Option<TextSigner>,
    /// Distinguishes the grants of instances; a counter distinguishes those of one.
    instance: u64,
    issued: AtomicU64,
    /// For the age of receipts.
    clock: SystemClock,
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantTokenKind {
    /// Gives back what a check took.
    Receipt = 1,
    /// Renews and releases slots.
    Lease = 2,
    /// Commits and releases what is reserved.
    Reservation = 3,
}

/// The instance that wrote the first token of a grant, and the number of the grant there. Both are 0 for a reservation: a repeated one has the
/// same token, whichever instance answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GrantIdentity {
    instance: u64,
    number: u64,
}

/// The content of a token.
#[derive(Debug, PartialEq, Eq)]
struct TokenContent {
    /// When it was written, or its slots were last known to be held.
    written: Timestamp,
    identity: GrantIdentity,
    grant: Grant,
}

/// Why a token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenProblem {
    /// No instance with this secret wrote it, or it is of another kind.
    Invalid,
    /// Another version of this server wrote it.
    OtherVersion,
}

impl GrantTokens {
    /// Tokens signed with `key`. Without one, a random key serves a store that is not shared; on a shared store there are no
    /// tokens, since instances could not verify those of each other.
    pub(crate) fn new(key: Option<hmac::Key>, is_shared: bool) -> Self {
        let instance = RandomState::new().hash_one("instance");
        Self { signer: TextSigner::new(key, is_shared), instance, issued: AtomicU64::new(1), clock: SystemClock::new() }
    }

    /// Refuses a call that would get a token where there are none.
    pub(crate) fn require(&self, kind: GrantTokenKind) -> Result<(), BadRequest> {
        match &self.signer {
            Some(_) => Ok(()),
            None => {
                Err(BadRequest::new(format!("{}: there are none without a secret; set TIDEGATE_SECRET", kind.name())))
            }
        }
    }

    /// The identity of a new grant.
    pub(crate) fn next_identity(&self) -> GrantIdentity {
        GrantIdentity { instance: self.instance, number: self.issued.fetch_add(1, Ordering::Relaxed) }
    }

    /// The token of a grant, or none without a key.
    fn issue(
        &self,
        kind: GrantTokenKind,
        written: Timestamp,
        identity: GrantIdentity,
        grant: &Grant,
    ) -> Option<String> {
        let mut payload = vec![LAYOUT_VERSION, kind as u8];
        for number in [written.as_micros(), identity.instance, identity.number] {
            payload.extend_from_slice(&number.to_be_bytes());
        }
        payload.extend_from_slice(&grant.to_bytes());
        Some(self.signer.as_ref()?.sign(&payload))
    }

    fn read(&self, kind: GrantTokenKind, token: &str) -> Result<TokenContent, TokenProblem> {
        let signer = self.signer.as_ref().filter(|_| token.len() <= MAX_TOKEN_BYTES).ok_or(TokenProblem::Invalid)?;
        let Some(payload) = signer.verify(token) else {
            let is_older = TextSigner::unverified_start(token).is_some_and(|version| version < LAYOUT_VERSION);
            return Err(if is_older { TokenProblem::OtherVersion } else { TokenProblem::Invalid });
        };
        let [version, own_kind, content @ ..] = payload.as_slice() else { return Err(TokenProblem::OtherVersion) };
        match (*version == LAYOUT_VERSION, *own_kind == kind as u8) {
            (true, true) => TokenContent::from_bytes(content).ok_or(TokenProblem::OtherVersion),
            (true, false) => Err(TokenProblem::Invalid),
            (false, _) => Err(TokenProblem::OtherVersion),
        }
    }
}

impl TokenContent {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut number = || {
            let (number, after) = rest.split_first_chunk()?;
            rest = after;
            Some(u64::from_be_bytes(*number))
        };
        let written = Timestamp::from_micros(number()?);
        let identity = GrantIdentity { instance: number()?, number: number()? };
        Some(Self { written, identity, grant: Grant::from_bytes(rest)? })
    }
}

impl GrantTokenKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Receipt => "receipt",
            Self::Lease => "lease",
            Self::Reservation => "reservation",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use tidegate::{Limit, Limiter, MemoryStore, Request, Rule, RuleSet};

    use super::*;

    const KINDS: [GrantTokenKind; 3] = [GrantTokenKind::Receipt, GrantTokenKind::Lease, GrantTokenKind::Reservation];

    fn key(secret: &str) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
    }

    fn tokens(secret: &str) -> GrantTokens {
        GrantTokens::new(Some(key(secret)), true)
    }

    fn grant() -> Grant {
        let rule = Rule::new("api", Limit::fixed_window(9, Duration::from_mins(1)).unwrap());
        let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), MemoryStore::new());
        limiter.check_now(&Request::new("")).take_grant()
    }

    fn issue(tokens: &GrantTokens, kind: GrantTokenKind) -> String {
        tokens.issue(kind, Timestamp::from_micros(7), tokens.next_identity(), &grant()).unwrap()
    }

    #[test]
    fn only_the_key_that_signed_a_token_reads_it() {
        let text = issue(&tokens("a"), GrantTokenKind::Receipt);
        assert!(tokens("a").read(GrantTokenKind::Receipt, &text).is_ok(), "another instance of the same fleet");
        assert_eq!(tokens("b").read(GrantTokenKind::Receipt, &text), Err(TokenProblem::Invalid));
    }

    #[test]
    fn a_token_of_one_kind_is_never_accepted_as_another() {
        let tokens = tokens("a");
        for kind in KINDS {
            let text = issue(&tokens, kind);
            for other in KINDS {
                assert_eq!(tokens.read(other, &text).is_ok(), other == kind, "a {kind:?} as a {other:?}");
            }
        }
    }

    #[test]
    fn one_changed_bit_anywhere_makes_a_token_unreadable() {
        let tokens = tokens("a");
        let text = issue(&tokens, GrantTokenKind::Lease);
        let (payload, signature) = text.split_once('.').unwrap();
        let parts = [payload, signature].map(|part| URL_SAFE_NO_PAD.decode(part).unwrap());
        for (part, bytes) in parts.iter().enumerate() {
            for bit in 0..bytes.len() * 8 {
                let mut changed = parts.clone();
                changed[part][bit / 8] ^= 1 << (bit % 8);
                let changed = changed.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
                for kind in KINDS {
                    assert!(tokens.read(kind, &changed).is_err(), "bit {bit} of part {part}");
                }
            }
        }
    }

    #[test]
    fn a_token_of_another_version_is_refused_as_one() {
        let tokens = tokens("a");
        let signer = tokens.signer.as_ref().unwrap();
        let payload = |text: &str| URL_SAFE_NO_PAD.decode(text.split('.').next().unwrap()).unwrap();
        let right = payload(&issue(&tokens, GrantTokenKind::Receipt));
        let mut others: Vec<Vec<u8>> = vec![Vec::new(), vec![LAYOUT_VERSION], vec![0; 64], vec![LAYOUT_VERSION + 1, 1]];
        others.extend((0..27).map(|length| right[..length].to_vec()));
        for payload in others {
            assert_eq!(
                tokens.read(GrantTokenKind::Receipt, &signer.sign(&payload)),
                Err(TokenProblem::OtherVersion),
                "{payload:?}"
            );
        }
        // Signed by an earlier version, with a key of its kind.
        for first in [0, 1] {
            let old = TextSigner::new(Some(key("older")), true).unwrap().sign(&[first, 0, 0, 0]);
            assert_eq!(tokens.read(GrantTokenKind::Lease, &old), Err(TokenProblem::OtherVersion));
        }
    }

    #[test]
    fn a_shared_store_without_a_secret_has_no_tokens() {
        for kind in KINDS {
            assert!(GrantTokens::new(None, true).require(kind).is_err());
            assert!(GrantTokens::new(None, false).require(kind).is_ok());
        }
    }
}
