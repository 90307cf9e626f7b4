//! `Pending`: the result that a caller waits for and the task of the connection delivers. Whoever is first wins: a caller that
//! goes away before its call is sent withdraws it; one that goes away later changes nothing.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use crate::node_error::NodeError;

use tidegate::sync::{Mutex, MutexGuard};

/// What is done with the result of a call whose caller has gone away.
pub(crate) type Epilogue<T> = Box<dyn FnOnce(T) + Send>;

/// The result of a call, once there is one.
pub(crate) struct Pending<T>(Mutex<PendingState<T>>);

struct PendingState<T> {
    phase: Phase<T>,
    waker: Option<Waker>,
}

enum Phase<T> {
    /// Not sent yet.
    Waiting,
    /// Sent and unanswered.
    Sent,
    /// The caller's deadline has passed; the call is sent and unanswered.
    Expired,
    Finished(Result<T, NodeError>),
    /// The caller went away before the call was sent: it is not sent.
    Withdrawn,
    /// The caller went away after the call was sent.
    Abandoned(Option<Epilogue<T>>),
    /// The caller has the result.
    Taken,
}

impl<T> Pending<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(PendingState { phase: Phase::Waiting, waker: None }))
    }
}

/// For the caller
impl<T> Pending<T> {
    /// Waits for the result.
    pub(crate) async fn wait(&self) -> Result<T, NodeError> {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            match &state.phase {
                Phase::Finished(_) => match std::mem::replace(&mut state.phase, Phase::Taken) {
                    Phase::Finished(result) => Poll::Ready(result),
                    _ => Poll::Ready(Err(NodeError::TimedOut)),
                },
                Phase::Waiting | Phase::Sent => {
                    if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                        state.waker = Some(cx.waker().clone());
                    }
                    Poll::Pending
                }
                Phase::Expired | Phase::Withdrawn | Phase::Abandoned(_) | Phase::Taken => {
                    Poll::Ready(Err(NodeError::TimedOut))
                }
            }
        })
        .await
    }

    /// Withdraws a call that was not sent, because its caller goes away. Returns whether that was in time.
    pub(super) fn withdraw(&self) -> bool {
        let mut state = self.0.lock();
        let is_waiting = matches!(state.phase, Phase::Waiting);
        if is_waiting {
            state.phase = Phase::Withdrawn;
            state.waker = None;
        }
        is_waiting
    }

    /// Records that the caller of a sent call goes away: `epilogue` says what is done with its result.
    pub(super) fn abandon(&self, epilogue: impl FnOnce() -> Option<Epilogue<T>>) {
        let mut state = self.0.lock();
        state.waker = None;
        match std::mem::replace(&mut state.phase, Phase::Taken) {
            Phase::Sent | Phase::Expired => state.phase = Phase::Abandoned(epilogue()),
            Phase::Finished(Ok(reply)) => {
                drop(state);
                if let Some(epilogue) = epilogue() {
                    epilogue(reply);
                }
            }
            phase => state.phase = phase,
        }
    }
}

/// For the task
impl<T> Pending<T> {
    /// Marks the call as sent, unless it was withdrawn or has failed.
    pub(crate) fn begin_send(&self) -> bool {
        let mut state = self.0.lock();
        let is_waiting = matches!(state.phase, Phase::Waiting);
        if is_waiting {
            state.phase = Phase::Sent;
        }
        is_waiting
    }

    /// Whether the call still waits to be sent.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.0.lock().phase, Phase::Waiting)
    }

    /// Fails a call that was not sent. Returns whether it was waiting.
    pub(crate) fn fail_unsent(&self, error: NodeError) -> bool {
        let mut state = self.0.lock();
        if !matches!(state.phase, Phase::Waiting) {
            return false;
        }
        state.phase = Phase::Finished(Err(error));
        wake(state);
        true
    }

    /// Ends the wait of the caller of a sent call, whose deadline has passed.
    pub(crate) fn expire_sent(&self) {
        let mut state = self.0.lock();
        if matches!(state.phase, Phase::Sent) {
            state.phase = Phase::Expired;
            wake(state);
        }
    }

    /// Delivers the result of a sent call.
    pub(crate) fn finish(&self, result: Result<T, NodeError>) {
        let mut state = self.0.lock();
        match std::mem::replace(&mut state.phase, Phase::Taken) {
            Phase::Waiting | Phase::Sent => {
                state.phase = Phase::Finished(result);
                wake(state);
            }
            Phase::Abandoned(epilogue) => {
                drop(state);
                if let (Some(epilogue), Ok(reply)) = (epilogue, result) {
                    epilogue(reply);
                }
            }
            // The caller has been told that its deadline has passed. If it is still there, it counts the reply when it goes.
            Phase::Expired => state.phase = Phase::Finished(result),
            phase => state.phase = phase,
        }
    }
}

/// Wakes the caller after the lock is released.
fn wake<T>(mut state: MutexGuard<'_, PendingState<T>>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}
