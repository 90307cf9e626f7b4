//! `Known`: what was learnt about a topology, and may be outdated. It is learnt anew in a task of its own, whoever waits or
//! stops waiting, and not more often than every [`REST`]: while a failover takes its seconds, nobody is asked by every call.
//!
//! What is known is used, even if it is in doubt: a server that is gone fails at once. Only who has been told that it is wrong
//! waits for what is new, and only as long as those before it did not wait in vain.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{StoreError, StoreErrorKind};
use tokio::sync::Notify;

use crate::patience::{self, Patience};

/// How long it rests after it was learnt, or could not be.
const REST: Duration = Duration::from_millis(100);

/// A value that is learnt, doubted and learnt anew.
pub(crate) struct Known<T>(Arc<Inner<T>>);

/// How often it had been learnt when a value was taken: who doubts says which one it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Round(u64);

/// A question that is being asked.
pub(crate) type Asked<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

struct Inner<T> {
    state: Mutex<State<T>>,
    changed: Notify,
}

struct State<T> {
    /// The attempts to learn it so far.
    round: Round,
    doubted: bool,
    value: Option<T>,
    /// Why the last attempt failed.
    failure: Option<(StoreErrorKind, Arc<str>)>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// It is being learnt, and that may be waited for.
    Learning,
    /// It is being learnt, and somebody has waited in vain.
    Slow,
    Resting,
}

/// Ends the phase of learning, also if its task is stopped.
struct Learning<T: Clone>(Arc<Inner<T>>);

impl<T: Clone + Send + 'static> Known<T> {
    /// Nothing yet.
    pub(crate) fn nothing() -> Self {
        let state = State { round: Round(0), doubted: true, value: None, failure: None, phase: Phase::Idle };
        Self(Arc::new(Inner { state: Mutex::new(state), changed: Notify::new() }))
    }

    /// What is known. If it is in doubt, `learn` begins, which is given what was known before; it is waited for only if nothing
    /// is known and nobody has tried.
    pub(crate) async fn take<L>(
        &self,
        patience: Patience,
        learn: impl Fn(Option<T>) -> L,
    ) -> Result<(T, Round), StoreError>
    where
        L: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.start(&learn);
        let seen = {
            let state = self.0.lock();
            if state.value.is_some() || (state.failure.is_some() && !patience.insists) {
                return state.outcome();
            }
            state.round
        };
        self.later(seen, patience, learn).await
    }

    /// What is known after `round`, which was found to be wrong; if that cannot be had soon, what is known still.
    pub(crate) async fn renewed<L>(
        &self,
        round: Round,
        patience: Patience,
        learn: impl Fn(Option<T>) -> L,
    ) -> Result<(T, Round), StoreError>
    where
        L: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.doubt(round);
        self.later(round, patience, learn).await
    }

    /// Says that the value of `round` may be outdated. One that was learnt since is not.
    pub(crate) fn doubt(&self, round: Round) {
        let mut state = self.0.lock();
        state.doubted |= state.round == round;
    }

    /// What is known at this moment, in doubt or not.
    pub(crate) fn now(&self) -> Option<T> {
        self.0.lock().value.clone()
    }

    /// Waits until something has been learnt after `round`, as long as there is hope.
    async fn later<L>(
        &self,
        round: Round,
        patience: Patience,
        learn: impl Fn(Option<T>) -> L,
    ) -> Result<(T, Round), StoreError>
    where
        L: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let learnt = async {
            loop {
                let mut changed = std::pin::pin!(self.0.changed.notified());
                changed.as_mut().enable();
                self.start(&learn);
                {
                    let state = self.0.lock();
                    let hope = patience.insists || state.phase == Phase::Learning;
                    if state.round > round || !hope {
                        return state.outcome();
                    }
                }
                changed.await;
            }
        };
        if let Some(outcome) = patience::within(patience.beginning, learnt).await {
            return outcome;
        }
        let mut state = self.0.lock();
        if state.phase == Phase::Learning {
            state.phase = Phase::Slow;
            self.0.changed.notify_waiters();
        }
        state.outcome()
    }

    /// Begins to learn, if there is doubt and it is time.
    fn start<L>(&self, learn: &impl Fn(Option<T>) -> L)
    where
        L: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let before = {
            let mut state = self.0.lock();
            if !state.doubted || state.phase != Phase::Idle {
                return;
            }
            state.phase = Phase::Learning;
            state.value.clone()
        };
        let (learning, learn) = (Learning(Arc::clone(&self.0)), learn(before));
        tokio::spawn(async move { patience::rest(learning.0.end(learn.await)).await });
    }
}

