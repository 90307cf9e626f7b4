//! `EnvoyService`: validates a request, resolves it to a plan, decides the plan with the limiter, and builds the response.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::http::{ErrorFormat, Headers};
use tidegate::spi::Store;
use tidegate::{Clock, Decision, Limiter, StoreError, SystemClock};
use tidegate_tower::Handle;
use tonic::{Code as Grpc, Status};

use super::config::{ConfigHandle, EnvoyConfig};
use super::deadline::{DEFAULT_MAX_DECISION_TIME, decision_timeout};
use super::grpc_server::GrpcServer;
use super::messages::{Code, DescriptorStatus, HeaderValue, RateLimitRequest, RateLimitResponse};
use super::request_plan::{DecideError, PlanOutcome, RequestPlan};
use super::resolve::ResolvedLimits;
use super::stats::{Event, Stats};
use super::statuses::{build_statuses, count_hits, is_allowed_by_statuses, ok_status, over_limit_status};
use super::{metadata, rules};
use crate::doors::DEGRADED_HEADER;

/// Maximum number of descriptors in a request.
pub const MAX_DESCRIPTORS: usize = 100;

/// Maximum number of entries in a descriptor.
pub const MAX_ENTRIES: usize = 100;

/// Maximum size of a request message.
pub const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// Envoy's Rate Limit Service. Clones share everything.
///
/// ```
/// use std::sync::Arc;
/// use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
/// use tidegate_server::envoy::EnvoyService;
/// use tidegate_tower::LimitLayer;
///
/// let rules = RuleSet::new([Rule::new("edge", Limit::token_bucket(20, Rate::per_second(10)?)?).with_action("edge")])?;
/// let layer = LimitLayer::new(Limiter::new(rules, Arc::new(MemoryStore::new())));
/// let service = EnvoyService::from_rules(layer.handle()).into_server(); // for a `tonic::transport::Server`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EnvoyService<S> {
    handle: Handle<S>,
    config: Option<ConfigHandle>,
    strict: bool,
    shadow: bool,
    metadata: bool,
    max_decision_time: Duration,
    health_check: Arc<dyn Fn() -> bool + Send + Sync>,
    stats: Stats,
    clock: SystemClock,
}

/// Constructors
impl<S: Store + 'static> EnvoyService<S> {
    /// A service with the rules of the limiter.
    pub fn from_rules(handle: Handle<S>) -> Self {
        Self {
            handle,
            config: None,
            strict: false,
            shadow: false,
            metadata: false,
            max_decision_time: DEFAULT_MAX_DECISION_TIME,
            health_check: Arc::new(|| true),
            stats: Stats::default(),
            clock: SystemClock::new(),
        }
    }

    /// A service with an Envoy configuration, which counts in the store of the limiter.
    pub fn from_config(handle: Handle<S>, config: ConfigHandle) -> Self {
        Self { config: Some(config), ..Self::from_rules(handle) }
    }

    /// Behaves like the reference server: denied hits count, each descriptor is decided on its own, and errors are UNKNOWN.
    pub fn with_strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Allows every request; only the statuses show which limits are exceeded.
    pub fn with_shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// Sends `dynamic_metadata`: the domain, the descriptors, and the metadata of the limits that were passed.
    pub fn with_metadata(mut self, metadata: bool) -> Self {
        self.metadata = metadata;
        self
    }

    /// Sets the maximum time for a decision: 15 ms by default, since Envoy waits 20 ms by default. A caller's own deadline,
    /// less 5 ms, applies if it is sooner.
    pub fn with_max_decision_time(mut self, max: Duration) -> Self {
        self.max_decision_time = max;
        self
    }

    /// Counts requests and errors in these statistics. The hits of a configuration are counted in those of its
    /// [options](super::EnvoyOptions::with_stats).
    pub fn with_stats(mut self, stats: &Stats) -> Self {
        self.stats = stats.clone();
        self
    }

    /// Adds a condition to `/healthcheck`, which also requires a configuration and a store that answers.
    pub fn with_health_check(mut self, health_check: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.health_check = Arc::new(health_check);
        self
    }

    /// The service for a `tonic` server. It rejects messages of more than [`MAX_MESSAGE_BYTES`] bytes.
    pub fn into_server(self) -> GrpcServer<S> {
        GrpcServer::new(self)
    }
}

