//! `LimitService`: checks each request with the limiter, delays, forwards or rejects it, and adds headers to the response.

use std::borrow::Cow;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use http::request::Parts;
use http::{Request, Response, StatusCode, response};
use http_body::Body;
use tidegate::attributes::RequestAttributes;
use tidegate::grants::HeldLease;
use tidegate::http::{ErrorFormat, Rejection};
use tidegate::spi::{BodyNeed, BodyUse, Origin, Plan, Store};
use tidegate::{Decision, Ending, Grant, GrantGuard, StoreError, StoreErrorKind};
use tower_service::Service;

use crate::attribute_sources::header_value;
use crate::body_size::{AssumedBodySize, body_size};
use crate::canonical_request::canonicalize;
use crate::cost_correction::{SizeAssumption, correct_cost, cost_by_size, stated_cost};
use crate::handle::ActiveLimiter;
use crate::layer::{Settings, header_policy};
use crate::limit_headers::LimitHeaders;
use crate::readiness::{reacquire, release};
use crate::response_body::{error_response, rejection_response};
use crate::{DecisionSlot, DegradedMode, LimitLayer, ReservedTokens, ResponseBody, ResponseFuture, UsageReport, grpc};

/// A service behind limits, made by a [`LimitLayer`]. Clones share one limiter.
pub struct LimitService<T, S> {
    inner: T,
    layer: LimitLayer<S>,
}

/// The result of a check.
enum AdmissionResult<B> {
    Admit(Admission),
    Reject(Response<ResponseBody<B>>),
}

/// The rate-limit headers of a response are final: an extension of the response, read by outer layers. Numbers of another
/// rule would contradict a rejection, or disclose what a security rule hides.
#[derive(Clone, Copy)]
struct HeadersWritten;

/// An admitted request.
struct Admission {
    headers: LimitHeaders,
    /// Whether a security rule applied: the response must disclose nothing.
    is_security: bool,
    /// The format of errors that are not about one rule.
    error_format: ErrorFormat,
    degraded_mode: Option<DegradedMode>,
    delay: Duration,
    /// Present if the request may be refunded or its cost corrected.
    grant: Option<Box<Grant>>,
    /// Present if a cost depends on the size of a body without a length.
    assumption: Option<Box<SizeAssumption>>,
    /// Present if the request holds slots of concurrency limits.
    lease: Option<Box<HeldLease>>,
    /// Present if the cost is the number of tokens that a language model uses. It has the grant then.
    usage: Option<UsageReport>,
    reserved_tokens: Option<ReservedTokens>,
}

impl Admission {
    fn new<S: Store>(
        settings: &Settings,
        active: &ActiveLimiter<S>,
        plan: &Plan<'_>,
        decision: &Decision,
        assumption: Option<Box<SizeAssumption>>,
    ) -> Self {
        Self {
            headers: LimitHeaders::from_decision(header_policy(settings, active), decision),
            is_security: decision.is_security(),
            error_format: error_format(settings, active, plan),
            degraded_mode: decision.degraded().map(DegradedMode::new),
            delay: decision.delay(),
            grant: None,
            assumption,
            lease: None,
            usage: None,
            reserved_tokens: None,
        }
    }

    /// Leaves the correction of the cost to the service, which learns the tokens.
    #[cold]
    fn with_usage<S: Store + 'static>(
        mut self,
        settings: &Settings,
        active: &ActiveLimiter<S>,
        plan: &Plan<'_>,
    ) -> Self {
        self.reserved_tokens = ReservedTokens::from_plan(active.limiter.rules(), plan);
        let grant = *self.grant.take().unwrap_or_default();
        self.usage = Some(UsageReport::new(&active.limiter, plan, grant, &settings.timer));
        self
    }
}

impl<T, S> LimitService<T, S> {
    pub(crate) const fn new(inner: T, layer: LimitLayer<S>) -> Self {
        Self { inner, layer }
    }

    /// The service behind the limits.
    ///
    /// ```
    /// # use tidegate::{Limiter, MemoryStore, RuleSet};
    /// # use tidegate_tower::LimitLayer;
    /// # use tower_layer::Layer;
    /// let limits = LimitLayer::new(Limiter::new(RuleSet::new([])?, MemoryStore::new()));
    /// let mut service = limits.layer("a service");
    /// *service.get_mut() = "another one";
    /// assert_eq!(service.get_ref(), &"another one");
    /// assert_eq!(service.into_inner(), "another one");
    /// # Ok::<(), tidegate::rules::RuleError>(())
    /// ```
    pub const fn get_ref(&self) -> &T {
        &self.inner
    }

    /// The service behind the limits, to change it. Clones of this service keep theirs.
    pub const fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// The service behind the limits, without them.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T, S, A, B> Service<Request<A>> for LimitService<T, S>
where
    T: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    T::Future: Send,
    S: Store + 'static,
    A: Body + Send + 'static,
    B: Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = T::Error;
    type Future = ResponseFuture<B, T::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The service that reported ready must be the one that is called; its clone is not ready.
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        ResponseFuture::new(handle(self.layer.clone(), ready, request))
    }
}

