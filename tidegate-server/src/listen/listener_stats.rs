//! `ListenerStats`: counts what a listener has open, and how often each of its bounds was reached. The server shows them as metrics
//! and in the log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tidegate::sync::Mutex;

/// Counters of one listener.
#[derive(Debug, Default)]
pub(crate) struct ListenerStats {
    connections: AtomicUsize,
    requests: AtomicUsize,
    upstream_requests: AtomicUsize,
    upstream_waiting: AtomicUsize,
    reached: [AtomicU64; Bound::ALL.len()],
    last_accept_error: Mutex<Option<String>>,
}

/// The counters of each address of a server. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressStats {
    pub(crate) http: Arc<ListenerStats>,
    pub(crate) grpc: Arc<ListenerStats>,
    pub(crate) gateway: Arc<ListenerStats>,
    pub(crate) admin: Arc<ListenerStats>,
}

/// A bound on clients that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// All connections are in use; further clients wait.
    MaxConnections,
    /// A connection was closed, since its client has the maximum.
    MaxConnectionsPerClient,
    /// The system did not accept a connection, for example for want of file descriptors.
    Accept,
    /// A request got 503, since the maximum is under way.
    MaxRequests,
    /// A request got 429, since its client has the maximum under way.
    MaxRequestsPerClient,
    /// A request got 503, since too many wait for the upstream.
    UpstreamQueue,
    /// A request got 408, since its body came too slowly.
    Upload,
    /// A client read a response too slowly.
    SlowReader,
    /// A request got 503 or 429, since other large bodies, or those of its client, are in memory.
    LargeBodies,
}

/// Which gauge a [`GaugeGuard`] belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gauge {
    Connections,
    Requests,
    UpstreamRequests,
    UpstreamWaiting,
}

/// Counts one in a gauge until it is dropped.
#[derive(Debug)]
pub(crate) struct GaugeGuard {
    stats: Arc<ListenerStats>,
    gauge: Gauge,
}

impl Bound {
    pub(crate) const ALL: [Self; 9] = [
        Self::MaxConnections,
        Self::MaxConnectionsPerClient,
        Self::Accept,
        Self::MaxRequests,
        Self::MaxRequestsPerClient,
        Self::UpstreamQueue,
        Self::Upload,
        Self::SlowReader,
        Self::LargeBodies,
    ];

    /// The label of the metric.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::MaxConnections => "max_connections",
            Self::MaxConnectionsPerClient => "max_connections_per_client",
            Self::Accept => "accept",
            Self::MaxRequests => "max_requests",
            Self::MaxRequestsPerClient => "max_requests_per_client",
            Self::UpstreamQueue => "upstream_queue",
            Self::Upload => "upload",
            Self::SlowReader => "slow_reader",
            Self::LargeBodies => "large_bodies",
        }
    }
}

impl AddressStats {
    pub(crate) const COUNT: usize = 4;

    /// Each address by the name of its flag.
    pub(crate) fn all(&self) -> [(&'static str, &ListenerStats); Self::COUNT] {
        [("http", &self.http), ("grpc", &self.grpc), ("gateway", &self.gateway), ("admin", &self.admin)]
    }
}

impl ListenerStats {
    /// Counts that a bound was reached.
    pub(crate) fn count(&self, bound: Bound) {
        self.reached[bound as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often a bound was reached.
    pub(crate) fn reached(&self, bound: Bound) -> u64 {
        self.reached[bound as usize].load(Ordering::Relaxed)
    }

    /// Counts an accept that failed, and keeps the reason for the log.
    pub(super) fn count_accept_error(&self, error: &io::Error) {
        *self.last_accept_error.lock() = Some(error.to_string());
        self.count(Bound::Accept);
    }

    /// Why the last accept that failed did.
    pub(crate) fn last_accept_error(&self) -> String {
        self.last_accept_error.lock().clone().unwrap_or_default()
    }

    /// Counts one in a gauge until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>, gauge: Gauge) -> GaugeGuard {
        self.gauge(gauge).fetch_add(1, Ordering::Relaxed);
        GaugeGuard { stats: Arc::clone(self), gauge }
    }

    /// The value of a gauge.
    pub(crate) fn value(&self, gauge: Gauge) -> usize {
        self.gauge(gauge).load(Ordering::Relaxed)
    }

    const fn gauge(&self, gauge: Gauge) -> &AtomicUsize {
        match gauge {
            Gauge::Connections => &self.connections,
            Gauge::Requests => &self.requests,
            Gauge::UpstreamRequests => &self.upstream_requests,
            Gauge::UpstreamWaiting => &self.upstream_waiting,
        }
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.stats.gauge(self.gauge).fetch_sub(1, Ordering::Relaxed);
    }
}
