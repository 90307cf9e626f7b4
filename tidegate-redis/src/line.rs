//! `Line`: the connection to one server, and whether to use it. Connections are made in a task of their own, whoever waits or
//! stops waiting; while there is none, calls fail at once, and nothing is kept to be sent later.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::breaker::{Breaker, BreakerState, Outcome, Ticket};
use crate::error::{NodeError, Reason};
use crate::options::RedisOptions;
use crate::patience::{self, Patience};
use crate::state::ServerState;
use crate::way::Way;

/// How long the connection to a server that turned out to be a replica is kept at least: then the name may lead elsewhere.
const RENEWAL: Duration = Duration::from_millis(100);

/// The connection to one server. Clones share it.
#[derive(Clone)]
pub(crate) struct Line(Arc<Shared>);

/// Permission for one call, and the connection for it. Dropped without an [end](Turn::end), it counts as silence if it has
/// waited long enough to call it that.
pub(crate) struct Turn {
    pub(crate) wire: MultiplexedConnection,
    ticket: Option<Ticket>,
    since: Instant,
    seat: Seat,
}

struct Shared {
    way: Arc<Way>,
    /// What an answer may take by the store's own budget.
    answer: Duration,
    most_in_flight: usize,
    in_flight: AtomicUsize,
    overloaded: AtomicU64,
    /// Whether a task makes connections. It may end while somebody holds the lock.
    tended: AtomicBool,
    state: Mutex<State>,
    /// An attempt to connect, or a trial, has ended.
    changed: Notify,
}

struct State {
    breaker: Breaker,
    /// None before the first, and while the breaker is open.
    wire: Option<MultiplexedConnection>,
    /// Why there is none.
    reason: Arc<Reason>,
    /// The number of attempts to connect that have ended.
    attempts: u64,
    task: Option<AbortHandle>,
}

/// One of the calls that are on their way.
struct Seat(Arc<Shared>);

/// What a call is told that wants to begin.
enum Admission {
    Now(MultiplexedConnection, Ticket),
    /// The first connection is being made.
    NotYet(Ticket),
    Down(Arc<Reason>),
}

/// Says that nobody tends the line any more, if its task ends without having said so.
struct Tending {
    line: Weak<Shared>,
    /// Whether it has been said.
    done: bool,
}

impl Line {
    /// A line that nobody has asked for yet: nothing is connected to.
    pub(crate) fn new(way: Way, options: &RedisOptions) -> Self {
        let state = State {
            breaker: Breaker::default(),
            wire: None,
            reason: Arc::new(Reason::NOT_YET),
            attempts: 0,
            task: None,
        };
        Self(Arc::new(Shared {
            way: Arc::new(way),
            answer: Patience::within(options.budget).answer,
            most_in_flight: options.most_in_flight,
            in_flight: AtomicUsize::new(0),
            overloaded: AtomicU64::new(0),
            tended: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Notify::new(),
        }))
    }

    /// Lets a call begin, or says why it must not.
    pub(crate) async fn begin(&self, patience: Patience) -> Result<Turn, NodeError> {
        let seat = Seat::take(&self.0)?;
        let since = patience::now();
        let (mut wire, ticket) = match self.admit() {
            Admission::Now(wire, ticket) => (wire, ticket),
            Admission::Down(reason) if !patience.insists => return Err(NodeError::Down(reason)),
            first => self.wait(patience, since, first).await?,
        };
        wire.set_response_timeout(patience.answer);
        Ok(Turn { wire, ticket: Some(ticket), since, seat })
    }

    /// Makes a new connection in place of one that still works: the server's name may lead elsewhere by now.
    pub(crate) fn renew(&self) {
        let mut state = self.0.lock();
        if state.wire.is_some() {
            self.0.tend(&mut state, true);
        }
    }

    /// How it is, as the line to `address`.
    pub(crate) fn state(&self, address: &str) -> ServerState {
        let state = self.0.lock();
        ServerState {
            address: address.to_owned(),
            breaker: state.breaker.state(),
            opened: state.breaker.opened(),
            in_flight: self.0.in_flight.load(Ordering::Relaxed),
            overloaded: self.0.overloaded.load(Ordering::Relaxed),
        }
    }

    /// Waits for the first connection; who insists, for the end of the next attempt to get one.
    async fn wait(
        &self,
        patience: Patience,
        since: Instant,
        first: Admission,
    ) -> Result<(MultiplexedConnection, Ticket), NodeError> {
        let seen = self.0.lock().attempts;
        let admitted = async {
            loop {
                let changed = self.0.changed.notified();
                let mut changed = std::pin::pin!(changed);
                changed.as_mut().enable();
                match self.admit() {
                    Admission::Now(wire, ticket) => return Ok((wire, ticket)),
                    Admission::Down(reason) if !patience.insists || self.0.lock().attempts > seen => {
                        return Err(NodeError::Down(reason));
                    }
                    Admission::Down(_) | Admission::NotYet(_) => changed.await,
                }
            }
        };
        if let Some(admitted) = patience::within(patience.beginning, admitted).await {
            return admitted;
        }
        if let Admission::NotYet(ticket) = first {
            self.0.settle(ticket, self.0.silence(since), Reason::NOT_YET);
        }
        Err(NodeError::Down(Arc::clone(&self.0.lock().reason)))
    }

