//! `LimitLayer`: the settings that all services made from it share. It sees no request.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use tidegate::attributes::RequestAttributes;
use tidegate::http::{ErrorFormat, HeaderPolicy};
use tidegate::spi::{BodyNeed, Store};
use tidegate::{Limiter, Request, Timer};
use tower_layer::Layer;

use crate::canonical_request::canonicalize;
use crate::handle::ActiveLimiter;
use crate::{Attributes, Handle, LimitService, attribute_sources, grpc};

/// Limits the requests to a service. The [crate's documentation](crate) says how each request is handled.
///
/// Clones and the services that they make share the limiter. Each clone has settings of its own, so that one limiter serves
/// several routes:
///
/// ```
/// # use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
/// # use tidegate_tower::LimitLayer;
/// # let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?)])?;
/// let layer = LimitLayer::new(Limiter::new(rules, MemoryStore::new()));
/// let exports = layer.clone().with_action("export").with_cost(|_| 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LimitLayer<S> {
    pub(crate) handle: Handle<S>,
    pub(crate) settings: Arc<Settings>,
}

/// The settings of a layer. Functions are behind `Arc`s, since a changed clone keeps the others.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) action: String,
    /// Overrides the policy of the rules.
    pub(crate) header_policy: Option<HeaderPolicy>,
    pub(crate) timer: Arc<dyn Timer>,
    pub(crate) max_delay: Duration,
    pub(crate) grpc_rejections: bool,
    pub(crate) front_door: &'static str,
    /// Whether the inner service receives the canonical path.
    pub(crate) canonical_paths: bool,
    /// Whether requests hold their slots until their responses end.
    pub(crate) holds_leases: bool,
    pub(crate) peer: Arc<PeerFn>,
    pub(crate) attributes: Option<Arc<AttributesFn>>,
    pub(crate) cost: Option<Arc<CostFn>>,
    pub(crate) actual_cost: Option<Arc<ActualCostFn>>,
}

type PeerFn = dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync;
type AttributesFn = dyn Fn(&Parts) -> Attributes + Send + Sync;
type CostFn = dyn Fn(&Parts) -> u64 + Send + Sync;
type ActualCostFn = dyn Fn(&http::response::Parts, &str) -> Option<u64> + Send + Sync;

/// Constructors
impl<S: Store> LimitLayer<S> {
    /// A layer that checks each request with `limiter`.
    pub fn new(limiter: Limiter<S>) -> Self {
        Self::from_handle(Handle::new(limiter))
    }

    /// A layer that checks each request with the limiter of `handle`.
    pub fn from_handle(handle: Handle<S>) -> Self {
        let settings = Settings {
            action: String::new(),
            header_policy: None,
            timer: Arc::new(tokio_timer()),
            max_delay: Duration::MAX,
            grpc_rejections: true,
            front_door: "",
            canonical_paths: false,
            holds_leases: true,
            peer: Arc::new(attribute_sources::peer),
            attributes: None,
            cost: None,
            actual_cost: None,
        };
        Self { handle, settings: Arc::new(settings) }
    }
}

/// Settings about requests
impl<S> LimitLayer<S> {
    /// Sets the action of the requests; rules may apply to one action only. The default is `""`.
    pub fn with_action(self, action: impl Into<String>) -> Self {
        self.with(|settings| settings.action = action.into())
    }

    /// Sets the cost of a request, for rules that have no cost of their own. The default is 1.
    pub fn with_cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Sets further attributes of a request, such as its user. They take precedence over the extension [`Attributes`];
    /// reserved names are ignored in both.
    pub fn with_attributes(self, attributes: impl Fn(&Parts) -> Attributes + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.attributes = Some(Arc::new(attributes)))
    }

    /// Sets how to find the address of the TCP peer. By default it is the extension [`Peer`](crate::Peer), or else a
    /// [`SocketAddr`](std::net::SocketAddr). Requests without one count as one subject under rules that count by `ip`.
    ///
    /// ```
    /// # use std::net::SocketAddr;
    /// # use axum::extract::ConnectInfo;
    /// # use tidegate::{Limiter, MemoryStore, RuleSet};
    /// # use tidegate_tower::LimitLayer;
    /// # use tonic::transport::server::TcpConnectInfo;
    /// # let layer = LimitLayer::new(Limiter::new(RuleSet::new([])?, MemoryStore::new()));
    /// let axum = layer.clone().with_peer(|parts| Some(parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));
    /// let tonic = layer.with_peer(|parts| Some(parts.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    /// # Ok::<(), tidegate::rules::RuleError>(())
    /// ```
    pub fn with_peer(self, peer: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.peer = Arc::new(peer))
    }

    /// Whether the inner service receives the [canonical path](tidegate::attributes::canonical_path), in which dot segments are
    /// resolved and escaped slashes are as the [rules](tidegate::RuleSet::escaped_slashes) say. For a gateway, whose upstream may
    /// resolve them or not. Off by default: the inner service receives the path as it is.
    ///
    /// Either way, a path that servers read in several ways must pass the rules of each of its
    /// [readings](tidegate::attributes::PathReadings).
    pub fn with_canonical_paths(self, on: bool) -> Self {
        self.with(|settings| settings.canonical_paths = on)
    }

    /// Whether requests hold their slots of concurrency limits until their responses end, which is the default. Otherwise each slot is
    /// held for its whole lease: for a front end that a proxy asks before it forwards a request, and that never learns when the request
    /// ends.
    pub fn with_held_leases(self, on: bool) -> Self {
        self.with(|settings| settings.holds_leases = on)
    }

    /// Names this front end to [observers](tidegate::spi::Observer), which find the name in the
    /// [plan](tidegate::spi::Plan::origin).
    pub fn with_front_door(self, name: &'static str) -> Self {
        self.with(|settings| settings.front_door = name)
    }
}

