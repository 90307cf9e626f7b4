//! `RateLimits`: the service itself. Check the request, prepare it, decide it, answer. The limits are the limiter's.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::http::Headers;
use tidegate::spi::Store;
use tidegate::{Clock, Decision, Limiter, Rule, SystemClock};
use tidegate_tower::Handle;
use tonic::{Code as Grpc, Request, Response, Status};

use super::config::{ConfigHandle, EnvoyConfig};
use super::matched::Matched;
use super::pb::{
    Code, DescriptorStatus, HeaderValue, RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer,
};
use super::prepared::{Prepared, Refusal};
use super::stats::{Event, Stats};
use super::statuses::{count, over, passed, passes, statuses};
use super::waits::{budget, waits};
use super::{metadata, rules};
use crate::degraded::DEGRADED;
use crate::store::answers;

/// The most descriptors in a request.
pub const MOST_DESCRIPTORS: usize = 100;

/// The most entries in a descriptor.
pub const MOST_ENTRIES: usize = 100;

/// The largest message that is read, in bytes.
pub const LARGEST_MESSAGE: usize = 1024 * 1024;

/// Envoy's Rate Limit Service. Clones share everything.
///
/// ```
/// use std::sync::Arc;
/// use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
/// use tidegate_server::envoy::RateLimits;
/// use tidegate_tower::LimitLayer;
///
/// let rules = RuleSet::new([Rule::new("edge", Limit::token_bucket(20, Rate::per_second(10)?)?).action("edge")])?;
/// let layer = LimitLayer::new(Limiter::new(rules, Arc::new(MemoryStore::new())));
/// let service = RateLimits::of_rules(layer.handle()).into_server(); // for a `tonic::transport::Server`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimits<S> {
    handle: Handle<S>,
    config: Option<ConfigHandle>,
    strict: bool,
    shadow: bool,
    metadata: bool,
    healthy: Arc<dyn Fn() -> bool + Send + Sync>,
    stats: Stats,
    clock: SystemClock,
}

/// Constructors
impl<S: Store + 'static> RateLimits<S> {
    /// Limits by the rules of the limiter.
    pub fn of_rules(handle: Handle<S>) -> Self {
        Self {
            handle,
            config: None,
            strict: false,
            shadow: false,
            metadata: false,
            healthy: Arc::new(|| true),
            stats: Stats::default(),
            clock: SystemClock::new(),
        }
    }

    /// Limits by an Envoy configuration, on the store of the limiter.
    pub fn of_config(handle: Handle<S>, config: ConfigHandle) -> Self {
        Self { config: Some(config), ..Self::of_rules(handle) }
    }

    /// Does as the reference server does: refused hits count, each descriptor for itself, and errors are UNKNOWN.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Lets every request pass, and says in the statuses alone what is over a limit.
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// Sends `dynamic_metadata`: the domain, the descriptors, and the metadata of the limits that were passed.
    pub fn metadata(mut self, metadata: bool) -> Self {
        self.metadata = metadata;
        self
    }

    /// Counts requests and errors here, instead of where nobody looks. A configuration counts where its
    /// [options](super::EnvoyOptions::stats) say.
    pub fn stats(mut self, stats: &Stats) -> Self {
        self.stats = stats.clone();
        self
    }

    /// Says what `/healthcheck` asks, beside whether there is a configuration and the store answers.
    pub fn healthy(mut self, healthy: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.healthy = Arc::new(healthy);
        self
    }

    /// The service for a server, which reads messages of at most [`LARGEST_MESSAGE`] bytes.
    pub fn into_server(self) -> RateLimitServiceServer<Self> {
        RateLimitServiceServer::new(self).max_decoding_message_size(LARGEST_MESSAGE)
    }
}