impl<T: Clone> Inner<T> {
    /// Takes what was learnt, and says how long to rest. The first time it is not known how long it has been true.
    fn end(&self, learnt: Result<T, StoreError>) -> Duration {
        let mut state = self.lock();
        let rest = if state.value.is_none() && learnt.is_ok() { Duration::ZERO } else { REST };
        state.round = Round(state.round.0 + 1);
        state.doubted = learnt.is_err();
        state.phase = Phase::Resting;
        match learnt {
            Ok(value) => (state.value, state.failure) = (Some(value), None),
            Err(error) => state.failure = Some((error.kind(), error.to_string().into())),
        }
        self.changed.notify_waiters();
        rest
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> State<T> {
    fn outcome(&self) -> Result<(T, Round), StoreError> {
        match (&self.value, &self.failure) {
            (Some(value), _) => Ok((value.clone(), self.round)),
            (None, Some((kind, message))) => Err(StoreError::new(*kind, message.to_string())),
            (None, None) => Err(StoreError::new(StoreErrorKind::Unavailable, "nothing is known of the store yet")),
        }
    }
}

impl<T: Clone> Drop for Learning<T> {
    fn drop(&mut self) {
        self.0.lock().phase = Phase::Idle;
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn soon() -> Patience {
        Patience::within(Duration::from_millis(25))
    }

    /// Learns how often it was learnt.
    fn counting(asked: &Arc<AtomicU32>) -> impl Fn(Option<u32>) -> std::future::Ready<Result<u32, StoreError>> {
        let asked = Arc::clone(asked);
        move |_| std::future::ready(Ok(asked.fetch_add(1, Ordering::Relaxed)))
    }

    async fn fail(_: Option<u32>) -> Result<u32, StoreError> {
        Err(StoreError::new(StoreErrorKind::Refused, "no"))
    }

    async fn hang(_: Option<u32>) -> Result<u32, StoreError> {
        std::future::pending().await
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_share_what_one_finds() {
        let (known, asked) = (Known::nothing(), Arc::default());
        let learn = counting(&asked);
        let take = || known.take(soon(), &learn);
        let (one, two, three) = tokio::join!(take(), take(), take());
        assert_eq!([one.unwrap().0, two.unwrap().0, three.unwrap().0], [0, 0, 0]);
        let (_, round) = take().await.unwrap();
        let (value, later) = known.renewed(round, soon(), &learn).await.unwrap();
        assert_eq!(value, 1);
        known.doubt(round);
        assert_eq!(take().await.unwrap(), (1, later), "an old doubt does not touch what is new");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_is_used_until_it_is_time_to_ask_again() {
        let (known, asked) = (Known::nothing(), Arc::default());
        let learn = counting(&asked);
        let (_, mut round) = known.take(soon(), &learn).await.unwrap();
        let began = patience::now();
        for _ in 0..10_000 {
            (_, round) = known.renewed(round, soon(), &learn).await.unwrap();
            patience::rest(Duration::from_millis(1)).await;
        }
        let (spent, asked) = (began.elapsed(), asked.load(Ordering::Relaxed));
        assert!((90..=102).contains(&asked), "asked {asked} times in {spent:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_told_at_once_until_another_attempt_succeeds() {
        let known = Known::<u32>::nothing();
        assert_eq!(known.take(soon(), fail).await.unwrap_err().kind(), StoreErrorKind::Refused);
        let began = patience::now();
        while known.take(soon(), fail).await.is_err() && began.elapsed() < Duration::from_millis(90) {
            patience::rest(Duration::from_millis(10)).await;
        }
        // Who insists waits for the next one.
        let insisting = Patience { insists: true, ..soon() };
        let insisting = Patience { beginning: Duration::from_secs(1), ..insisting };
        assert_eq!(known.take(insisting, async |_| Ok(7)).await.unwrap().0, 7);
        // Once something is known, it outlives failures.
        let (_, round) = known.take(soon(), fail).await.unwrap();
        patience::rest(REST * 2).await;
        assert_eq!(known.renewed(round, soon(), fail).await.unwrap().0, 7);
    }

    #[tokio::test(start_paused = true)]
    async fn one_waits_in_vain_for_somebody_who_hangs_and_the_others_do_not() {
        let known = Known::<u32>::nothing();
        let began = patience::now();
        for _ in 0..1_000 {
            assert_eq!(known.take(soon(), hang).await.unwrap_err().kind(), StoreErrorKind::Unavailable);
        }
        assert!(began.elapsed() <= Duration::from_millis(21), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_waiting_does_not_stop_the_learning() {
        let known = Known::<u32>::nothing();
        let learn = async |_: Option<u32>| {
            patience::rest(Duration::from_millis(40)).await;
            Ok(7)
        };
        assert!(known.take(soon(), learn).await.is_err());
        patience::rest(Duration::from_millis(30)).await;
        assert_eq!(known.take(soon(), learn).await.unwrap().0, 7);
    }
}