/// Handles a request from check to response.
async fn handle<T, S, A, B>(
    layer: LimitLayer<S>,
    mut inner: T,
    request: Request<A>,
) -> Result<Response<ResponseBody<B>>, T::Error>
where
    T: Service<Request<A>, Response = Response<B>> + Clone,
    S: Store + 'static,
    A: Body,
{
    let settings = &*layer.settings;
    let active = layer.handle.active();
    let (mut parts, body) = request.into_parts();
    let escaped_slashes = active.limiter.rules().escaped_slashes();
    if let Err(message) = canonicalize(&mut parts, escaped_slashes, settings.canonical_paths) {
        let format = header_policy(settings, &active).error_format();
        return Ok(error_response(StatusCode::BAD_REQUEST, format, "bad_request", message));
    }
    let body_size = if active.reads_size { body_size(&parts, &body) } else { None };
    let admission = match check(&layer, &active, &parts, body_size).await {
        AdmissionResult::Admit(admission) => admission,
        AdmissionResult::Reject(response) => return Ok(response),
    };
    if let Some(degraded_mode) = admission.degraded_mode {
        parts.extensions.insert(degraded_mode);
    }
    if admission.error_format != ErrorFormat::default() {
        parts.extensions.insert(admission.error_format);
    }
    if let Some(assumption) = &admission.assumption {
        parts.extensions.insert(assumption.size.clone());
    }
    if let Some(usage) = &admission.usage {
        // Those of layers further out stay: each has reserved for itself.
        let outer = parts.extensions.remove::<UsageReport>();
        parts.extensions.insert(usage.with_outer(outer));
        let outer = parts.extensions.remove::<ReservedTokens>();
        if let Some(reserved) = admission.reserved_tokens.into_iter().chain(outer).max_by_key(|reserved| reserved.0) {
            parts.extensions.insert(reserved);
        }
    }
    let lease = admission.lease;
    let headers = lease.as_ref().map(|_| Box::new(rejection_headers(&parts.headers)));
    if let Some(lease) = lease.as_deref() {
        parts.extensions.insert(lease.clone());
    }
    let serve = async {
        let grant = if admission.delay.is_zero() {
            admission.grant
        } else if let Some(usage) = &admission.usage {
            release(&mut inner);
            usage.wait(admission.delay, &*settings.timer).await;
            reacquire(&mut inner).await?;
            None
        } else {
            let grant = *admission.grant.unwrap_or_default();
            let guard = GrantGuard::new(Arc::clone(&active.limiter), grant, Ending::Refund);
            release(&mut inner);
            let grant = guard.keep_after(admission.delay, &*settings.timer).await;
            reacquire(&mut inner).await?;
            Some(Box::new(grant))
        };
        Ok((inner.call(Request::from_parts(parts, body)).await?, grant))
    };
    let Some(served) = unless_lost(lease.as_deref(), serve).await else {
        return Ok(reject_lost(settings, &active, &headers.unwrap_or_default(), admission.error_format));
    };
    let (response, grant) = served?;
    let (mut parts, body) = response.into_parts();
    if let Some(usage) = &admission.usage {
        let by_size = cost_by_size(&active, admission.assumption.as_deref());
        let cost =
            |rule: &str| stated_cost(settings, &active, &parts, rule).or_else(|| by_size.as_ref()?.rule_cost(rule));
        usage.settle_others(cost).await;
        usage.end_if_stated();
    } else if let Some(grant) = grant {
        correct_cost(settings, &active, *grant, &parts, admission.assumption.as_deref()).await;
    }
    add_headers(&mut parts, admission.headers, admission.is_security);
    Ok(Response::from_parts(parts, ResponseBody::inner(body).with_lease(lease)))
}