/// Deciding
impl<S: Store + 'static> RateLimits<S> {
    /// The answer to a request whose caller waits so long, or why there is none.
    pub(super) async fn answer(
        &self,
        request: &RateLimitRequest,
        waits: Option<Duration>,
    ) -> Result<RateLimitResponse, Refusal> {
        let begun = self.clock.now();
        let budget = budget(waits);
        let limiter = self.handle.limiter();
        let answered = self.decided(&limiter, request, budget).await;
        self.stats.request(self.clock.now().since(begun));
        match answered {
            Err(Refusal::Invalid(_)) => self.stats.count(Event::ServiceError),
            Err(Refusal::Unavailable | Refusal::Degraded(_)) => self.stats.count(Event::StoreError),
            Ok(_) => {}
        }
        match answered {
            Err(Refusal::Degraded(decision)) => Ok(self.degraded(&limiter, request, &decision)),
            answered => answered,
        }
    }

    async fn decided(
        &self,
        limiter: &Limiter<S>,
        request: &RateLimitRequest,
        budget: Duration,
    ) -> Result<RateLimitResponse, Refusal> {
        check(request)?;
        match &self.config {
            None => self.by_rules(limiter, request, budget).await,
            Some(handle) => {
                let config = handle.current();
                let config = config.ok_or_else(|| Refusal::Invalid("no rate limit configuration loaded".into()))?;
                self.by_config(limiter, &config, request, budget).await
            }
        }
    }

    async fn by_rules(
        &self,
        limiter: &Limiter<S>,
        request: &RateLimitRequest,
        budget: Duration,
    ) -> Result<RateLimitResponse, Refusal> {
        let prepared = rules::prepare(limiter, request, self.strict)?;
        let (prepared, judged) = prepared.decide_within(limiter, self.strict, budget).await;
        let judged = judged?;
        let statuses = statuses(&prepared.wanted, &judged, self.strict);
        let mut response = self.response(request, &prepared, judged.allowed, statuses);
        let (Some(decision), contract) = (judged.shown(), limiter.rules().contract()) else { return Ok(response) };
        if judged.allowed {
            response.response_headers_to_add = fields(contract.headers(decision));
        } else if !self.shadow {
            tell_denial(&mut response, limiter, decision);
        }
        Ok(response)
    }

    /// What was decided without the store. No status has numbers then: nobody knows what is left of the whole.
    fn degraded(&self, limiter: &Limiter<S>, request: &RateLimitRequest, decision: &Decision) -> RateLimitResponse {
        let passes = decision.is_allowed() || self.shadow;
        if !decision.is_allowed() && self.shadow {
            self.stats.count(Event::GlobalShadow);
        }
        let status = if decision.is_allowed() { passed() } else { over() };
        let mut response = RateLimitResponse {
            overall_code: if passes { Code::Ok } else { Code::OverLimit }.into(),
            statuses: request.descriptors.iter().map(|_| status.clone()).collect(),
            ..RateLimitResponse::default()
        };
        if passes {
            response.request_headers_to_add = vec![field(DEGRADED.as_str(), "true".to_owned())];
        } else {
            tell_denial(&mut response, limiter, decision);
        }
        response
    }

    async fn by_config(
        &self,
        limiter: &Limiter<S>,
        config: &EnvoyConfig,
        request: &RateLimitRequest,
        budget: Duration,
    ) -> Result<RateLimitResponse, Refusal> {
        let mut matched = Matched::new(config, request)?;
        let prepared = matched.prepared(self.strict)?;
        let (prepared, judged) = prepared.decide_within(limiter, self.strict, budget).await;
        let judged = judged?;
        let statuses = statuses(&prepared.wanted, &judged, self.strict);
        count(config, request, &prepared.wanted, &judged);
        let allowed = if self.strict { passes(config, &prepared.wanted, &statuses) } else { judged.allowed };
        let mut response = self.response(request, &prepared, allowed, statuses);
        if let Some(names) = config.header_names() {
            response.response_headers_to_add = trio(names, &response.statuses);
        }
        Ok(response)
    }

    fn response(
        &self,
        request: &RateLimitRequest,
        prepared: &Prepared<'_>,
        allowed: bool,
        statuses: Vec<DescriptorStatus>,
    ) -> RateLimitResponse {
        if !allowed && self.shadow {
            self.stats.count(Event::GlobalShadow);
        }
        let code = if allowed || self.shadow { Code::Ok } else { Code::OverLimit };
        let metadata = self.metadata.then(|| metadata::of_response(request, &prepared.wanted, &statuses));
        RateLimitResponse {
            overall_code: code.into(),
            statuses,
            dynamic_metadata: metadata,
            ..RateLimitResponse::default()
        }
    }

    /// A refusal in the words of gRPC.
    pub(super) fn status(&self, refusal: &Refusal) -> Status {
        let code = match refusal {
            _ if self.strict => Grpc::Unknown,
            Refusal::Invalid(_) => Grpc::InvalidArgument,
            Refusal::Unavailable | Refusal::Degraded(_) => Grpc::Unavailable,
        };
        Status::new(code, refusal.to_string())
    }

    /// Whether it could decide: there is a configuration, the store answers, and nobody says otherwise.
    pub(super) async fn is_healthy(&self) -> bool {
        let configured = self.config.as_ref().is_none_or(|config| config.current().is_some());
        configured && (self.healthy)() && answers(self.handle.limiter().store()).await
    }

    pub(super) const fn counted(&self) -> &Stats {
        &self.stats
    }

    pub(super) const fn is_strict(&self) -> bool {
        self.strict
    }

    /// A line for each limit of the Envoy configuration, if limits come from one.
    pub(super) fn lines(&self) -> Option<Vec<String>> {
        Some(self.config.as_ref()?.current()?.lines())
    }
}

