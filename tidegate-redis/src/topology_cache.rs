//! `TopologyCache`: the last known topology, and its refresh in a background task that no caller can cancel. Refreshes are
//! at least [`REFRESH_COOLDOWN`] apart: during a failover of some seconds, not every call queries the servers.
//!
//! A stale value is still used, since a call to a server that is gone fails at once. Only callers redirected by the server
//! wait for a refresh, and they stop waiting once another caller's wait has timed out.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate::sync::Mutex;
use tidegate::{StoreError, StoreErrorKind};
use tokio::sync::Notify;

use crate::error::not_applied;
use crate::timeouts::Timeouts;
use crate::timer;

/// Shortest time between the end of one refresh and the start of the next.
const REFRESH_COOLDOWN: Duration = Duration::from_millis(100);

/// A value that is refreshed in the background once it is marked as stale.
pub(crate) struct TopologyCache<T>(Arc<CacheInner<T>>);

/// Which refresh a value came from. A caller that marks a value as stale names the version that it saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TopologyVersion(u64);

/// A refresh: the new value, or why it failed.
pub(crate) type RefreshFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

struct CacheInner<T> {
    state: Mutex<CacheState<T>>,
    changed: Notify,
}

struct CacheState<T> {
    /// The number of finished refreshes.
    version: TopologyVersion,
    stale: bool,
    value: Option<T>,
    /// Why the last refresh failed.
    failure: Option<StoreError>,
    phase: RefreshPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefreshPhase {
    Idle,
    /// A refresh runs, and callers may wait for it.
    Running,
    /// A refresh runs, and a caller's wait for it has timed out: others do not wait.
    Overdue,
    CoolingDown,
}

/// Returns the cache to [`RefreshPhase::Idle`] when the refresh task ends, even if it is aborted.
struct RefreshGuard<T: Clone>(Arc<CacheInner<T>>);

impl<T: Clone + Send + 'static> TopologyCache<T> {
    /// An empty cache, which is stale.
    pub(crate) fn new() -> Self {
        let state = CacheState {
            version: TopologyVersion(0),
            stale: true,
            value: None,
            failure: None,
            phase: RefreshPhase::Idle,
        };
        Self(Arc::new(CacheInner { state: Mutex::new(state), changed: Notify::new() }))
    }

    /// The cached value. If it is stale, starts `refresh`, which gets the previous value, but waits for it only if there is
    /// no value and no refresh has failed yet.
    pub(crate) async fn get<R>(
        &self,
        timeouts: Timeouts,
        refresh: impl Fn(Option<T>) -> R,
    ) -> Result<(T, TopologyVersion), StoreError>
    where
        R: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.start_refresh(&refresh);
        let version = {
            let state = self.0.state.lock();
            if state.value.is_some() || (state.failure.is_some() && !timeouts.waits_for_retry) {
                return state.result();
            }
            state.version
        };
        // Boxed, since it is rare, and every decision would be as large.
        Box::pin(self.wait_for_newer(version, timeouts, refresh)).await
    }

    /// A value newer than that of `version`, which turned out to be wrong. If none arrives in time, the old one.
    pub(crate) async fn get_newer<R>(
        &self,
        version: TopologyVersion,
        timeouts: Timeouts,
        refresh: impl Fn(Option<T>) -> R,
    ) -> Result<(T, TopologyVersion), StoreError>
    where
        R: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.mark_stale(version);
        Box::pin(self.wait_for_newer(version, timeouts, refresh)).await
    }

    /// Marks the value of `version` as stale. Does nothing if it has been replaced already.
    pub(crate) fn mark_stale(&self, version: TopologyVersion) {
        let mut state = self.0.state.lock();
        state.stale |= state.version == version;
    }

    /// The cached value, stale or not, without starting a refresh.
    pub(crate) fn current(&self) -> Option<T> {
        self.0.state.lock().value.clone()
    }

    /// Waits for a refresh after `version`, unless none can be expected in time.
    async fn wait_for_newer<R>(
        &self,
        version: TopologyVersion,
        timeouts: Timeouts,
        refresh: impl Fn(Option<T>) -> R,
    ) -> Result<(T, TopologyVersion), StoreError>
    where
        R: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let refreshed = async {
            loop {
                let mut changed = std::pin::pin!(self.0.changed.notified());
                changed.as_mut().enable();
                self.start_refresh(&refresh);
                {
                    let state = self.0.state.lock();
                    let may_wait = timeouts.waits_for_retry || state.phase == RefreshPhase::Running;
                    if state.version > version || !may_wait {
                        return state.result();
                    }
                }
                changed.await;
            }
        };
        if let Some(result) = timer::timeout(timeouts.setup_left(), refreshed).await {
            return result;
        }
        let mut state = self.0.state.lock();
        if state.phase == RefreshPhase::Running {
            state.phase = RefreshPhase::Overdue;
            self.0.changed.notify_waiters();
        }
        state.result()
    }

    /// Starts a refresh task if the value is stale and none runs or cools down.
    fn start_refresh<R>(&self, refresh: &impl Fn(Option<T>) -> R)
    where
        R: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let previous = {
            let mut state = self.0.state.lock();
            if !state.stale || state.phase != RefreshPhase::Idle {
                return;
            }
            state.phase = RefreshPhase::Running;
            state.value.clone()
        };
        let (guard, refresh) = (RefreshGuard(Arc::clone(&self.0)), refresh(previous));
        tokio::spawn(async move { timer::sleep(guard.0.finish_refresh(refresh.await)).await });
    }
}

