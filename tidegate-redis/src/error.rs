//! Store errors for the errors of the client library: messages say what to do, and never repeat a URL, which may hold a
//! password.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError};
use tidegate::spi::Namespace;
use tidegate::{StoreError, StoreErrorKind};

use crate::reply::unreadable;

/// The permissions that a user needs, as `ACL SETUSER` takes them.
pub(crate) const PERMISSIONS: &str =
    "+evalsha +evalsha_ro +script|load +time +get +mget +exists +psetex +pttl +del +info";

/// The keys that these are for, where the namespace is not known.
const KEYS_OF_A_NAMESPACE: &str = "~NAMESPACE1{*";

/// Those that it needs beside them for rules with a ledger.
pub(crate) const LEDGER_PERMISSIONS: &str = "+xadd +xlen +xrange +xinfo|stream +xdel +set";

pub(crate) const CONNECTION_REFUSED: &str = "nothing listens at the address of the store; is it up?";
pub(crate) const NO_RESPONSE: &str = "the store did not answer in time";
pub(crate) const CONNECTION_LOST: &str = "the connection to the store broke";

/// For a server in cluster mode at a `redis://` URL.
pub(crate) const CLUSTER_MODE: &str = "the server is part of a cluster: write redis+cluster:// instead of redis://";

/// Error replies are cut to this many characters before they are repeated.
const MAX_DETAIL_CHARS: usize = 200;

/// The source of a store error: the error of the client library without the text of replies, which may contain keys.
#[derive(Debug)]
pub(crate) struct ErrorCause {
    kind: ErrorKind,
    /// The code of an error reply.
    code: Option<String>,
    /// The text of an I/O or TLS error.
    io: Option<String>,
}

/// The store error for a call that was sent.
pub(crate) fn store_error(error: &RedisError) -> StoreError {
    describe(error).with_source(ErrorCause::new(error))
}

fn describe(error: &RedisError) -> StoreError {
    if let Some(code) = error.code() {
        return server_error(code, error.detail().unwrap_or_default());
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => denied("the server rejects the user or the password"),
        ErrorKind::InvalidClientConfig => {
            StoreError::new(StoreErrorKind::Unexpected, "the URL of the store is not one that can be connected to")
        }
        _ if tls_error(error).is_some() => handshake_error(tls_error(error)),
        _ if error.is_connection_refusal() => unavailable(CONNECTION_REFUSED),
        _ if error.is_timeout() => timed_out(),
        _ if is_connection_lost(error) => unavailable(CONNECTION_LOST).with_possibly_applied(),
        kind => {
            let message = format!("the store answered something unexpected ({kind:?})");
            StoreError::new(StoreErrorKind::Unexpected, message).with_possibly_applied()
        }
    }
}

/// The store error for an error reply. A known code means that the server refused the whole command, and applied nothing.
fn server_error(code: &str, detail: &str) -> StoreError {
    let refused = |message: &'static str| StoreError::new(StoreErrorKind::Refused, message);
    match code {
        "UNREADABLE" => unreadable(detail.trim().parse().unwrap_or(1)),
        "WRONGTYPE" => StoreError::new(
            StoreErrorKind::Unreadable,
            "a key of the store holds a value of another type; it was left as it is. \
             Delete it, or give this deployment a namespace of its own",
        ),
        "NOAUTH" => denied("the server requires a password; put it into the URL: redis://user:password@host"),
        "WRONGPASS" => denied("the server rejects the user or the password"),
        "NOPERM" => missing_permission(),
        // How servers report a command that is forbidden within a script: Redis 7.0, and later versions.
        "ERR" if detail.starts_with("The user executing the script can't") => missing_permission(),
        "ERR" if detail.starts_with("ACL failure in script") => missing_permission(),
        // How the client library reports a command that is forbidden while it connects, such as SELECT.
        "ERR" if detail.contains("has no permissions to run") => missing_permission(),
        "OOM" => refused("the store is out of memory; raise maxmemory or give the limiter a server of its own"),
        "LOADING" => refused("the store is loading its data"),
        "BUSY" => refused("the store is busy with a long script"),
        "READONLY" => refused("the store is a replica; connect to the primary"),
        "MASTERDOWN" => refused("the store is a replica that lost its primary"),
        "NOREPLICAS" => refused("the store has fewer replicas than min-replicas-to-write"),
        "MISCONF" => refused("the store cannot save its data and refuses to write; see its log"),
        "NOSCRIPT" => refused("the store forgot a script right after it was loaded; does anything flush scripts?"),
        "CLUSTERDOWN" | "TRYAGAIN" => refused("the cluster does not serve this slot at the moment"),
        "MOVED" | "ASK" => refused("the cluster is migrating this slot, and its owner was not found in time"),
        "CROSSSLOT" => StoreError::new(StoreErrorKind::Unsupported, CLUSTER_MODE),
        _ => {
            let message = format!("the server reported an error: {code} {}", sanitize(detail));
            StoreError::new(StoreErrorKind::Unexpected, message).with_possibly_applied()
        }
    }
}

