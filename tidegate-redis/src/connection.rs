//! `Connection`: the connection to one server, with its breaker and its limit of calls in flight. A background task makes
//! connections, independently of callers. While there is none, calls fail at once; nothing is queued.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::breaker::{Breaker, BreakerState, CallOutcome, Ticket};
use crate::connector::Connector;
use crate::node_error::{DownReason, NodeError};
use crate::options::RedisOptions;
use crate::server_state::ServerState;
use crate::timeouts::Timeouts;
use crate::timer;

/// Shortest time between two replacements of a working connection (see [`Connection::replace`]).
const MIN_REPLACE_INTERVAL: Duration = Duration::from_millis(100);

/// The connection to one server. Clones share it.
#[derive(Clone)]
pub(crate) struct Connection(Arc<ConnectionInner>);

/// One admitted call. Dropped without [`finish`](Self::finish), it counts as a timeout if it has waited long enough.
pub(crate) struct ActiveCall {
    pub(crate) connection: MultiplexedConnection,
    ticket: Option<Ticket>,
    since: Instant,
    permit: InFlightPermit,
}

struct ConnectionInner {
    connector: Arc<Connector>,
    /// The response timeout of a decision without a timeout of its own.
    response_timeout: Duration,
    max_in_flight: usize,
    in_flight: AtomicUsize,
    overloaded: AtomicU64,
    /// Whether a [`ReconnectTask`] runs. Atomic, since the task may end while another thread holds the lock.
    reconnecting: AtomicBool,
    state: Mutex<ConnectionState>,
    /// Notified when a connection attempt or a trial call has ended.
    changed: Notify,
}

struct ConnectionState {
    breaker: Breaker,
    /// `None` before the first connection and while the breaker is open.
    connection: Option<MultiplexedConnection>,
    /// Why there is no connection.
    reason: Arc<DownReason>,
    /// The number of finished connection attempts.
    attempts: u64,
    task: Option<AbortHandle>,
}

/// Counts one call in flight until it is dropped.
struct InFlightPermit(Arc<ConnectionInner>);

/// Whether a call may be sent.
enum Admission {
    Admitted(MultiplexedConnection, Ticket),
    /// The first connection is being made.
    Connecting(Ticket),
    Down(Arc<DownReason>),
}

/// The background task that connects. Clears the reconnecting flag when it ends, even if it is aborted.
struct ReconnectTask {
    inner: Weak<ConnectionInner>,
    /// Whether the flag has been cleared.
    finished: bool,
}

impl Connection {
    /// Does not connect yet: the first call does.
    pub(crate) fn new(connector: Connector, options: &RedisOptions) -> Self {
        let state = ConnectionState {
            breaker: Breaker::default(),
            connection: None,
            reason: Arc::new(DownReason::NOT_CONNECTED_YET),
            attempts: 0,
            task: None,
        };
        Self(Arc::new(ConnectionInner {
            connector: Arc::new(connector),
            response_timeout: Timeouts::for_decision(options.timeout).response,
            max_in_flight: options.max_in_flight,
            in_flight: AtomicUsize::new(0),
            overloaded: AtomicU64::new(0),
            reconnecting: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Notify::new(),
        }))
    }

    /// Admits one call, or returns why it must not be sent.
    pub(crate) async fn begin_call(&self, timeouts: Timeouts) -> Result<ActiveCall, NodeError> {
        let permit = InFlightPermit::acquire(&self.0)?;
        let since = timer::now();
        let (mut connection, ticket) = match self.admit() {
            Admission::Admitted(connection, ticket) => (connection, ticket),
            Admission::Down(reason) if !timeouts.waits_for_retry => return Err(NodeError::Down(reason)),
            first => self.wait_for_connection(timeouts, since, first).await?,
        };
        connection.set_response_timeout(timeouts.response);
        Ok(ActiveCall { connection, ticket: Some(ticket), since, permit })
    }

    /// Replaces a connection that still works by a new one, in the background: the host name may resolve to another
    /// server by now.
    pub(crate) fn replace(&self) {
        let mut state = self.0.lock();
        if state.connection.is_some() {
            self.0.start_reconnecting(&mut state, true);
        }
    }

    /// A snapshot for operators.
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

    /// Waits for the first connection, or with `waits_for_retry` for the end of the next connection attempt.
    async fn wait_for_connection(
        &self,
        timeouts: Timeouts,
        since: Instant,
        first: Admission,
    ) -> Result<(MultiplexedConnection, Ticket), NodeError> {
        let attempts_before = self.0.lock().attempts;
        let admitted = async {
            loop {
                let changed = self.0.changed.notified();
                let mut changed = std::pin::pin!(changed);
                changed.as_mut().enable();
                match self.admit() {
                    Admission::Admitted(connection, ticket) => return Ok((connection, ticket)),
                    Admission::Down(reason)
                        if !timeouts.waits_for_retry || self.0.lock().attempts > attempts_before =>
                    {
                        return Err(NodeError::Down(reason));
                    }
                    Admission::Down(_) | Admission::Connecting(_) => changed.await,
                }
            }
        };
        if let Some(admitted) = timer::timeout(timeouts.setup, admitted).await {
            return admitted;
        }
        if let Admission::Connecting(ticket) = first {
            self.0.record(ticket, self.0.outcome_without_response(since), DownReason::NOT_CONNECTED_YET);
        }
        Err(NodeError::Down(Arc::clone(&self.0.lock().reason)))
    }