/// Settings about responses
impl<S> LimitLayer<S> {
    /// Sets the rate-limit headers of responses. The default is the [policy of the
    /// rules](tidegate::RuleSet::header_policy), which a new set of rules may change.
    pub fn with_header_policy(self, policy: HeaderPolicy) -> Self {
        self.with(|settings| settings.header_policy = Some(policy))
    }

    /// Delays requests, and renews the slots that they hold, by this timer instead of tokio's. The slots of all clones are renewed by the
    /// timer of the layer that held the first one.
    pub fn with_timer(self, timer: impl Timer + 'static) -> Self {
        self.with(|settings| settings.timer = Arc::new(timer))
    }

    /// Rejects requests that a leaky bucket would delay for longer. Zero rejects every request that would be delayed.
    pub fn with_max_delay(self, delay: Duration) -> Self {
        self.with(|settings| settings.max_delay = delay)
    }

    /// Whether gRPC requests get gRPC rejections, which is the default. Otherwise they get HTTP rejections: for a front
    /// door that a proxy calls on behalf of the client.
    pub fn with_grpc_rejections(self, on: bool) -> Self {
        self.with(|settings| settings.grpc_rejections = on)
    }

    /// Sets the actual cost of a request under a rule by its response; `None` keeps the cost. The difference is refunded
    /// or charged before the response is returned.
    ///
    /// The default is the [response header that the rule names](tidegate::Rule::with_cost_header); with this function,
    /// those headers are ignored.
    ///
    /// A request without a response, because its client disconnected or the inner service failed, keeps its cost.
    pub fn with_actual_cost(
        self,
        actual_cost: impl Fn(&http::response::Parts, &str) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.actual_cost = Some(Arc::new(actual_cost)))
    }

    /// A handle with which the limiter can be replaced while the service runs.
    pub fn handle(&self) -> Handle<S> {
        self.handle.clone()
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S: Store> LimitLayer<S> {
    /// Which of the rules that apply to this request read its body: found by matching alone, after the request is made
    /// [canonical](Self::with_canonical_paths). A front end that can read bodies reads it then, and adds it to the request as a
    /// [`BodyText`](crate::BodyText). None for a request that the layer refuses whatever its body is, and none for gRPC, whose streams may
    /// last as long as their responses, unless a rule counts the tokens of a language model: nobody must avoid that by a header.
    pub fn body_need(&self, parts: &mut Parts) -> BodyNeed {
        let active = self.handle.active();
        let rules = active.limiter.rules();
        let is_grpc = grpc::response_type(&parts.headers).is_some();
        let may_read = rules.reads_body() && (!is_grpc || active.has_usage);
        if !may_read || canonicalize(parts, rules.escaped_slashes(), self.settings.canonical_paths).is_err() {
            return BodyNeed::None;
        }
        let mut has_usage = false;
        let found =
            self.with_request(&active, parts, |request| rules.find(request, |rule| has_usage |= rule.usage.is_some()));
        match found {
            Ok(body_use) if !is_grpc || has_usage => body_use.text,
            _ => BodyNeed::None,
        }
    }

    /// The format of errors with which a front end answers this request itself, before the layer decides it. A request that the layer
    /// admits has it as an extension, unless it is JSON.
    pub fn error_format(&self, parts: &Parts) -> ErrorFormat {
        let active = self.handle.active();
        let format = self.with_request(&active, parts, |request| active.limiter.plan(request).error_format());
        format.unwrap_or_else(|| header_policy(&self.settings, &active).error_format())
    }

    /// What `read` returns for a request whose body is not known.
    fn with_request<T>(&self, active: &ActiveLimiter<S>, parts: &Parts, read: impl FnOnce(&Request<'_>) -> T) -> T {
        let settings = &*self.settings;
        let layer_attributes = settings.attributes.as_ref().map(|attributes| attributes(parts)).unwrap_or_default();
        let mut attributes = RequestAttributes::new(&*settings.action, 1);
        active.sources.read(parts, &layer_attributes, (settings.peer)(parts), None, &mut attributes);
        read(&attributes.request())
    }
}

/// The policy of the layer, else that of the rules.
pub(crate) fn header_policy<'a, S: Store>(settings: &'a Settings, active: &'a ActiveLimiter<S>) -> &'a HeaderPolicy {
    settings.header_policy.as_ref().unwrap_or_else(|| active.limiter.rules().header_policy())
}

impl<S: Store> LimitLayer<S> {
    /// The longest body that rules read, in bytes. A front end that reads bodies refuses longer ones.
    pub fn max_body_bytes(&self) -> usize {
        self.handle.active().limiter.rules().max_body_bytes()
    }
}

/// Delays requests by tokio's timer.
#[allow(clippy::disallowed_methods, reason = "the only use of tokio's timer; tests replace it")]
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
        let Settings { action, header_policy, .. } = &*self.settings;
        f.debug_struct("LimitLayer")
            .field("action", action)
            .field("header_policy", header_policy)
            .finish_non_exhaustive()
    }
}