    fn admit(&self) -> Admission {
        let mut state = self.0.lock();
        if state.wire.is_none() {
            self.0.tend(&mut state, false);
        }
        if state.wire.is_none() && state.breaker.state() == BreakerState::Closed {
            return Admission::NotYet(state.breaker.ticket());
        }
        let permitted = state.wire.clone().and_then(|wire| state.breaker.admit().map(|ticket| (wire, ticket)));
        permitted
            .map_or_else(|| Admission::Down(Arc::clone(&state.reason)), |(wire, ticket)| Admission::Now(wire, ticket))
    }
}

// === impl Turn ===

impl Turn {
    /// Ends with what the connection gave.
    pub(crate) fn end<T>(mut self, reply: RedisResult<T>) -> Result<T, NodeError> {
        let (outcome, reason) = match &reply {
            Ok(_) => (Outcome::Answered, Reason::NOT_YET),
            Err(error) if error.code().is_some() => (Outcome::Answered, Reason::NOT_YET),
            Err(error) if error.is_timeout() => (self.seat.0.silence(self.since), Reason::SILENT),
            Err(_) => (Outcome::Broken, Reason::BROKEN),
        };
        if let Some(ticket) = self.ticket.take() {
            self.seat.0.settle(ticket, outcome, reason);
        }
        reply.map_err(NodeError::Told)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.seat.0.settle(ticket, self.seat.0.silence(self.since), Reason::SILENT);
        }
    }
}

// === impl Seat ===

impl Seat {
    fn take(shared: &Arc<Shared>) -> Result<Self, NodeError> {
        let mut taken = shared.in_flight.load(Ordering::Relaxed);
        while taken < shared.most_in_flight {
            match shared.in_flight.compare_exchange_weak(taken, taken + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(Self(Arc::clone(shared))),
                Err(now) => taken = now,
            }
        }
        shared.overloaded.fetch_add(1, Ordering::Relaxed);
        Err(NodeError::Overloaded)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waiting in vain since then says of the server: nothing, if it was for a moment only. Callers in a hurry must not
    /// close the way for all others.
    fn silence(&self, since: Instant) -> Outcome {
        if since.elapsed() >= self.answer / 4 { Outcome::Silent } else { Outcome::Unknown }
    }

    /// Starts the task that makes connections, unless it runs already.
    fn tend(self: &Arc<Self>, state: &mut State, renewing: bool) {
        // Whoever opens the breaker may be a value that is dropped outside of the runtime: then the next call starts it.
        if let Ok(runtime) = Handle::try_current()
            && !self.tended.swap(true, Ordering::AcqRel)
        {
            let tending = Tending { line: Arc::downgrade(self), done: false };
            state.task = Some(runtime.spawn(tending.run(Arc::clone(&self.way), renewing)).abort_handle());
        }
    }

    /// Hears what came of a call.
    fn settle(self: &Arc<Self>, ticket: Ticket, outcome: Outcome, reason: Reason) {
        let mut state = self.lock();
        let before = state.breaker.state();
        if state.breaker.settle(ticket, outcome) {
            state.wire = None;
            state.reason = Arc::new(reason);
            self.tend(&mut state, false);
        }
        if before == BreakerState::HalfOpen {
            self.changed.notify_waiters();
        }
    }

    /// Takes what an attempt to connect gave.
    fn attempted(&self, attempt: RedisResult<MultiplexedConnection>) {
        let mut state = self.lock();
        state.attempts += 1;
        match attempt {
            Ok(wire) => {
                state.wire = Some(wire);
                state.breaker.reached();
            }
            // It was to be renewed, and the old one still works.
            Err(_) if state.wire.is_some() => {}
            Err(error) => {
                state.reason = Arc::new(Reason::of(error));
                state.breaker.missed();
            }
        }
        self.changed.notify_waiters();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(task) = self.lock().task.take() {
            task.abort();
        }
    }
}

// === impl Tending ===

impl Tending {
    /// Connects, as often as it takes. A line that works and is to be renewed is tried once.
    async fn run(mut self, way: Arc<Way>, renewing: bool) {
        loop {
            let Some(span) = self.line.upgrade().map(|line| line.lock().breaker.rest()) else { return };
            patience::rest(span).await;
            let attempt = way.connect().await;
            let Some(line) = self.line.upgrade() else { return };
            line.attempted(attempt);
            drop(line);
            if renewing {
                patience::rest(RENEWAL).await;
            }
            let Some(line) = self.line.upgrade() else { return };
            let state = line.lock();
            if state.wire.is_some() {
                // Under the lock, so that whoever finds the line down from now on starts another.
                line.tended.store(false, Ordering::Release);
                self.done = true;
                return;
            }
        }
    }
}

impl Drop for Tending {
    fn drop(&mut self) {
        if let (Some(line), false) = (self.line.upgrade(), self.done) {
            line.tended.store(false, Ordering::Release);
            line.changed.notify_waiters();
        }
    }
}
