//! Time, injected: the only file that may read the machine's clock.
//!
//! A [`Clock`] tells the time to a store, a [`Timer`] lets [`Limiter::acquire`](crate::Limiter::acquire) wait. Both have
//! the same fake, [`ManualClock`], which is public because users test their own limits with it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use crate::Timestamp;

/// Tells the time.
///
/// It may run backwards: every limit stays safe then, and only gives out less than it could (see the
/// [`algorithm`](crate::spi::algorithm) module).
pub trait Clock: Send + Sync {
    /// The present instant.
    fn now(&self) -> Timestamp;
}

/// Lets a future wait without tying the library to a runtime, and tells how long it has waited.
///
/// [`SleepTimer`] makes one from the sleep function of a runtime.
pub trait Timer: Clock {
    /// A future that is ready once `span` has passed.
    fn sleep(&self, span: Duration) -> Sleep;
}

/// The future of a [`Timer`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A [`Timer`] on the sleep function of a runtime.
///
/// ```
/// # use std::time::Duration;
/// # async fn runtime_sleep(_: Duration) {}
/// let timer = tidegate::SleepTimer::new(runtime_sleep); // for example tokio::time::sleep
/// ```
#[derive(Clone, Debug)]
pub struct SleepTimer<F> {
    sleep: F,
    clock: SystemClock,
}

impl<F, S> SleepTimer<F>
where
    F: Fn(Duration) -> S + Send + Sync,
    S: Future<Output = ()> + Send + 'static,
{
    /// A timer that sleeps with `sleep` and reads the system clock.
    pub fn new(sleep: F) -> Self {
        Self { sleep, clock: SystemClock::new() }
    }
}

impl<F: Send + Sync> Clock for SleepTimer<F> {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl<F, S> Timer for SleepTimer<F>
where
    F: Fn(Duration) -> S + Send + Sync,
    S: Future<Output = ()> + Send + 'static,
{
    fn sleep(&self, span: Duration) -> Sleep {
        Box::pin((self.sleep)(span))
    }
}

/// The machine's clock: the wall time at its creation plus the monotonic time since.
///
/// Steps of the wall clock after that do not reach it, so within one process time never runs backwards.
#[derive(Clone, Debug)]
pub struct SystemClock {
    /// Reads the processor's own counter where that is sound: a decision reads the clock once, and this is most of it.
    monotonic: quanta::Clock,
    anchor: u64,
    wall: u64,
}

impl SystemClock {
    /// Reads the wall clock once.
    #[allow(clippy::disallowed_methods, reason = "this is the one place where the machine's clock enters")]
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let monotonic = quanta::Clock::new();
        Self { anchor: monotonic.raw(), monotonic, wall: wall.as_micros() as u64 }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let passed = self.monotonic.delta_as_nanos(self.anchor, self.monotonic.raw());
        Timestamp::from_micros(self.wall + passed / 1000)
    }
}

/// A clock and timer that stand still until told to move. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Clock, ManualClock, Timestamp};
///
/// let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now().as_micros(), 1_700_000_001_000_000);
/// ```
#[derive(Clone, Default)]
pub struct ManualClock(Arc<Mutex<Manual>>);

#[derive(Default)]
struct Manual {
    now: Timestamp,
    sleepers: BTreeMap<(Timestamp, u64), Option<Waker>>,
    started: u64,
}

impl ManualClock {
    /// A clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        let clock = Self::default();
        clock.set(now);
        clock
    }

    /// Moves time forward and wakes whoever slept until then.
    pub fn advance(&self, span: Duration) {
        let target = self.now().plus(span);
        self.set(target);
    }

    /// Moves time to `now`, which may lie in the past.
    pub fn set(&self, now: Timestamp) {
        let mut due = Vec::new();
        {
            let mut manual = self.lock();
            manual.now = now;
            for ((until, _), waker) in &mut manual.sleepers {
                if *until <= now {
                    due.extend(waker.take());
                }
            }
        }
        due.into_iter().for_each(Waker::wake);
    }

    /// How many sleeps have not ended yet: what a test waits for before it moves the clock.
    pub fn pending_sleeps(&self) -> usize {
        let manual = self.lock();
        manual.sleepers.keys().filter(|(until, _)| *until > manual.now).count()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Manual> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.lock().now
    }
}

impl Timer for ManualClock {
    fn sleep(&self, span: Duration) -> Sleep {
        let mut manual = self.lock();
        manual.started += 1;
        let id = (manual.now.plus(span), manual.started);
        manual.sleepers.insert(id, None);
        Box::pin(ManualSleep { clock: self.clone(), id })
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({:?})", self.now())
    }
}

struct ManualSleep {
    clock: ManualClock,
    id: (Timestamp, u64),
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut manual = self.clock.lock();
        if self.id.0 <= manual.now {
            return Poll::Ready(());
        }
        manual.sleepers.insert(self.id, Some(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        self.clock.lock().sleepers.remove(&self.id);
    }
}
