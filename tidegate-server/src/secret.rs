//! The secret of the fleet, from a flag or the environment. It appears in no help, error or log.

use clap::Args;
use ring::hmac;
use tidegate::Secret;

use crate::failure::Failure;

/// The secret that subjects are hashed with.
#[derive(Args)]
pub struct SecretArgs {
    /// The secret for hashing subjects, the same on all instances
    ///
    /// Prefer the environment variable: other users of the machine can see command lines. Without a secret, the memory store draws a random one, and a
    /// shared store uses a public default.
    #[arg(long, value_name = "TEXT", env = "TIDEGATE_SECRET", hide_env_values = true)]
    secret: Option<String>,
}

impl SecretArgs {
    /// The key that receipts are signed with, if a secret is set.
    pub(crate) fn receipt_key(&self) -> Option<hmac::Key> {
        self.derive_key(b"tidegate receipt key")
    }

    /// The key that ids of leases are signed with, if a secret is set.
    pub(crate) fn lease_key(&self) -> Option<hmac::Key> {
        self.derive_key(b"tidegate lease key")
    }

    /// The key that ids of reservations are signed with, if a secret is set.
    pub(crate) fn reservation_key(&self) -> Option<hmac::Key> {
        self.derive_key(b"tidegate reservation key")
    }

    /// A key for one purpose, so that no other use of the secret can make its signatures.
    fn derive_key(&self, purpose: &[u8]) -> Option<hmac::Key> {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_deref()?.as_bytes());
        Some(hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&secret, purpose).as_ref()))
    }

    /// The secret, if one is set. An empty one is refused: anybody could guess it.
    pub fn secret(&self) -> Result<Option<Secret>, Failure> {
        match self.secret.as_deref() {
            Some("") => Err(Failure::usage(
                "the secret is empty: set TIDEGATE_SECRET to a random text, such as the output of `openssl rand -hex 16`, or \
                 unset it",
            )),
            secret => Ok(secret.map(Secret::new)),
        }
    }
}
