//! The secret of the fleet, from a flag or the environment. It is never shown, not even in help or an error.

use clap::Args;
use tidegate::Secret;

use crate::failure::Failure;

/// The secret that subjects are hashed with.
#[derive(Args)]
pub struct SecretArgs {
    /// The secret that all instances share and hash subjects with
    ///
    /// Prefer the variable: a command line is seen by everybody on the machine. Without a secret a public one is used.
    #[arg(long, value_name = "TEXT", env = "TIDEGATE_SECRET", hide_env_values = true)]
    secret: Option<String>,
}

impl SecretArgs {
    /// The secret, if one is set. An empty one is refused: everybody would guess it.
    pub fn secret(&self) -> Result<Option<Secret>, Failure> {
        match self.secret.as_deref() {
            Some("") => Err(Failure::usage(
                "the secret is empty: set TIDEGATE_SECRET to some random text, such as that of `openssl rand -hex 16`, \
                 or unset it",
            )),
            secret => Ok(secret.map(Secret::new)),
        }
    }
}
