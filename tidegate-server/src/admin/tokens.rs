//! `AdminTokens`: the bearer tokens of the admin address, from files or the environment. They appear in no help, error or log, and are
//! compared in constant time.

use std::path::PathBuf;

use clap::Args;
use ring::hmac;
use ring::rand::SystemRandom;

/// Shortest token: 16 characters of a random text are out of reach of guesses.
const MIN_TOKEN_BYTES: usize = 16;

/// Longest token that is read.
const MAX_TOKEN_BYTES: usize = 4096;

const HEADING: &str = "Admin";

/// The flags of the tokens of a server.
#[derive(Args, Clone)]
#[allow(clippy::struct_field_names, reason = "each field is a flag, and named like it")]
pub(crate) struct AdminTokenArgs {
    /// File with the bearer token that everything at --admin accepts; without a token, nothing can be changed there
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ADMIN_TOKEN_FILE", help_heading = HEADING)]
    admin_token_file: Option<PathBuf>,
    /// The token itself; prefer the file or the environment variable, since other users of the machine can see command lines
    #[arg(long, value_name = "TOKEN", env = "TIDEGATE_ADMIN_TOKEN", hide_env_values = true, help_heading = HEADING)]
    admin_token: Option<String>,
    /// File with a bearer token for reading only: metrics, status and subjects; with it, reading needs a token on loopback, too
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ADMIN_READ_TOKEN_FILE", help_heading = HEADING)]
    admin_read_token_file: Option<PathBuf>,
    /// The token for reading itself
    #[arg(long, value_name = "TOKEN", env = "TIDEGATE_ADMIN_READ_TOKEN", hide_env_values = true, help_heading = HEADING)]
    admin_read_token: Option<String>,
}

/// What a caller of the admin address may do. The greater permission includes the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Permission {
    Read,
    Change,
}

/// The tokens. Only their MACs are kept.
#[derive(Debug)]
pub(crate) struct AdminTokens {
    key: hmac::Key,
    change: Option<hmac::Tag>,
    read: Option<hmac::Tag>,
}

impl AdminTokenArgs {
    /// The files of the tokens.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.admin_token_file.iter().chain(&self.admin_read_token_file)
    }

    /// The tokens that the flags name.
    pub(crate) fn tokens(&self) -> Result<AdminTokens, String> {
        let change = read_token("--admin-token", self.admin_token_file.as_ref(), self.admin_token.as_deref())?;
        let read =
            read_token("--admin-read-token", self.admin_read_token_file.as_ref(), self.admin_read_token.as_deref())?;
        if change.is_some() && change == read {
            return Err("--admin-token and --admin-read-token are the same: give each its own".to_owned());
        }
        AdminTokens::new(change.as_deref(), read.as_deref())
    }
}

impl AdminTokens {
    fn new(change: Option<&str>, read: Option<&str>) -> Result<Self, String> {
        // A key of this process: comparing MACs tells nothing about how much of a token is right.
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.map_err(|_| "the system has no random numbers for the admin tokens")?;
        let tag = |token: Option<&str>| token.map(|token| hmac::sign(&key, token.as_bytes()));
        let (change, read) = (tag(change), tag(read));
        Ok(Self { key, change, read })
    }

    /// Whether there is a token.
    pub(crate) const fn is_any(&self) -> bool {
        self.change.is_some() || self.read.is_some()
    }

    /// Whether there is a token for reading alone.
    pub(crate) const fn has_read(&self) -> bool {
        self.read.is_some()
    }

    /// Whether there is a token that permits this.
    pub(crate) fn can_permit(&self, permission: Permission) -> bool {
        self.change.is_some() || permission == Permission::Read && self.read.is_some()
    }

    /// What a token permits, if it is one of these. Takes as long for every token of one length.
    pub(crate) fn permission(&self, token: &[u8]) -> Option<Permission> {
        let is = |tag: &Option<hmac::Tag>| tag.is_some_and(|tag| hmac::verify(&self.key, token, tag.as_ref()).is_ok());
        match (is(&self.change), is(&self.read)) {
            (true, _) => Some(Permission::Change),
            (false, true) => Some(Permission::Read),
            (false, false) => None,
        }
    }
}

/// Reads the token of the flag `FLAG-file` or `FLAG`. Refuses one that is too short. No error repeats a token.
pub fn read_token(flag: &str, file: Option<&PathBuf>, text: Option<&str>) -> Result<Option<String>, String> {
    let token = match (file, text) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(format!("{flag}-file and {flag} are both given: choose one")),
        (None, Some(text)) => text.to_owned(),
        (Some(path), None) => {
            std::fs::read_to_string(path).map_err(|error| format!("{flag}-file {}: {error}", path.display()))?
        }
    };
    let token = token.trim();
    let is_valid = token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_valid || !(MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&token.len()) {
        return Err(format!(
            "{flag}: a token has {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} letters, digits and signs without spaces, such as the \
             output of `openssl rand -hex 32`"
        ));
    }
    Ok(Some(token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: &str = "change-0123456789";
    const READ: &str = "read-0123456789ab";

    #[test]
    fn a_token_permits_what_it_is_for() {
        let permission = |tokens: &AdminTokens, token: &str| tokens.permission(token.as_bytes());
        let both = AdminTokens::new(Some(CHANGE), Some(READ)).unwrap();
        assert_eq!(permission(&both, CHANGE), Some(Permission::Change));
        assert_eq!(permission(&both, READ), Some(Permission::Read));
        for wrong in ["", " ", "change-0123456788", "change-012345678", "change-01234567890", "CHANGE-0123456789"] {
            assert_eq!(permission(&both, wrong), None, "{wrong}");
        }
        let read = AdminTokens::new(None, Some(READ)).unwrap();
        assert_eq!((permission(&read, CHANGE), permission(&read, READ)), (None, Some(Permission::Read)));
        assert!(read.can_permit(Permission::Read) && !read.can_permit(Permission::Change));
        let none = AdminTokens::new(None, None).unwrap();
        assert_eq!(permission(&none, ""), None, "no token is not the empty token");
        assert!(!none.is_any() && !none.can_permit(Permission::Read));
    }

    #[test]
    fn a_token_that_can_be_guessed_or_not_be_sent_is_refused_and_not_repeated() {
        for text in ["", "hunter2", "hunter2 hunter2 hunter2", "hunter2hunter2\u{e9}\u{e9}", "hunter2\nhunter2hunter2"]
        {
            let Err(message) = read_token("--admin-token", None, Some(text)) else { panic!("{text}") };
            assert!(message.contains("openssl rand") && !message.contains("hunter2"), "{message}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{CHANGE}\n")).unwrap();
        let path = file.path().to_owned();
        assert_eq!(
            read_token("--admin-token", Some(&path), None).unwrap().as_deref(),
            Some(CHANGE),
            "the line end is no part"
        );
        assert!(read_token("--admin-token", Some(&path), Some(CHANGE)).is_err(), "which of the two?");
        assert!(read_token("--admin-token", Some(&PathBuf::from("/nowhere")), None).is_err());
    }
}