impl<T: Clone> CacheInner<T> {
    /// Stores the result of a refresh, and returns how long to cool down. Not at all after the first value: it may have
    /// changed a moment later.
    fn finish_refresh(&self, result: Result<T, StoreError>) -> Duration {
        let mut state = self.state.lock();
        let cooldown = if state.value.is_none() && result.is_ok() { Duration::ZERO } else { REFRESH_COOLDOWN };
        state.version = TopologyVersion(state.version.0 + 1);
        state.stale = result.is_err();
        state.phase = RefreshPhase::CoolingDown;
        match result {
            Ok(value) => (state.value, state.failure) = (Some(value), None),
            Err(error) => state.failure = Some(not_applied(&error)),
        }
        self.changed.notify_waiters();
        cooldown
    }
}

impl<T: Clone> CacheState<T> {
    fn result(&self) -> Result<(T, TopologyVersion), StoreError> {
        match (&self.value, &self.failure) {
            (Some(value), _) => Ok((value.clone(), self.version)),
            (None, Some(failure)) => Err(failure.clone()),
            (None, None) => {
                Err(StoreError::new(StoreErrorKind::Unavailable, "the topology of the store is not known yet"))
            }
        }
    }
}

impl<T: Clone> Drop for RefreshGuard<T> {
    fn drop(&mut self) {
        self.0.state.lock().phase = RefreshPhase::Idle;
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn decision_timeouts() -> Timeouts {
        Timeouts::for_decision(&crate::RedisOptions::new())
    }

    /// A refresh whose value is the number of refreshes before it.
    fn counting(count: &Arc<AtomicU32>) -> impl Fn(Option<u32>) -> std::future::Ready<Result<u32, StoreError>> {
        let count = Arc::clone(count);
        move |_| std::future::ready(Ok(count.fetch_add(1, Ordering::Relaxed)))
    }

    async fn fail(_: Option<u32>) -> Result<u32, StoreError> {
        Err(StoreError::new(StoreErrorKind::Refused, "no"))
    }

    async fn hang(_: Option<u32>) -> Result<u32, StoreError> {
        std::future::pending().await
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_refresh() {
        let (cache, count) = (TopologyCache::new(), Arc::default());
        let refresh = counting(&count);
        let get = || cache.get(decision_timeouts(), &refresh);
        let (one, two, three) = tokio::join!(get(), get(), get());
        assert_eq!([one.unwrap().0, two.unwrap().0, three.unwrap().0], [0, 0, 0]);
        let (_, first) = get().await.unwrap();
        let (value, second) = cache.get_newer(first, decision_timeouts(), &refresh).await.unwrap();
        assert_eq!(value, 1);
        cache.mark_stale(first);
        assert_eq!(get().await.unwrap(), (1, second), "marking an old version does not affect the new value");
    }

    #[tokio::test(start_paused = true)]
    async fn refreshes_are_at_least_the_cooldown_apart() {
        let (cache, count) = (TopologyCache::new(), Arc::default());
        let refresh = counting(&count);
        let (_, mut version) = cache.get(decision_timeouts(), &refresh).await.unwrap();
        let started = timer::now();
        for _ in 0..10_000 {
            (_, version) = cache.get_newer(version, decision_timeouts(), &refresh).await.unwrap();
            timer::sleep(Duration::from_millis(1)).await;
        }
        let (elapsed, count) = (started.elapsed(), count.load(Ordering::Relaxed));
        assert!((90..=102).contains(&count), "{count} refreshes in {elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_refresh_is_reported_at_once_until_another_succeeds() {
        let cache = TopologyCache::<u32>::new();
        assert_eq!(cache.get(decision_timeouts(), fail).await.unwrap_err().kind(), StoreErrorKind::Refused);
        let started = timer::now();
        while cache.get(decision_timeouts(), fail).await.is_err() && started.elapsed() < Duration::from_millis(90) {
            timer::sleep(Duration::from_millis(10)).await;
        }
        // A call with `waits_for_retry` waits for the next refresh.
        let retrying_timeouts =
            Timeouts { waits_for_retry: true, setup: Duration::from_secs(1), ..decision_timeouts() };
        assert_eq!(cache.get(retrying_timeouts, async |_| Ok(7)).await.unwrap().0, 7);
        // A value outlives later failures.
        let (_, version) = cache.get(decision_timeouts(), fail).await.unwrap();
        timer::sleep(REFRESH_COOLDOWN * 2).await;
        assert_eq!(cache.get_newer(version, decision_timeouts(), fail).await.unwrap().0, 7);
    }

    #[tokio::test(start_paused = true)]
    async fn only_one_caller_waits_for_a_refresh_that_hangs() {
        let cache = TopologyCache::<u32>::new();
        let started = timer::now();
        for _ in 0..1_000 {
            assert_eq!(cache.get(decision_timeouts(), hang).await.unwrap_err().kind(), StoreErrorKind::Unavailable);
        }
        assert!(started.elapsed() <= Duration::from_millis(26), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_continues_after_its_caller_has_stopped_waiting() {
        let cache = TopologyCache::<u32>::new();
        let refresh = async |_: Option<u32>| {
            timer::sleep(Duration::from_millis(40)).await;
            Ok(7)
        };
        assert!(cache.get(decision_timeouts(), refresh).await.is_err());
        timer::sleep(Duration::from_millis(30)).await;
        assert_eq!(cache.get(decision_timeouts(), refresh).await.unwrap().0, 7);
    }
}