/// The output of `future`, or `None` if the slots of the request are lost before.
async fn unless_lost<F: Future>(lease: Option<&HeldLease>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        match lease {
            Some(lease) => lease.poll_lost(context).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}

/// Checks a request with the limiter.
async fn check<S: Store + 'static, B>(
    layer: &LimitLayer<S>,
    active: &ActiveLimiter<S>,
    parts: &Parts,
    body_size: Option<u64>,
) -> AdmissionResult<B> {
    let settings = &*layer.settings;
    let layer_attributes = settings.attributes.as_ref().map(|attributes| attributes(parts)).unwrap_or_default();
    let cost = settings.cost.as_ref().map_or(1, |cost| cost(parts));
    let mut attributes = RequestAttributes::new(&*settings.action, cost);
    active.sources.read(parts, &layer_attributes, (settings.peer)(parts), body_size, &mut attributes);
    let origin = Origin::new(settings.front_door).with_method(parts.method.as_str());
    let plan = active.limiter.plan(&attributes.request()).with_max_delay(settings.max_delay).with_origin(origin);
    let is_metered = active.has_usage && active.limiter.rules().settles_by_usage(&plan);
    let result = if is_metered {
        active.limiter.plans().check(&active.limiter.plans().reserving_usage(plan.clone())).await
    } else {
        active.limiter.plans().check(&plan).await
    };
    if let Some(slot) = parts.extensions.get::<DecisionSlot>() {
        slot.fill(&result);
    }
    match result {
        Ok(mut decision) if decision.is_allowed() => {
            let BodyUse { size, assumed_size, .. } = plan.body_use();
            let assumption = assumed_size.map(|bytes| {
                Box::new(SizeAssumption {
                    size: AssumedBodySize::new((size == BodyNeed::Enforced).then_some(bytes)),
                    attributes: attributes.into_owned(),
                })
            });
            let is_held = plan.lease_owner().is_some() && settings.holds_leases;
            let corrects_cost =
                settings.actual_cost.is_some() || active.has_cost_headers || is_metered || assumption.is_some();
            let mut admission = Admission::new(settings, active, &plan, &decision, assumption);
            if is_held || corrects_cost || !admission.delay.is_zero() {
                let mut grant = decision.take_grant();
                let slots = if is_held { grant.split_slots() } else { Grant::default() };
                if !slots.is_empty() {
                    admission.lease = Some(Box::new(layer.handle.hold(&active.limiter, slots, &settings.timer)));
                }
                admission.grant = Some(Box::new(grant));
            }
            AdmissionResult::Admit(if is_metered { admission.with_usage(settings, active, &plan) } else { admission })
        }
        Ok(decision) => AdmissionResult::Reject(reject_denied(settings, active, &parts.headers, &decision)),
        Err(error) => {
            let format = error_format(settings, active, &plan);
            AdmissionResult::Reject(reject_unavailable(settings, active, &parts.headers, &error, format))
        }
    }
}

/// The response to a request that a rule denies.
fn reject_denied<S: Store, B>(
    settings: &Settings,
    active: &ActiveLimiter<S>,
    headers: &HeaderMap,
    decision: &Decision,
) -> Response<ResponseBody<B>> {
    let rule = decision.rule().and_then(|id| active.limiter.rules().rule(id));
    let message = rule.and_then(|rule| rule.message.as_deref());
    let rejection = header_policy(settings, active).reject(decision, message, accept(headers).as_deref());
    reject(settings, headers, rejection)
}

/// The response to a request that is refused, since the store fails or this instance is overloaded.
fn reject_unavailable<S: Store, B>(
    settings: &Settings,
    active: &ActiveLimiter<S>,
    headers: &HeaderMap,
    error: &StoreError,
    format: ErrorFormat,
) -> Response<ResponseBody<B>> {
    let policy = header_policy(settings, active);
    reject(settings, headers, policy.reject_unavailable(error, Some(format), accept(headers).as_deref()))
}

/// The response to a request that has lost its slots before its response began.
fn reject_lost<S: Store, B>(
    settings: &Settings,
    active: &ActiveLimiter<S>,
    headers: &HeaderMap,
    format: ErrorFormat,
) -> Response<ResponseBody<B>> {
    let error = StoreError::new(StoreErrorKind::Refused, "the slot of the request was lost");
    reject_unavailable(settings, active, headers, &error, format)
}

/// The headers of a request that decide the form of its rejection.
fn rejection_headers(headers: &HeaderMap) -> HeaderMap {
    let kept = [ACCEPT, CONTENT_TYPE];
    kept.iter().flat_map(|name| headers.get_all(name).iter().map(|value| (name.clone(), value.clone()))).collect()
}

/// The rejection as a response in the protocol of the client.
fn reject<B>(settings: &Settings, headers: &HeaderMap, rejection: Rejection) -> Response<ResponseBody<B>> {
    let grpc_type = if settings.grpc_rejections { grpc::response_type(headers) } else { None };
    let mut response = match grpc_type {
        Some(content_type) => grpc::rejection_response(rejection, content_type),
        None => rejection_response(rejection),
    };
    response.extensions_mut().insert(HeadersWritten);
    response
}

/// The format of errors that are not about one rule.
fn error_format<S: Store>(settings: &Settings, active: &ActiveLimiter<S>, plan: &Plan<'_>) -> ErrorFormat {
    plan.error_format().unwrap_or(header_policy(settings, active).error_format())
}

fn accept(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    header_value(headers, &ACCEPT)
}

/// Adds the rate-limit headers, unless an inner layer or service has written some: numbers of two limits must not mix. A
/// security rule writes none and keeps outer layers from writing any.
fn add_headers(response: &mut response::Parts, headers: LimitHeaders, is_security: bool) {
    if is_security || !headers.is_empty() {
        let already_written = response.extensions.insert(HeadersWritten).is_some();
        if !already_written && !headers.overlaps(&response.headers) {
            headers.append_to(&mut response.headers);
        }
    }
}

impl<T: Clone, S> Clone for LimitService<T, S> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.layer.clone())
    }
}

impl<T: fmt::Debug, S> fmt::Debug for LimitService<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitService").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}
