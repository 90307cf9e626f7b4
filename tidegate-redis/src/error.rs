//! What went wrong, in words that say what to do. Nothing here repeats a URL, which may hold a password.

use std::borrow::Cow;
use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tidegate::{StoreError, StoreErrorKind};

use crate::reply::unreadable;

/// What a user needs to be allowed, as `ACL SETUSER` takes it.
pub(crate) const PERMISSIONS: &str = "+evalsha +evalsha_ro +script|load +time +get +psetex +pttl +del +info";

/// A call that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: StoreError,
    /// Some of its keys are on one server and some on another at the moment: sent one by one, they find their way.
    pub(crate) torn: bool,
}

impl Failed {
    /// The failure for an error of a command that was sent.
    pub(crate) fn by(error: &RedisError) -> Self {
        Self { error: store_error(error), torn: error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain) }
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self { error, torn: false }
    }
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// The store error for an error of a command that was sent.
pub(crate) fn store_error(error: &RedisError) -> StoreError {
    if let Some(code) = error.code() {
        return server_error(code, error.detail().unwrap_or_default());
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => denied("the server refuses the user or the password"),
        ErrorKind::InvalidClientConfig => {
            StoreError::new(StoreErrorKind::Unexpected, "the URL of the store is not one that can be connected to")
        }
        _ if tls_error(error).is_some() => untrusted(tls_error(error)),
        _ if error.is_connection_refusal() => unavailable("nobody answers at the address of the store; is it up?"),
        _ if error.is_timeout() => unavailable("the store did not answer in time").possibly_applied(),
        _ if error.is_io_error() || error.is_connection_dropped() => {
            unavailable("the connection to the store broke").possibly_applied()
        }
        kind => {
            let message = format!("the store answered something unexpected ({kind:?})");
            StoreError::new(StoreErrorKind::Unexpected, message).possibly_applied()
        }
    }
}

/// The store error for an error that the server itself reported: by its code, as every command refused whole.
fn server_error(code: &str, detail: &str) -> StoreError {
    let refused = |message: &'static str| StoreError::new(StoreErrorKind::Refused, message);
    match code {
        "UNREADABLE" => unreadable(detail.trim().parse().unwrap_or(1)),
        "WRONGTYPE" => StoreError::new(
            StoreErrorKind::Unreadable,
            "a key of another type stands where a state should be; it was left as it is. \
             Delete it, or give the store a prefix of its own",
        ),
        "NOAUTH" => denied("the server wants a password; put it into the URL: redis://user:password@host"),
        "WRONGPASS" => denied("the server refuses the user or the password"),
        "NOPERM" => forbidden(),
        // What servers say of a command within a script: Redis 7.0, and later ones.
        "ERR" if detail.starts_with("The user executing the script can't") => forbidden(),
        "ERR" if detail.starts_with("ACL failure in script") => forbidden(),
        // The client library's words for what it may not do when it connects, such as choosing a database.
        "ERR" if detail.contains("has no permissions to run") => forbidden(),
        "OOM" => refused("the store is out of memory; raise maxmemory or give the limiter a server of its own"),
        "LOADING" => refused("the store is loading its data"),
        "BUSY" => refused("the store is busy with a long script"),
        "READONLY" => refused("the store is a replica; connect to the primary"),
        "MASTERDOWN" => refused("the store is a replica that lost its primary"),
        "NOREPLICAS" => refused("the store has fewer replicas than min-replicas-to-write"),
        "MISCONF" => refused("the store cannot save its data and refuses to write; see its log"),
        "CLUSTERDOWN" | "TRYAGAIN" => refused("the cluster does not serve this slot at the moment"),
        "MOVED" | "ASK" => refused("the cluster is moving this slot about, and it was not found in time"),
        "CROSSSLOT" => StoreError::new(StoreErrorKind::Unsupported, IN_A_CLUSTER),
        _ => {
            let message = format!("the server reported an error: {code} {}", visible(detail));
            StoreError::new(StoreErrorKind::Unexpected, message).possibly_applied()
        }
    }
}

/// What `redis://` is told by a server in cluster mode.
pub(crate) const IN_A_CLUSTER: &str = "the server is part of a cluster: write redis+cluster:// instead of redis://";

/// What TLS itself has to say, such as that a certificate is not to be trusted.
fn tls_error(error: &RedisError) -> Option<&rustls::Error> {
    let shared = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    shared.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref()
}

/// The handshake failed, so nothing was sent.
fn untrusted(error: Option<&rustls::Error>) -> StoreError {
    match error {
        Some(rustls::Error::InvalidCertificate(why)) => denied(format!(
            "the certificate of the store is not trusted ({why:?}); name the CA that signed it: rediss://host?ca=/path"
        )),
        Some(rustls::Error::InvalidMessage(_)) => {
            denied("the store does not speak TLS there: write redis instead of rediss")
        }
        _ => denied("the store and we agree on no TLS; does it want a certificate of ours?"),
    }
}

/// The error of a question, which has nothing to apply.
pub(crate) fn unapplied(error: &StoreError) -> StoreError {
    StoreError::new(error.kind(), error.to_string())
}

/// Whether the call was surely not carried out because it was never sent.
pub(crate) fn is_unsent(error: &RedisError) -> bool {
    error.is_connection_refusal()
}

/// The beginning of what a server says, without anything that could upset a terminal or a log. Keys may stand in it,
/// subjects only hashed.
fn visible(detail: &str) -> String {
    detail.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(200).collect()
}

/// Whether the server does not know the script: nothing ran, so loading it and asking again is safe.
pub(crate) fn is_noscript(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn unavailable(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, message)
}

fn denied(message: impl Into<Cow<'static, str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Denied, message)
}

fn forbidden() -> StoreError {
    denied(format!(
        "the user may not do this; allow it {PERMISSIONS} on the keys ~tg1* (with a prefix of your own, ~PREFIX1* instead); \
         behind sentinels +role too, in a cluster +cluster|slots +asking too, and for a database other than 0 +select too"
    ))
}