/// Deciding
impl<S: Store + 'static> EnvoyService<S> {
    /// Decides a request whose caller waits for `timeout`.
    pub(super) async fn decide(
        &self,
        request: &RateLimitRequest,
        timeout: Option<Duration>,
    ) -> Result<RateLimitResponse, DecideError> {
        let started = self.clock.now();
        let timeout = decision_timeout(timeout, self.max_decision_time);
        let limiter = self.handle.limiter();
        let result = self.try_decide(&limiter, request, timeout).await;
        self.stats.record_request(self.clock.now().since(started));
        match result {
            Err(DecideError::Invalid(_)) => self.stats.count(Event::ServiceError),
            Err(DecideError::Unavailable) => self.stats.count(Event::StoreError),
            Ok(_) => {}
        }
        result
    }

    async fn try_decide(
        &self,
        limiter: &Limiter<S>,
        request: &RateLimitRequest,
        timeout: Duration,
    ) -> Result<RateLimitResponse, DecideError> {
        validate(request)?;
        match &self.config {
            None => self.decide_by_rules(limiter, request, timeout).await,
            Some(handle) => {
                let config = handle.current();
                let config = config.ok_or_else(|| DecideError::Invalid("no rate limit configuration loaded".into()))?;
                self.decide_by_config(limiter, &config, request, timeout).await
            }
        }
    }

    async fn decide_by_rules(
        &self,
        limiter: &Limiter<S>,
        request: &RateLimitRequest,
        timeout: Duration,
    ) -> Result<RateLimitResponse, DecideError> {
        let plan = rules::resolve(limiter, request, self.strict)?;
        let (plan, outcome) = plan.decide_within(limiter, self.strict, timeout).await;
        let outcome = match outcome? {
            PlanOutcome::Stored(outcome) => outcome,
            PlanOutcome::Degraded(decision) => return Ok(self.degraded_response(limiter, request, &decision)),
            PlanOutcome::Overloaded(error, format) => {
                return Ok(self.overloaded_response(limiter, request, &error, format));
            }
        };
        let statuses = build_statuses(&plan.descriptors, &outcome, self.strict);
        let mut response = self.response(request, &plan, outcome.allowed, statuses);
        let (Some(decision), header_policy) = (outcome.decision_to_show(), limiter.rules().header_policy()) else {
            return Ok(response);
        };
        if outcome.allowed {
            response.response_headers_to_add = header_values(header_policy.headers(decision));
        } else if !self.shadow {
            add_denial(&mut response, limiter, decision);
        }
        Ok(response)
    }

    /// The response of the fallback. Its statuses have no numbers, since the counters in the store are not known.
    fn degraded_response(
        &self,
        limiter: &Limiter<S>,
        request: &RateLimitRequest,
        decision: &Decision,
    ) -> RateLimitResponse {
        self.stats.count(Event::StoreError);
        let passes = decision.is_allowed() || self.shadow;
        if !decision.is_allowed() && self.shadow {
            self.stats.count(Event::GlobalShadow);
        }
        let status = if decision.is_allowed() { ok_status() } else { over_limit_status() };
        let mut response = RateLimitResponse {
            overall_code: if passes { Code::Ok } else { Code::OverLimit }.into(),
            statuses: request.descriptors.iter().map(|_| status.clone()).collect(),
            ..RateLimitResponse::default()
        };
        if passes {
            response.request_headers_to_add = vec![header_value(DEGRADED_HEADER.as_str(), "true".to_owned())];
        } else {
            add_denial(&mut response, limiter, decision);
        }
        response
    }

    /// The response while this instance is overloaded. Envoy lets a request pass after an error, unless it is configured
    /// otherwise, and a client must not get past its limits by overloading this instance: so it is no error.
    fn overloaded_response(
        &self,
        limiter: &Limiter<S>,
        request: &RateLimitRequest,
        error: &StoreError,
        format: Option<ErrorFormat>,
    ) -> RateLimitResponse {
        self.stats.count(Event::StoreError);
        let statuses = request.descriptors.iter().map(|_| over_limit_status()).collect();
        if self.shadow {
            self.stats.count(Event::GlobalShadow);
            return RateLimitResponse { overall_code: Code::Ok.into(), statuses, ..RateLimitResponse::default() };
        }
        let rejection = limiter.rules().header_policy().reject_unavailable(error, format, None);
        RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses,
            response_headers_to_add: header_values(rejection.headers),
            raw_body: rejection.body.into_bytes(),
            ..RateLimitResponse::default()
        }
    }

    async fn decide_by_config(
        &self,
        limiter: &Limiter<S>,
        config: &EnvoyConfig,
        request: &RateLimitRequest,
        timeout: Duration,
    ) -> Result<RateLimitResponse, DecideError> {
        let mut limits = ResolvedLimits::new(config, request)?;
        let plan = limits.request_plan(self.strict)?;
        let (plan, outcome) = plan.decide_within(limiter, self.strict, timeout).await;
        let outcome = match outcome? {
            PlanOutcome::Stored(outcome) => outcome,
            PlanOutcome::Degraded(decision) => return Ok(self.degraded_response(limiter, request, &decision)),
            PlanOutcome::Overloaded(error, format) => {
                return Ok(self.overloaded_response(limiter, request, &error, format));
            }
        };
        let statuses = build_statuses(&plan.descriptors, &outcome, self.strict);
        count_hits(config, request, &plan.descriptors, &outcome);
        let allowed =
            if self.strict { is_allowed_by_statuses(config, &plan.descriptors, &statuses) } else { outcome.allowed };
        let mut response = self.response(request, &plan, allowed, statuses);
        if let Some(names) = config.header_names() {
            response.response_headers_to_add = limit_headers(names, &response.statuses);
        }
        Ok(response)
    }

    fn response(
        &self,
        request: &RateLimitRequest,
        plan: &RequestPlan<'_>,
        allowed: bool,
        statuses: Vec<DescriptorStatus>,
    ) -> RateLimitResponse {
        if !allowed && self.shadow {
            self.stats.count(Event::GlobalShadow);
        }
        let code = if allowed || self.shadow { Code::Ok } else { Code::OverLimit };
        let metadata = self.metadata.then(|| metadata::response_metadata(request, &plan.descriptors, &statuses));
        RateLimitResponse {
            overall_code: code.into(),
            statuses,
            dynamic_metadata: metadata,
            ..RateLimitResponse::default()
        }
    }

    /// The gRPC status of an error.
    pub(super) fn status(&self, error: &DecideError) -> Status {
        let code = match error {
            _ if self.strict => Grpc::Unknown,
            DecideError::Invalid(_) => Grpc::InvalidArgument,
            DecideError::Unavailable => Grpc::Unavailable,
        };
        Status::new(code, error.to_string())
    }

    /// Whether requests can be decided: a configuration is loaded, the store answers, and the health check agrees.
    pub(super) async fn is_healthy(&self) -> bool {
        let has_config = self.config.as_ref().is_none_or(|config| config.current().is_some());
        has_config && (self.health_check)() && self.handle.limiter().ping().await.is_ok()
    }

    pub(super) const fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(super) const fn is_strict(&self) -> bool {
        self.strict
    }

    /// One line for each limit of the Envoy configuration, if there is one.
    pub(super) fn config_lines(&self) -> Option<Vec<String>> {
        Some(self.config.as_ref()?.current()?.lines())
    }
}

