//! `CallerMood`: how long a caller waits, and what it does when it stops.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use tidegate::{Decision, StoreError};

use super::random::{millis, one_in, pick};
use crate::timer;

/// A call in progress.
pub(super) type HeldCall = Pin<Box<dyn Future<Output = Result<Decision, StoreError>> + Send>>;

/// What a caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerMood {
    /// Waits for the result.
    Patient,
    /// Waits for the result, with a deadline of its own.
    Hurried(Duration),
    /// Drops the call after this time.
    HangsUp(Duration),
    /// Polls the call once, and then neither polls nor drops it.
    Holds,
}

impl CallerMood {
    pub(super) fn draw(rng: &mut Rng, budget: Duration) -> Self {
        match rng.u64(..8) {
            0 => Self::Hurried(millis(rng, 1) + Duration::from_millis(pick(rng, &[0, 5, 20]))),
            1 => Self::HangsUp(Duration::ZERO),
            2 => Self::HangsUp(millis(rng, budget.as_millis() as u64 * 2)),
            3 if one_in(rng, 4) => Self::Holds,
            _ => Self::Patient,
        }
    }

    /// The caller's own deadline.
    pub(super) const fn timeout(self) -> Option<Duration> {
        match self {
            Self::Hurried(timeout) => Some(timeout),
            _ => None,
        }
    }

    /// Waits for `call` as this caller does. The error is the unfinished call.
    pub(super) async fn wait_for(self, mut call: HeldCall) -> Result<Result<Decision, StoreError>, HeldCall> {
        let result = match self {
            Self::Patient | Self::Hurried(_) => Some(call.as_mut().await),
            Self::HangsUp(wait) if !wait.is_zero() => timer::timeout(wait, call.as_mut()).await,
            Self::HangsUp(_) | Self::Holds => {
                poll_fn(|cx| match call.as_mut().poll(cx) {
                    Poll::Ready(result) => Poll::Ready(Some(result)),
                    Poll::Pending => Poll::Ready(None),
                })
                .await
            }
        };
        result.ok_or(call)
    }
}
