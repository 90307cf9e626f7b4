//! `LimitLayer`: what is limited and how answers look; the settings that all services made from it share. It sees no
//! request.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use smol_str::SmolStr;
use tidegate::http::HeaderPolicy;
use tidegate::spi::Store;
use tidegate::{Limiter, Timer};
use tower_layer::Layer;

use crate::{Attributes, Handle, LimitService, attributes};

/// Limits the requests to a service. See the [crate's documentation](crate) for what it does with each.
///
/// Clones share the limiter, and so do the services that they make. Each clone has settings of its own, so that one limiter
/// serves several routes:
///
/// ```
/// # use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
/// # use tidegate_tower::LimitLayer;
/// # let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?)])?;
/// let layer = LimitLayer::new(Limiter::new(rules, MemoryStore::new()));
/// let exports = layer.clone().action("export").cost(|_| 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LimitLayer<S> {
    pub(crate) handle: Handle<S>,
    pub(crate) settings: Arc<Settings>,
}

/// What a layer can be told. The closures are behind `Arc`s because a changed clone keeps the others.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) action: SmolStr,
    /// Which fields answers carry, if not those that the rules choose.
    pub(crate) contract: Option<HeaderPolicy>,
    pub(crate) timer: Arc<dyn Timer>,
    pub(crate) longest_delay: Duration,
    pub(crate) http_only: bool,
    pub(crate) front_door: &'static str,
    pub(crate) peer: Arc<Peers>,
    pub(crate) attributes: Option<Arc<Told>>,
    pub(crate) cost: Option<Arc<Cost>>,
    pub(crate) settle: Option<Arc<Settle>>,
}

type Peers = dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync;
type Told = dyn Fn(&Parts) -> Attributes + Send + Sync;
type Cost = dyn Fn(&Parts) -> u64 + Send + Sync;
type Settle = dyn Fn(&http::response::Parts, &str) -> Option<u64> + Send + Sync;

/// Making a layer
impl<S: Store> LimitLayer<S> {
    /// A layer that asks `limiter` about each request.
    pub fn new(limiter: Limiter<S>) -> Self {
        Self::of(Handle::new(limiter))
    }

    /// A layer that asks the limiter that `handle` reaches.
    pub fn of(handle: Handle<S>) -> Self {
        let settings = Settings {
            action: SmolStr::default(),
            contract: None,
            timer: Arc::new(tokio_timer()),
            longest_delay: Duration::MAX,
            http_only: false,
            front_door: "",
            peer: Arc::new(attributes::peer),
            attributes: None,
            cost: None,
            settle: None,
        };
        Self { handle, settings: Arc::new(settings) }
    }
}

/// What a request is
impl<S> LimitLayer<S> {
    /// Names what the requests are for; rules may apply to this action only.
    pub fn action(self, action: impl Into<SmolStr>) -> Self {
        self.with(|settings| settings.action = action.into())
    }

    /// Says what a request costs, for rules that have no cost of their own. Without it, each costs 1.
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Says what is known about a request beyond its own words, such as its user. It goes before the extension
    /// [`Attributes`], whose restrictions on names hold here too.
    pub fn attributes(self, attributes: impl Fn(&Parts) -> Attributes + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.attributes = Some(Arc::new(attributes)))
    }

    /// Says where the address of the TCP peer is. Without it, it is the extension [`Peer`](crate::Peer), or else a
    /// [`SocketAddr`](std::net::SocketAddr). Where there is none, rules that count by `ip` count everybody as one.
    ///
    /// ```
    /// # use std::net::SocketAddr;
    /// # use axum::extract::ConnectInfo;
    /// # use tidegate::{Limiter, MemoryStore, RuleSet};
    /// # use tidegate_tower::LimitLayer;
    /// # use tonic::transport::server::TcpConnectInfo;
    /// # let layer = LimitLayer::new(Limiter::new(RuleSet::new([])?, MemoryStore::new()));
    /// let axum = layer.clone().peer(|parts| Some(parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));
    /// let tonic = layer.peer(|parts| Some(parts.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    /// # Ok::<(), tidegate::RuleError>(())
    /// ```
    pub fn peer(self, peer: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.peer = Arc::new(peer))
    }
}

/// How it is answered
impl<S> LimitLayer<S> {
    /// Chooses the header fields that tell a caller about limits. Without it, the [rules](tidegate::RuleSet::contract)
    /// choose them, and a new set of rules may choose others.
    pub fn contract(self, contract: HeaderPolicy) -> Self {
        self.with(|settings| settings.contract = Some(contract))
    }

    /// Waits for the slots of a leaky bucket by this timer instead of tokio's.
    pub fn timer(self, timer: impl Timer + 'static) -> Self {
        self.with(|settings| settings.timer = Arc::new(timer))
    }

    /// Refuses a request that a leaky bucket would have to hold for longer. With none, nothing is held: for a door that cannot
    /// let a request wait.
    pub fn longest_delay(self, delay: Duration) -> Self {
        self.with(|settings| settings.longest_delay = delay)
    }

    /// Refuses as HTTP does even what is gRPC: for a door whose caller asks on behalf of a client.
    pub fn http_only(self) -> Self {
        self.with(|settings| settings.http_only = true)
    }

    /// Names this front door to [observers](tidegate::spi::Observer), which find the name in the [plan](tidegate::spi::Plan::origin).
    pub fn with_front_door(self, name: &'static str) -> Self {
        self.with(|settings| settings.front_door = name)
    }

    /// Says what a request really cost under a rule, once the answer is known, or nothing where the cost stands. What was
    /// taken too much is given back, what is missing is charged, before the answer goes out.
    ///
    /// Without it, rules that name a [header of the answer](tidegate::Rule::actual) have their costs from there; with it,
    /// those headers are not looked at.
    ///
    /// A request without an answer, because its caller left or the inner service failed, keeps the cost that it began with.
    pub fn settle(self, actual: impl Fn(&http::response::Parts, &str) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.settle = Some(Arc::new(actual)))
    }

    /// Reaches the limiter while the service runs, for one thing to replace it.
    pub fn handle(&self) -> Handle<S> {
        self.handle.clone()
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

/// Holds requests by tokio's timer.
#[allow(clippy::disallowed_methods, reason = "this is the one place where tokio's timer enters")]
fn tokio_timer() -> impl Timer {
    tidegate::SleepTimer::new(tokio::time::sleep)
}

impl<T, S> Layer<T> for LimitLayer<S> {
    type Service = LimitService<T, S>;

    fn layer(&self, inner: T) -> LimitService<T, S> {
        LimitService::new(inner, self.clone())
    }
}

impl<S> Clone for LimitLayer<S> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone(), settings: Arc::clone(&self.settings) }
    }
}

impl<S> fmt::Debug for LimitLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { action, contract, .. } = &*self.settings;
        f.debug_struct("LimitLayer").field("action", action).field("contract", contract).finish_non_exhaustive()
    }
}
