//! `Known`: what was learnt about a topology, and may be outdated. One caller at a time learns anew, and those who wait for
//! it share what it finds, so that a server that is gone is not asked for by everybody in turn.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tidegate::{StoreError, StoreErrorKind};

/// A value that is learnt, doubted and learnt anew.
pub(crate) struct Known<T> {
    learning: tokio::sync::Mutex<()>,
    state: RwLock<State<T>>,
}

/// How often it had been learnt when a value was taken: who doubts says which one it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Round(u64);

struct State<T> {
    round: Round,
    doubted: bool,
    value: Option<T>,
    /// Why the last attempt failed.
    failure: Option<(StoreErrorKind, String)>,
}

impl<T: Clone> Known<T> {
    /// Nothing yet.
    pub(crate) fn nothing() -> Self {
        let state = State { round: Round(0), doubted: true, value: None, failure: None };
        Self { learning: tokio::sync::Mutex::new(()), state: RwLock::new(state) }
    }

    /// What is known, and if nothing is or it is in doubt, what `learn` finds. It is given what was known before.
    pub(crate) async fn take(
        &self,
        learn: impl AsyncFnOnce(Option<T>) -> Result<T, StoreError>,
    ) -> Result<(T, Round), StoreError> {
        let seen = {
            let state = self.read();
            match &state.value {
                Some(value) if !state.doubted => return Ok((value.clone(), state.round)),
                _ => state.round,
            }
        };
        let _one_at_a_time = self.learning.lock().await;
        let before = {
            let state = self.read();
            if state.round > seen {
                return state.outcome();
            }
            state.value.clone()
        };
        let learnt = learn(before).await;
        let mut state = self.write();
        state.round = Round(state.round.0 + 1);
        state.doubted = learnt.is_err();
        match learnt {
            Ok(value) => (state.value, state.failure) = (Some(value), None),
            Err(error) => state.failure = Some((error.kind(), error.to_string())),
        }
        state.outcome()
    }

    /// Says that the value of `round` may be outdated. One that was learnt since is not.
    pub(crate) fn doubt(&self, round: Round) {
        let mut state = self.write();
        state.doubted |= state.round == round;
    }

    fn read(&self) -> RwLockReadGuard<'_, State<T>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<T>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> State<T> {
    fn outcome(&self) -> Result<(T, Round), StoreError> {
        match (&self.failure, &self.value) {
            (Some((kind, message)), _) => Err(StoreError::new(*kind, message.clone())),
            (None, Some(value)) => Ok((value.clone(), self.round)),
            (None, None) => Err(StoreError::new(StoreErrorKind::Unavailable, "nothing is known of the store yet")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn those_who_wait_share_what_one_finds() {
        let (known, asked) = (Known::nothing(), AtomicU32::new(0));
        let learn = async |_: Option<u32>| {
            tokio::task::yield_now().await;
            Ok(asked.fetch_add(1, Ordering::Relaxed))
        };
        let (one, two, three) = tokio::join!(known.take(learn), known.take(learn), known.take(learn));
        assert_eq!([one.unwrap().0, two.unwrap().0, three.unwrap().0], [0, 0, 0]);
        let (_, round) = known.take(learn).await.unwrap();
        known.doubt(round);
        let (value, later) = known.take(learn).await.unwrap();
        assert_eq!(value, 1);
        known.doubt(round);
        assert_eq!(known.take(learn).await.unwrap(), (1, later), "an old doubt does not touch what is new");
    }

    #[tokio::test]
    async fn a_failure_is_shared_by_those_who_wait_and_tried_again_by_the_next() {
        let known = Known::<u32>::nothing();
        let fail = async |_: Option<u32>| {
            tokio::task::yield_now().await;
            Err(StoreError::new(StoreErrorKind::Refused, "no"))
        };
        let never = async |_: Option<u32>| panic!("asked although another had just asked");
        let (one, two) = tokio::join!(known.take(fail), known.take(never));
        assert_eq!(
            (one.unwrap_err().kind(), two.unwrap_err().kind()),
            (StoreErrorKind::Refused, StoreErrorKind::Refused)
        );
        assert_eq!(known.take(async |_| Ok(7)).await.unwrap().0, 7);
    }
}