#[tonic::async_trait]
impl<S: Store + 'static> RateLimitService for RateLimits<S> {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.answer(request.get_ref(), waits(request.metadata()))
            .await
            .map(Response::new)
            .map_err(|refusal| self.status(&refusal))
    }
}

/// A request that can be decided in bounded work.
fn check(request: &RateLimitRequest) -> Result<(), Refusal> {
    let descriptors = &request.descriptors;
    let problem = if request.domain.is_empty() {
        "rate limit domain must not be empty".to_owned()
    } else if descriptors.is_empty() {
        "rate limit descriptor list must not be empty".to_owned()
    } else if descriptors.len() > MOST_DESCRIPTORS {
        format!("{} descriptors in one request; at most {MOST_DESCRIPTORS}", descriptors.len())
    } else if descriptors.iter().any(|descriptor| descriptor.entries.len() > MOST_ENTRIES) {
        format!("a descriptor has more than {MOST_ENTRIES} entries")
    } else {
        return Ok(());
    };
    Err(Refusal::Invalid(problem))
}

/// What a refused caller gets beside the code.
fn tell_denial<S: Store>(response: &mut RateLimitResponse, limiter: &Limiter<S>, decision: &Decision) {
    let rule = decision.rule().and_then(|id| limiter.rules().rule(id));
    let answer = limiter.rules().contract().denied(decision, rule.and_then(Rule::message_text), None);
    response.response_headers_to_add = fields(answer.headers);
    response.raw_body = answer.body.into_bytes();
}

fn fields(headers: Headers) -> Vec<HeaderValue> {
    headers.into_iter().map(|(name, value)| field(name, value)).collect()
}

fn field(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, ..HeaderValue::default() }
}

/// Limit, remaining and reset of the last descriptor that is over, else of the one with the least left.
fn trio(names: &[String; 3], statuses: &[DescriptorStatus]) -> Vec<HeaderValue> {
    let limited = || statuses.iter().filter(|status| status.current_limit.is_some());
    let over = limited().rfind(|status| status.code == i32::from(Code::OverLimit));
    let Some(shown) = over.or_else(|| limited().min_by_key(|status| status.limit_remaining)) else {
        return Vec::new();
    };
    let limit = shown.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let reset = shown.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds);
    let values = [limit.to_string(), shown.limit_remaining.to_string(), reset.to_string()];
    names.iter().zip(values).map(|(name, value)| field(name, value)).collect()
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(problem) => f.write_str(problem),
            // What the store said may name hosts; that is for its observer.
            Self::Unavailable | Self::Degraded(_) => {
                f.write_str("the limits cannot be checked at the moment; retry later")
            }
        }
    }
}

impl<S> Clone for RateLimits<S> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            config: self.config.clone(),
            strict: self.strict,
            shadow: self.shadow,
            metadata: self.metadata,
            healthy: Arc::clone(&self.healthy),
            stats: self.stats.clone(),
            clock: self.clock.clone(),
        }
    }
}

impl<S> fmt::Debug for RateLimits<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimits").field("strict", &self.strict).finish_non_exhaustive()
    }
}
