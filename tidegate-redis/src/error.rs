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

const NOBODY: &str = "nobody answers at the address of the store; is it up?";
const SILENT: &str = "the store did not answer in time";
const BROKEN: &str = "the connection to the store broke";

/// What came of a call to one server instead of a reply.
#[derive(Clone, Debug)]
pub(crate) enum NodeError {
    /// It was not sent, since there is no connection to the server.
    Down(Arc<Reason>),
    /// It was not sent, since so many others are on their way.
    Overloaded,
    /// What the server or the connection said to it.
    Told(RedisError),
}

/// Why there is no connection to a server.
#[derive(Debug)]
pub(crate) struct Reason {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    /// What the last attempt to connect ran into.
    error: Option<RedisError>,
}

/// A call that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: StoreError,
    /// Some of its keys are on one server and some on another at the moment: sent one by one, they find their way.
    pub(crate) torn: bool,
}

// === impl NodeError ===

impl NodeError {
    /// Whether the call was surely not carried out, and why.
    pub(crate) const fn down(&self) -> Option<&Arc<Reason>> {
        match self {
            Self::Down(reason) => Some(reason),
            Self::Overloaded | Self::Told(_) => None,
        }
    }

    /// What was said to a call that was sent.
    pub(crate) const fn told(&self) -> Option<&RedisError> {
        match self {
            Self::Told(error) => Some(error),
            Self::Down(_) | Self::Overloaded => None,
        }
    }

    /// The code of a server's error.
    pub(crate) fn code(&self) -> Option<&str> {
        self.told().and_then(RedisError::code)
    }

    /// Whether nothing is known of the server: it was silent, or there is no connection to it.
    pub(crate) fn is_silence(&self) -> bool {
        match self {
            Self::Down(_) => true,
            Self::Overloaded => false,
            Self::Told(error) => error.code().is_none(),
        }
    }

    /// Whether the server does not know the script: nothing ran, so loading it and asking again is safe.
    pub(crate) fn is_noscript(&self) -> bool {
        self.is_told(ServerErrorKind::NoScript)
    }

    /// Whether some keys of the call are here and some there. Nothing ran.
    pub(crate) fn is_torn(&self) -> bool {
        self.is_told(ServerErrorKind::TryAgain)
    }

    fn is_told(&self, kind: ServerErrorKind) -> bool {
        self.told().is_some_and(|error| error.kind() == ErrorKind::Server(kind))
    }
}

impl From<&NodeError> for StoreError {
    fn from(error: &NodeError) -> Self {
        match error {
            NodeError::Down(reason) => Self::new(reason.kind, reason.message.clone()),
            NodeError::Overloaded => {
                Self::new(StoreErrorKind::Overloaded, "too many calls wait for an answer of the store already")
            }
            NodeError::Told(error) => store_error(error),
        }
    }
}

// === impl Reason ===

impl Reason {
    /// There has not been a connection yet.
    pub(crate) const NOT_YET: Self = Self::unavailable("there is no connection to the store yet");
    /// Answers did not come in time.
    pub(crate) const SILENT: Self = Self::unavailable(SILENT);
    /// The connection broke.
    pub(crate) const BROKEN: Self = Self::unavailable(BROKEN);

    /// An attempt to connect ran into `error`. What may pass by itself is told without allocating, however many calls are.
    pub(crate) fn of(error: RedisError) -> Self {
        let reason = if error.is_timeout() {
            Self::unavailable("no connection to the store could be made in time; is its address right, and is it up?")
        } else if is_unresolved(&error) {
            Self::unavailable("the host name of the store leads nowhere; is it right, and does DNS know it?")
        } else if error.is_connection_refusal() {
            Self::unavailable(NOBODY)
        } else if tls_error(&error).is_none() && is_broken(&error) {
            Self::unavailable(BROKEN)
        } else {
            let told = store_error(&error);
            Self { kind: told.kind(), message: told.to_string().into(), error: None }
        };
        Self { error: Some(error), ..reason }
    }

    /// Whether the server did not let us in.
    pub(crate) fn is_authentication(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.kind() == ErrorKind::AuthenticationFailed)
    }

    /// Whether the name could not be looked up.
    pub(crate) fn is_unresolved(&self) -> bool {
        self.error.as_ref().is_some_and(is_unresolved)
    }

    /// Whether it may pass by itself.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.kind == StoreErrorKind::Unavailable
    }

    const fn unavailable(message: &'static str) -> Self {
        Self { kind: StoreErrorKind::Unavailable, message: Cow::Borrowed(message), error: None }
    }
}

// === impl Failed ===

impl Failed {
    /// The failure for an error of a call.
    pub(crate) fn by(error: &NodeError) -> Self {
        Self { error: error.into(), torn: error.is_torn() }
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
        _ if error.is_connection_refusal() => unavailable(NOBODY),
        _ if error.is_timeout() => silent(),
        _ if is_broken(error) => unavailable(BROKEN).possibly_applied(),
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
        "NOSCRIPT" => refused("the store forgot a script that it had just been given; who flushes them?"),
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
    io_error(error)?.get_ref()?.downcast_ref()
}

fn io_error(error: &RedisError) -> Option<&io::Error> {
    error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?.downcast_ref()
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

/// The time is up. Nobody knows how far the call came.
pub(crate) fn silent() -> StoreError {
    unavailable(SILENT).possibly_applied()
}

/// Whether the connection ended, if only in the middle of an answer: the client library calls that one an answer that cannot be
/// read.
fn is_broken(error: &RedisError) -> bool {
    let is_cut = || error.kind() == ErrorKind::Parse && error.to_string().contains("end of input");
    error.is_io_error() || error.is_connection_dropped() || is_cut()
}

/// Whether a name could not be looked up. The standard library has no kind for that, only these words.
fn is_unresolved(error: &RedisError) -> bool {
    io_error(error).is_some_and(|error| error.to_string().contains("failed to lookup address"))
}

/// The beginning of what a server says, without anything that could upset a terminal or a log. Keys may stand in it,
/// subjects only hashed.
fn visible(detail: &str) -> String {
    detail.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(200).collect()
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
