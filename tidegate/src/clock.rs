//! Clocks and timers. Only this file reads the system clock.
//!
//! A store reads a [`Clock`], and [`Limiter::acquire`](crate::Limiter::acquire) waits on a [`Timer`]. [`ManualClock`] is both, for
//! tests.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use crate::Timestamp;
use crate::sync::Mutex;

/// A source of time.
///
/// It may step back: no limit is exceeded then, but less may be granted (see [`algorithm`](crate::spi::algorithm)).
pub trait Clock: Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// A clock that a future can sleep on, independent of a runtime.
///
/// [`SleepTimer`] makes one from the sleep function of a runtime.
pub trait Timer: Clock {
    /// A future that completes after `span`.
    fn sleep(&self, span: Duration) -> Sleep;
}

/// The future that [`Timer::sleep`] returns.
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

/// The system clock: the wall time at its creation plus the monotonic time since.
///
/// Later steps of the wall clock do not affect it, so it never steps back.
#[derive(Clone, Debug)]
pub struct SystemClock {
    /// Reads the processor's time stamp counter where that is reliable, which is the fastest way.
    monotonic: quanta::Clock,
    anchor: u64,
    wall: u64,
}

impl SystemClock {
    /// Starts at the current wall time.
    #[allow(clippy::disallowed_methods, reason = "the only place that reads the system clock")]
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

/// A clock and timer for tests, moved by hand. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Clock, ManualClock, Timestamp};
///
/// let clock = ManualClock::starting_at(Timestamp::from_micros(1_700_000_000_000_000));
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now().as_micros(), 1_700_000_001_000_000);
/// ```
#[derive(Clone, Default)]
pub struct ManualClock(Arc<Mutex<ManualTime>>);

#[derive(Default)]
struct ManualTime {
    now: Timestamp,
    sleepers: BTreeMap<(Timestamp, u64), Option<Waker>>,
    started: u64,
}

impl ManualClock {
    /// A clock that starts at `now`.
    pub fn starting_at(now: Timestamp) -> Self {
        let clock = Self::default();
        clock.set(now);
        clock
    }

    /// Moves the time forward and wakes the sleeps that end by then.
    pub fn advance(&self, span: Duration) {
        let target = self.now().plus(span);
        self.set(target);
    }

    /// Sets the time to `now`, which may be earlier.
    pub fn set(&self, now: Timestamp) {
        let mut due = Vec::new();
        {
            let mut time = self.0.lock();
            time.now = now;
            for ((until, _), waker) in &mut time.sleepers {
                if *until <= now {
                    due.extend(waker.take());
                }
            }
        }
        due.into_iter().for_each(Waker::wake);
    }

    /// The number of sleeps that have not ended. A test waits for it before it moves the clock.
    pub fn pending_sleeps(&self) -> usize {
        let time = self.0.lock();
        time.sleepers.keys().filter(|(until, _)| *until > time.now).count()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.0.lock().now
    }
}

impl Timer for ManualClock {
    fn sleep(&self, span: Duration) -> Sleep {
        let mut time = self.0.lock();
        time.started += 1;
        let id = (time.now.plus(span), time.started);
        time.sleepers.insert(id, None);
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
        let mut time = self.clock.0.lock();
        if self.id.0 <= time.now {
            return Poll::Ready(());
        }
        time.sleepers.insert(self.id, Some(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        self.clock.0.lock().sleepers.remove(&self.id);
    }
}
