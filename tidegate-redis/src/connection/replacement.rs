//! `Replacement`: a new connection in place of one that still works, since the host name may resolve to another server by now.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::RedisResult;
use tokio::time::Instant;

use crate::server_link::ServerLink;
use crate::timer;

/// Shortest time between two replacements.
const MIN_REPLACE_INTERVAL: Duration = Duration::from_millis(100);

/// A connection that is being made.
pub(super) type Connecting = Pin<Box<dyn Future<Output = RedisResult<ServerLink>> + Send>>;

/// A connection that replaces one that works.
pub(super) enum Replacement {
    None,
    Connecting(Connecting),
    /// It is used as soon as everything on the old one is answered.
    Ready(Box<ServerLink>),
    /// The next one may be made then.
    CoolingDown {
        until: Instant,
    },
}

impl Replacement {
    pub(super) const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Continues the connection attempt, and returns whether it has ended.
    pub(super) fn poll_connect(&mut self, cx: &mut Context<'_>) -> bool {
        let Self::Connecting(connecting) = self else { return false };
        let Poll::Ready(attempt) = connecting.as_mut().poll(cx) else { return false };
        *self = attempt.map_or_else(|_| Self::cooling_down(), |link| Self::Ready(Box::new(link)));
        true
    }

    /// The new connection, if there is one.
    pub(super) fn take_link(&mut self) -> Option<ServerLink> {
        if !matches!(self, Self::Ready(_)) {
            return None;
        }
        match std::mem::replace(self, Self::cooling_down()) {
            Self::Ready(link) => Some(*link),
            _ => None,
        }
    }

    /// Ends the time in which no other may be made. Returns whether that is now.
    pub(super) fn end_cooldown(&mut self) -> bool {
        let is_over = matches!(self, Self::CoolingDown { until } if *until <= timer::now());
        if is_over {
            *self = Self::None;
        }
        is_over
    }

    fn cooling_down() -> Self {
        Self::CoolingDown { until: timer::now() + MIN_REPLACE_INTERVAL }
    }
}