/// The TLS error, such as an untrusted certificate, if that is the cause.
pub(crate) fn tls_error(error: &RedisError) -> Option<&rustls::Error> {
    io_error(error)?.get_ref()?.downcast_ref()
}

fn io_error(error: &RedisError) -> Option<&io::Error> {
    error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?.downcast_ref()
}

/// The store error for a failed TLS handshake. No command was sent.
fn handshake_error(error: Option<&rustls::Error>) -> StoreError {
    match error {
        Some(rustls::Error::InvalidCertificate(reason)) => denied(format!(
            "the certificate of the store is not trusted ({reason:?}); name the CA that signed it: rediss://host?ca=/path"
        )),
        Some(rustls::Error::InvalidMessage(_)) => {
            denied("the store does not speak TLS there: write redis instead of rediss")
        }
        _ => denied("the TLS handshake with the store failed; does it require a client certificate?"),
    }
}

/// The same error without "possibly applied": for queries, which apply nothing.
pub(crate) fn not_applied(error: &StoreError) -> StoreError {
    if error.is_possibly_applied() { StoreError::new(error.kind(), error.to_string()) } else { error.clone() }
}

/// The timeout has expired, and it is unknown whether the call was applied.
pub(crate) fn timed_out() -> StoreError {
    unavailable(NO_RESPONSE).with_possibly_applied()
}

/// Whether the connection was lost. If that happens within a reply, the client library reports a parse error.
pub(crate) fn is_connection_lost(error: &RedisError) -> bool {
    let is_truncated = || error.kind() == ErrorKind::Parse && error.to_string().contains("end of input");
    error.is_io_error() || error.is_connection_dropped() || is_truncated()
}

/// Whether a host name could not be resolved. The standard library has no error kind for that, only this text.
pub(crate) fn is_unresolved(error: &RedisError) -> bool {
    io_error(error).is_some_and(|error| error.to_string().contains("failed to lookup address"))
}

/// The same error for the start of a deployment: no request is involved, so nothing can have been applied, and permissions name its own keys.
pub(crate) fn startup_error(error: &StoreError, namespace: &Namespace) -> StoreError {
    let error = not_applied(error);
    let keys = format!("~{}", namespace.key_pattern());
    match error.to_string() {
        text if text.contains(KEYS_OF_A_NAMESPACE) => {
            StoreError::new(error.kind(), text.replace(KEYS_OF_A_NAMESPACE, &keys))
        }
        _ => error,
    }
}

/// The beginning of an error reply, without control characters that could upset a terminal or a log. It may contain keys,
/// in which subjects are hashed.
fn sanitize(detail: &str) -> String {
    detail.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(MAX_DETAIL_CHARS).collect()
}

pub(crate) fn unavailable(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, message)
}

pub(crate) fn denied(message: impl Into<Cow<'static, str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Denied, message)
}

fn missing_permission() -> StoreError {
    denied(format!(
        "the user lacks a permission; on the keys {KEYS_OF_A_NAMESPACE} allow it {PERMISSIONS} always; \
         behind sentinels +role too, in a cluster +cluster|slots +asking too, for a database other than 0 +select too, \
         and for rules with a ledger {LEDGER_PERMISSIONS} too"
    ))
}

impl ErrorCause {
    pub(crate) fn new(error: &RedisError) -> Self {
        let io = io_error(error).map(|error| sanitize(&error.to_string()));
        Self { kind: error.kind(), code: error.code().map(sanitize), io }
    }
}

impl fmt::Display for ErrorCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.code, &self.io) {
            (Some(code), _) => write!(f, "error reply {code}"),
            (None, Some(io)) => f.write_str(io),
            (None, None) => write!(f, "client error {:?}", self.kind),
        }
    }
}

impl Error for ErrorCause {}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::ServerErrorKind;

    #[test]
    fn the_source_of_an_error_names_the_cause_without_the_text_of_the_reply() {
        let refused = RedisError::from(io::Error::from(io::ErrorKind::ConnectionRefused));
        let source = store_error(&refused).source().map(ToString::to_string);
        assert_eq!(source.as_deref(), Some("connection refused"));

        let reply = (ErrorKind::Server(ServerErrorKind::ResponseError), "An error", "tg1{00}secret-key".to_owned());
        let error = store_error(&RedisError::from(reply));
        let source = error.source().map(|source| format!("{source} {source:?}")).unwrap_or_default();
        assert!(source.starts_with("error reply ERR") && !source.contains("secret-key"), "{source}");
    }
}
