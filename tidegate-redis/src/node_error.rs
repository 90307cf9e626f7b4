//! `NodeError`: why a call to one server got no reply; and `DownReason`, why there is no connection to it.

use std::borrow::Cow;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tidegate::{StoreError, StoreErrorKind};

use crate::error::{
    CONNECTION_LOST, CONNECTION_REFUSED, ErrorCause, NO_RESPONSE, is_connection_lost, is_unresolved, store_error,
    tls_error,
};

/// Why a call to one server got no reply.
#[derive(Clone, Debug)]
pub(crate) enum NodeError {
    /// It was not sent: there is no connection to the server.
    Down(Arc<DownReason>),
    /// It was not sent: too many calls are in flight.
    Overloaded,
    /// It was sent, and the server or the connection reported this error.
    Failed(RedisError),
}

/// Why there is no connection to a server.
#[derive(Debug)]
pub(crate) struct DownReason {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    /// The error of the last connection attempt.
    error: Option<RedisError>,
    /// The store error for it, prepared so that failing calls only clone it.
    store_error: Option<StoreError>,
}

impl NodeError {
    /// The reason if the call was not sent for lack of a connection.
    pub(crate) const fn down_reason(&self) -> Option<&Arc<DownReason>> {
        match self {
            Self::Down(reason) => Some(reason),
            Self::Overloaded | Self::Failed(_) => None,
        }
    }

    /// The error of a call that was sent.
    pub(crate) const fn redis_error(&self) -> Option<&RedisError> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Down(_) | Self::Overloaded => None,
        }
    }

    /// The code of the server's error reply, such as `MOVED`.
    pub(crate) fn code(&self) -> Option<&str> {
        self.redis_error().and_then(RedisError::code)
    }

    /// Whether the server did not respond: there is no connection, it was lost, or the call timed out.
    pub(crate) fn is_unresponsive(&self) -> bool {
        match self {
            Self::Down(_) => true,
            Self::Overloaded => false,
            Self::Failed(error) => error.code().is_none(),
        }
    }

    /// Whether the server does not know the script. Nothing ran, so the call may be sent again after loading it.
    pub(crate) fn is_noscript(&self) -> bool {
        self.is_server_error(ServerErrorKind::NoScript)
    }

    /// Whether the slot is being migrated and the keys of the call are on two servers (`TRYAGAIN`). Nothing ran.
    pub(crate) fn is_mid_migration(&self) -> bool {
        self.is_server_error(ServerErrorKind::TryAgain)
    }

    fn is_server_error(&self, kind: ServerErrorKind) -> bool {
        self.redis_error().is_some_and(|error| error.kind() == ErrorKind::Server(kind))
    }
}

impl From<&NodeError> for StoreError {
    fn from(error: &NodeError) -> Self {
        match error {
            NodeError::Down(reason) => match &reason.store_error {
                Some(error) => error.clone(),
                None => Self::new(reason.kind, reason.message.clone()),
            },
            NodeError::Overloaded => {
                Self::new(StoreErrorKind::Overloaded, "too many calls to the store are in flight already")
            }
            NodeError::Failed(error) => store_error(error),
        }
    }
}

impl DownReason {
    pub(crate) const NOT_CONNECTED_YET: Self = Self::unavailable("there is no connection to the store yet");
    pub(crate) const TIMED_OUT: Self = Self::unavailable(NO_RESPONSE);
    pub(crate) const CONNECTION_LOST: Self = Self::unavailable(CONNECTION_LOST);

    /// The reason for the `error` of a connection attempt. Messages of transient reasons are constants, so that calls
    /// which fail for them do not allocate.
    pub(crate) fn from_connect_error(error: RedisError) -> Self {
        let reason = if error.is_timeout() {
            Self::unavailable("no connection to the store could be made in time; is its address right, and is it up?")
        } else if is_unresolved(&error) {
            Self::unavailable("the host name of the store cannot be resolved; is it right, and does DNS know it?")
        } else if error.is_connection_refusal() {
            Self::unavailable(CONNECTION_REFUSED)
        } else if tls_error(&error).is_none() && is_connection_lost(&error) {
            Self::unavailable(CONNECTION_LOST)
        } else {
            let store_error = store_error(&error);
            Self { kind: store_error.kind(), message: store_error.to_string().into(), error: None, store_error: None }
        };
        let store_error = StoreError::new(reason.kind, reason.message.clone()).with_source(ErrorCause::new(&error));
        Self { error: Some(error), store_error: Some(store_error), ..reason }
    }

    /// Whether the server rejected the user or the password.
    pub(crate) fn is_authentication(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.kind() == ErrorKind::AuthenticationFailed)
    }

    /// Whether the host name could not be resolved.
    pub(crate) fn is_unresolved(&self) -> bool {
        self.error.as_ref().is_some_and(is_unresolved)
    }

    /// Whether it may pass by itself.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.kind == StoreErrorKind::Unavailable
    }

    const fn unavailable(message: &'static str) -> Self {
        Self { kind: StoreErrorKind::Unavailable, message: Cow::Borrowed(message), error: None, store_error: None }
    }
}
