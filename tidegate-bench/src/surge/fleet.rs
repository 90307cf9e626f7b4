//! `Fleet`: the gateways of a phase. They share nothing but the store, if they share one; the log and the histogram that all of
//! them write to only watch.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use http::StatusCode;
use tidegate::{Clock, Limiter, MemoryStore, RuleSet, Secret, StoreError, Timer};
use tidegate_redis::{RedisOptions, RedisStore};
use tidegate_tower::LimitLayer;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::admitted::Admitted;
use crate::traffic::{histogram, micros};
use tidegate_server::AnyStore;
use tidegate_server::command::Failure;
use tidegate_server::gateway::{Gateway, GatewayOptions};
use tidegate_server::{ConnectionLimits, Listener};

/// Longer than any phase: connections that wait for their next request are not closed, so that no request meets one that is.
const IDLE: Duration = Duration::from_secs(3600);

/// Gateways that run until they are dropped.
pub(crate) struct Fleet {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) watched: Arc<Watched>,
    stop: watch::Sender<()>,
    doors: JoinSet<bool>,
}

/// What is seen of all gateways.
pub(crate) struct Watched {
    pub(crate) admitted: Arc<Admitted>,
    /// Microseconds from the head of a request to its 429.
    refusals: Mutex<Histogram<u64>>,
}

/// Where limits are kept.
#[derive(Clone, Debug)]
pub(crate) enum Shared {
    /// Each gateway by itself.
    Nothing,
    /// All in one store, under keys of their own.
    Store { url: String, prefix: String },
}

impl Fleet {
    /// Starts as many gateways on the runtime of `home`.
    pub(crate) async fn start(
        home: &Handle,
        instances: u32,
        backend: SocketAddr,
        rules: &RuleSet,
        shared: &Shared,
        timer: &Arc<dyn Timer>,
    ) -> Result<Self, Failure> {
        let watched = Arc::new(Watched { admitted: Arc::default(), refusals: Mutex::new(histogram()) });
        let (stop, stopping) = watch::channel(());
        let mut fleet = Self { addresses: Vec::new(), watched, stop, doors: JoinSet::new() };
        for _ in 0..instances {
            let (store, listener) = home.spawn(open(shared.clone())).await.map_err(|error| broken(&error))??;
            fleet.addresses.push(listener.address().map_err(|error| broken(&error))?);
            let gateway = gateway(backend)?;
            let limiter = Limiter::new(rules.clone(), store).with_secret(&Secret::public());
            let layer = LimitLayer::new(limiter.with_observer(Arc::clone(&fleet.watched.admitted)));
            let (mut stopping, watched) = (stopping.clone(), Arc::clone(&fleet.watched));
            let stopped = async move { drop(stopping.changed().await) };
            let seen = move |status, took| watched.see(status, took);
            let clock: Arc<dyn Clock> = Arc::<dyn Timer>::clone(timer);
            let serving = gateway.serve_observed(listener, layer, stopped, clock, Arc::new(seen));
            fleet.doors.spawn_on(serving, home);
        }
        Ok(fleet)
    }

    /// Takes nothing any more, and waits until nothing runs.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(());
        while self.doors.join_next().await.is_some() {}
    }
}

impl Watched {
    /// Microseconds from the head of a request to its 429.
    pub(crate) fn refusals(&self) -> Histogram<u64> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn see(&self, status: StatusCode, took: Duration) {
        if status == StatusCode::TOO_MANY_REQUESTS {
            self.refusals.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(micros(took));
        }
    }
}

/// How long a gateway waits for the store: twenty times as long as it would elsewhere.
const PATIENCE: Duration = Duration::from_millis(500);

/// The store of one gateway, with a connection of its own, and a place to listen at.
async fn open(shared: Shared) -> Result<(AnyStore, Listener), Failure> {
    let failed = |error: StoreError| Failure::Store { error, meanwhile: "" };
    let store = match shared {
        Shared::Nothing => AnyStore::Memory(Arc::new(MemoryStore::new())),
        Shared::Store { url, prefix } => {
            // Everything runs on one machine, and a load that keeps it busy must not look like a store that is silent.
            let options = RedisOptions::new().with_prefix(&prefix).with_timeout(PATIENCE).with_heartbeats(false);
            AnyStore::Redis(RedisStore::connect_with(&url, options).await.map_err(failed)?)
        }
    };
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.map_err(|error| broken(&error))?;
    let limits = ConnectionLimits::new().with_header_timeout(IDLE).with_drain_timeout(Duration::ZERO);
    Ok((store, listener.with_limits(limits)))
}

fn gateway(backend: SocketAddr) -> Result<Gateway, Failure> {
    let upstream = format!("h2c://{backend}").parse().map_err(|error| broken(&error))?;
    // The riders' patience ends a request, not the gateway's.
    let options = GatewayOptions::new().with_response_timeout(IDLE);
    Gateway::new(&upstream, options).map_err(|error| broken(&error))
}

fn broken(error: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("a gateway cannot be started: {error}"))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tokio::runtime::Handle;

    use super::super::backend::Backend;
    use super::super::endpoint::Endpoint;
    use super::super::ledger::{Ended, Party};
    use super::super::options::Shape;
    use super::super::phase::Phase;
    use super::super::town::Town;
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_service_that_dies_in_the_middle_is_a_failure_for_riders_and_not_the_end() {
        let timer: Arc<dyn Timer> = Arc::new(tidegate_server::command::tokio_timer());
        let shape = Shape {
            users: 1,
            seed: 1,
            span: Duration::from_secs(1),
            arrivals: 1,
            patience: Duration::from_secs(60),
            full: false,
        };
        let mut backend = Backend::start(1, Arc::clone(&timer)).await.unwrap();
        let rules = Phase::Capacity.rules().ok().unwrap();
        let fleet = Fleet::start(&Handle::current(), 2, backend.address, &rules, &Shared::Nothing, &timer).await;
        let fleet = fleet.ok().unwrap();
        let town = Arc::new(Town::new(&fleet.addresses, Arc::clone(&timer), shape));
        let ask = || {
            let town = Arc::clone(&town);
            let user = HeaderValue::from_static("ann");
            async move { town.ask(Party::Rider(0), &user, Endpoint::Ride, town.start, shape.patience).await.ended }
        };
        assert_eq!(ask().await, Ended::Served);
        let under_way = tokio::spawn(ask());
        while backend.parts.matching.busy() == 0 {
            tokio::task::yield_now().await;
        }
        backend.die();
        assert_eq!(under_way.await.unwrap(), Ended::Failed);
        assert_eq!(ask().await, Ended::Failed);
        assert_eq!(town.ledger().count(&[Party::RIDERS], None).failed, 2);
        fleet.stop().await;
    }
}