/// Rejects requests that are malformed or too large.
fn validate(request: &RateLimitRequest) -> Result<(), DecideError> {
    let descriptors = &request.descriptors;
    let problem = if request.domain.is_empty() {
        "rate limit domain must not be empty".to_owned()
    } else if descriptors.is_empty() {
        "rate limit descriptor list must not be empty".to_owned()
    } else if descriptors.len() > MAX_DESCRIPTORS {
        format!("the request has more than {MAX_DESCRIPTORS} descriptors")
    } else if descriptors.iter().any(|descriptor| descriptor.entries.len() > MAX_ENTRIES) {
        format!("a descriptor has more than {MAX_ENTRIES} entries")
    } else {
        return Ok(());
    };
    Err(DecideError::Invalid(problem))
}

/// Adds the headers and the body of a denial.
fn add_denial<S: Store>(response: &mut RateLimitResponse, limiter: &Limiter<S>, decision: &Decision) {
    let rule = decision.rule().and_then(|id| limiter.rules().rule(id));
    let rejection =
        limiter.rules().header_policy().reject(decision, rule.and_then(|rule| rule.message.as_deref()), None);
    response.response_headers_to_add = header_values(rejection.headers);
    response.raw_body = rejection.body.into_bytes();
}

fn header_values(headers: Headers) -> Vec<HeaderValue> {
    headers.into_iter().map(|(name, value)| header_value(name, value)).collect()
}

fn header_value(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value }
}

/// Limit, remaining and reset of the last descriptor over its limit, else of the one with the least remaining.
fn limit_headers(names: &[String; 3], statuses: &[DescriptorStatus]) -> Vec<HeaderValue> {
    let limited = || statuses.iter().filter(|status| status.current_limit.is_some());
    let over = limited().rfind(|status| status.code == i32::from(Code::OverLimit));
    let Some(shown) = over.or_else(|| limited().min_by_key(|status| status.limit_remaining)) else {
        return Vec::new();
    };
    let limit = shown.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let reset = shown.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds);
    let values = [limit.to_string(), shown.limit_remaining.to_string(), reset.to_string()];
    names.iter().zip(values).map(|(name, value)| header_value(name, value)).collect()
}

impl fmt::Display for DecideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(problem) => f.write_str(problem),
            // The store's error may contain host names; only the observer gets it.
            Self::Unavailable => f.write_str("the limits cannot be checked at the moment; retry later"),
        }
    }
}

impl<S> Clone for EnvoyService<S> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            config: self.config.clone(),
            strict: self.strict,
            shadow: self.shadow,
            metadata: self.metadata,
            max_decision_time: self.max_decision_time,
            health_check: Arc::clone(&self.health_check),
            stats: self.stats.clone(),
            clock: self.clock.clone(),
        }
    }
}

impl<S> fmt::Debug for EnvoyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvoyService").field("strict", &self.strict).finish_non_exhaustive()
    }
}
