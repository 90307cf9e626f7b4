//! The flags that all instances of a deployment have in common: its namespace and its secret. The secret appears in no help, error or log.

use std::path::Path;

use clap::Args;
use ring::hmac;
use tidegate::Secret;
use tidegate::spi::Namespace;

use crate::command::failure::Failure;

/// The longest secret that is read from a file.
const MAX_SECRET_BYTES: u64 = 4096;

/// The namespace.
#[derive(Args)]
pub struct NamespaceArgs {
    /// Name that separates this deployment from others on the same store: its keys begin with it, and only its instances are counted. The same on
    /// all instances. It has 2 to 32 letters, digits, `-`, `_`, `.` and `:`, and does not begin with the name of another
    #[arg(long, value_name = "NAME", env = "TIDEGATE_NAMESPACE", default_value = Namespace::DEFAULT)]
    pub namespace: Namespace,
}

/// The secret that subjects are hashed with.
#[derive(Args)]
pub struct SecretArgs {
    /// The secret for hashing subjects, the same on all instances
    ///
    /// Prefer the environment variable: other users of the machine can see command lines. Without a secret, the memory store draws a random one, and a
    /// shared store uses a public default.
    #[arg(long, value_name = "TEXT", env = "TIDEGATE_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// File with the secret; white space around it is no part of it
    #[arg(long, value_name = "FILE", env = "TIDEGATE_SECRET_FILE", value_parser = SecretText::read)]
    secret_file: Option<SecretText>,
}

/// The content of a file with a secret.
#[derive(Clone)]
struct SecretText(String);

impl SecretText {
    /// Reads a file. The error does not repeat its content.
    fn read(path: &str) -> Result<Self, String> {
        let unreadable = |error: std::io::Error| format!("{path}: {error}");
        let length = std::fs::metadata(Path::new(path)).map_err(unreadable)?.len();
        if length > MAX_SECRET_BYTES {
            return Err(format!("the file has {length} bytes; a secret has at most {MAX_SECRET_BYTES}"));
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        Ok(Self(text.trim().to_owned()))
    }
}

impl SecretArgs {
    /// The key that receipts and ids of leases and reservations are signed with, if a secret is set.
    pub(crate) fn token_key(&self) -> Option<hmac::Key> {
        self.derive_key(b"tidegate token key")
    }

    /// A key for one purpose, so that no other use of the secret can make its signatures.
    fn derive_key(&self, purpose: &[u8]) -> Option<hmac::Key> {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, self.text()?.as_bytes());
        Some(hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&secret, purpose).as_ref()))
    }

    fn text(&self) -> Option<&str> {
        self.secret.as_deref().or_else(|| self.secret_file.as_ref().map(|file| &*file.0))
    }

    /// The secret, if one is set. An empty one is refused: anybody could guess it.
    pub fn secret(&self) -> Result<Option<Secret>, Failure> {
        if self.secret.is_some() && self.secret_file.is_some() {
            return Err(Failure::usage("--secret and --secret-file are both given: choose one"));
        }
        match self.text() {
            Some("") => Err(Failure::usage(
                "the secret is empty: set TIDEGATE_SECRET to a random text, such as the output of `openssl rand -hex 16`, or \
                 unset it",
            )),
            secret => Ok(secret.map(Secret::new)),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        secret: SecretArgs,
    }

    fn parse(arguments: &[&str]) -> Result<SecretArgs, String> {
        let command = Command::try_parse_from([&["serve"][..], arguments].concat());
        command.map(|command| command.secret).map_err(|error| error.to_string())
    }

    #[test]
    fn a_secret_in_a_file_is_the_same_as_in_a_flag() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "s1\n").unwrap();
        let path = file.path().to_str().unwrap();
        let (in_file, in_flag) = (parse(&["--secret-file", path]).unwrap(), parse(&["--secret", "s1"]).unwrap());
        assert_eq!(in_file.text(), in_flag.text());
        assert!(parse(&["--secret-file", path, "--secret", "s1"]).unwrap().secret().is_err(), "which of the two?");
        std::fs::write(file.path(), " \n").unwrap();
        assert!(parse(&["--secret-file", path]).unwrap().secret().is_err(), "an empty secret");
        assert!(parse(&["--secret-file", "/nowhere"]).is_err_and(|error| error.contains("No such file")));
        std::fs::write(file.path(), "x".repeat(5000)).unwrap();
        assert!(parse(&["--secret-file", path]).is_err_and(|error| error.contains("at most 4096")));
    }
}