    fn admit(&self) -> Admission {
        let mut state = self.0.lock();
        if state.connection.is_none() {
            self.0.start_reconnecting(&mut state, false);
        }
        if state.connection.is_none() && state.breaker.state() == BreakerState::Closed {
            return Admission::Connecting(state.breaker.ticket());
        }
        let Some(connection) = state.connection.clone() else {
            return Admission::Down(Arc::clone(&state.reason));
        };
        match state.breaker.admit() {
            Some(ticket) => Admission::Admitted(connection, ticket),
            None => Admission::Down(Arc::clone(&state.reason)),
        }
    }
}

// === impl ActiveCall ===

impl ActiveCall {
    /// Records the outcome of the call and passes its result on.
    pub(crate) fn finish<T>(mut self, result: RedisResult<T>) -> Result<T, NodeError> {
        let inner = &self.permit.0;
        let (outcome, reason) = match &result {
            Ok(_) => (CallOutcome::Responded, DownReason::NOT_CONNECTED_YET),
            Err(error) if error.code().is_some() => (CallOutcome::Responded, DownReason::NOT_CONNECTED_YET),
            Err(error) if error.is_timeout() => (inner.outcome_without_response(self.since), DownReason::TIMED_OUT),
            Err(_) => (CallOutcome::Disconnected, DownReason::CONNECTION_LOST),
        };
        if let Some(ticket) = self.ticket.take() {
            self.permit.0.record(ticket, outcome, reason);
        }
        result.map_err(NodeError::Failed)
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let inner = &self.permit.0;
            inner.record(ticket, inner.outcome_without_response(self.since), DownReason::TIMED_OUT);
        }
    }
}

// === impl InFlightPermit ===

impl InFlightPermit {
    fn acquire(inner: &Arc<ConnectionInner>) -> Result<Self, NodeError> {
        let mut in_flight = inner.in_flight.load(Ordering::Relaxed);
        while in_flight < inner.max_in_flight {
            match inner.in_flight.compare_exchange_weak(in_flight, in_flight + 1, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(Self(Arc::clone(inner))),
                Err(current) => in_flight = current,
            }
        }
        inner.overloaded.fetch_add(1, Ordering::Relaxed);
        Err(NodeError::Overloaded)
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl ConnectionInner ===

impl ConnectionInner {
    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outcome of a call that got no response. Less than a quarter of the response timeout proves nothing: callers
    /// with short deadlines must not open the breaker for all others.
    fn outcome_without_response(&self, since: Instant) -> CallOutcome {
        if since.elapsed() >= self.response_timeout / 4 { CallOutcome::TimedOut } else { CallOutcome::Unknown }
    }

    /// Starts the [`ReconnectTask`], unless it runs already. Outside of a tokio runtime, where an [`ActiveCall`] may be
    /// dropped, the next call starts it.
    fn start_reconnecting(self: &Arc<Self>, state: &mut ConnectionState, replaces: bool) {
        if let Ok(runtime) = Handle::try_current()
            && !self.reconnecting.swap(true, Ordering::AcqRel)
        {
            let task = ReconnectTask { inner: Arc::downgrade(self), finished: false };
            state.task = Some(runtime.spawn(task.run(Arc::clone(&self.connector), replaces)).abort_handle());
        }
    }

    /// Records how a call ended. If that opens the breaker, drops the connection for `reason`.
    fn record(self: &Arc<Self>, ticket: Ticket, outcome: CallOutcome, reason: DownReason) {
        let mut state = self.lock();
        let before = state.breaker.state();
        if state.breaker.record(ticket, outcome) {
            state.connection = None;
            state.reason = Arc::new(reason);
            self.start_reconnecting(&mut state, false);
        }
        if before == BreakerState::HalfOpen {
            self.changed.notify_waiters();
        }
    }

    /// Records the result of a connection attempt.
    fn record_attempt(&self, attempt: RedisResult<MultiplexedConnection>) {
        let mut state = self.lock();
        state.attempts += 1;
        match attempt {
            Ok(connection) => {
                state.connection = Some(connection);
                state.breaker.record_connected();
            }
            // The attempt was to replace a connection that still works.
            Err(_) if state.connection.is_some() => {}
            Err(error) => {
                state.reason = Arc::new(DownReason::from_connect_error(error));
                state.breaker.record_connect_failure();
            }
        }
        self.changed.notify_waiters();
    }
}

impl Drop for ConnectionInner {
    fn drop(&mut self) {
        if let Some(task) = self.lock().task.take() {
            task.abort();
        }
    }
}

// === impl ReconnectTask ===

impl ReconnectTask {
    /// Connects until there is a connection. One that `replaces` a working connection tries once.
    async fn run(mut self, connector: Arc<Connector>, replaces: bool) {
        loop {
            let Some(delay) = self.inner.upgrade().map(|inner| inner.lock().breaker.reconnect_delay()) else { return };
            timer::sleep(delay).await;
            let attempt = connector.connect().await;
            let Some(inner) = self.inner.upgrade() else { return };
            inner.record_attempt(attempt);
            drop(inner);
            if replaces {
                timer::sleep(MIN_REPLACE_INTERVAL).await;
            }
            let Some(inner) = self.inner.upgrade() else { return };
            let state = inner.lock();
            if state.connection.is_some() {
                // Under the lock: a call that finds no connection from now on starts another task.
                inner.reconnecting.store(false, Ordering::Release);
                self.finished = true;
                return;
            }
        }
    }
}

impl Drop for ReconnectTask {
    fn drop(&mut self) {
        if let (Some(inner), false) = (self.inner.upgrade(), self.finished) {
            inner.reconnecting.store(false, Ordering::Release);
            inner.changed.notify_waiters();
        }
    }
}
