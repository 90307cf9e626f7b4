//! `NodeError`: why a call to one server got no reply; and `DownReason`, why there is no connection to it.

use std::borrow::Cow;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tidegate::{StoreError, StoreErrorKind};

use crate::error::{
    CONNECTION_LOST, CONNECTION_REFUSED, ErrorCause, NO_RESPONSE, is_connection_lost, is_unresolved, store_error,
    timed_out, tls_error,
};

/// Why a call to one server got no reply.
#[derive(Clone, Debug)]
pub(crate) enum NodeError {
    /// It was not sent: there is no connection to the server.
    Down(Arc<DownReason>),
    /// It was not sent: too many others wait, or it has waited for too long while the server answered others.
    Overloaded {
        /// Whether other plans of the same subject were waiting.
        is_crowded: bool,
    },
    /// It was sent, and its caller's deadline has passed. That says nothing about the server.
    TimedOut,
    /// It was sent, and the server or the connection reported this error.
    Failed(RedisError),
    /// It was sent and answered; its own part of the reply is an error.
    Rejected(StoreError),
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
            _ => None,
        }
    }

    /// The error of a call that was sent.
    pub(crate) const fn redis_error(&self) -> Option<&RedisError> {
        match self {
            Self::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// The code of the server's error reply, such as `MOVED`.
    pub(crate) fn code(&self) -> Option<&str> {
        self.redis_error().and_then(RedisError::code)
    }

    /// Whether the server did not respond: there is no connection, it was lost, or the server is silent.
    pub(crate) fn is_unresponsive(&self) -> bool {
        match self {
            Self::Down(_) => true,
            Self::Failed(error) => error.code().is_none(),
            Self::Overloaded { .. } | Self::TimedOut | Self::Rejected(_) => false,
        }
    }

    /// Whether the slot is being migrated and the keys of the call are on two servers (`TRYAGAIN`). Nothing ran.
    pub(crate) fn is_mid_migration(&self) -> bool {
        let is_try_again = |error: &RedisError| error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain);
        self.redis_error().is_some_and(is_try_again)
    }
}

impl From<&NodeError> for StoreError {
    fn from(error: &NodeError) -> Self {
        match error {
            NodeError::Down(reason) => match &reason.store_error {
                Some(error) => error.clone(),
                None => Self::new(reason.kind, reason.message.clone()),
            },
            NodeError::Overloaded { is_crowded } => {
                let error = Self::new(StoreErrorKind::Overloaded, "too many requests wait for the store");
                if *is_crowded { error.with_crowded() } else { error }
            }
            NodeError::TimedOut => timed_out(),
            NodeError::Failed(error) => store_error(error),
            NodeError::Rejected(error) => error.clone(),
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

    /// The reason for the `error` that ended a connection.
    pub(crate) fn from_lost_connection(error: &RedisError) -> Self {
        if error.is_timeout() {
            Self::TIMED_OUT
        } else if is_connection_lost(error) {
            Self::CONNECTION_LOST
        } else {
            Self::unavailable("the store does not speak its protocol; is there a proxy in front of it?")
        }
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
