//! `LimitService`: checks each request with the limiter, delays, forwards or rejects it, and adds headers to the response.

use std::borrow::Cow;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use http::request::Parts;
use http::{Request, Response, response};
use http_body::Body;
use tidegate::http::{HeaderPolicy, Rejection};
use tidegate::spi::{BodyNeed, BodyUse, Origin, Plan, Store};
use tidegate::{Decision, HeldLease, Receipt, Reservation, Rule, StoreError, StoreErrorKind};
use tower_service::Service;

use crate::attribute_sources::header_value;
use crate::body_size::{AssumedBodySize, body_size};
use crate::canonical_request::canonicalize;
use crate::cost_correction::{SizeAssumption, correct_cost, cost_by_size, stated_cost};
use crate::handle::ActiveLimiter;
use crate::layer::Settings;
use crate::limit_headers::LimitHeaders;
use crate::readiness::{reacquire, release};
use crate::refund_guard::{RefundGuard, ReleaseGuard};
use crate::response_body::{bad_request_response, rejection_response};
use crate::{DecisionSlot, LimitFuture, LimitLayer, ReservedTokens, ResponseBody, UsageReport, grpc};

/// A service behind limits, made by a [`LimitLayer`]. Clones share one limiter.
pub struct LimitService<T, S> {
    inner: T,
    layer: LimitLayer<S>,
}

/// The store failed, and the rules admit the request without it: an extension of the request, so that the application can
/// reduce its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DegradedMode {
    /// How the store failed.
    pub reason: StoreErrorKind,
}

/// The result of a check.
enum CheckOutcome<B> {
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
    degraded_mode: Option<DegradedMode>,
    delay: Duration,
    /// Present if the request may be refunded or its cost corrected.
    receipt: Option<Receipt>,
    /// Present if a cost depends on the size of a body without a length.
    assumption: Option<Box<SizeAssumption>>,
    /// Present if the request holds slots of concurrency limits.
    lease: Option<Box<HeldLease>>,
    /// Present if the cost is the number of tokens that a language model uses. It has the receipt then.
    usage: Option<UsageReport>,
    reserved_tokens: Option<ReservedTokens>,
}

impl DegradedMode {
    /// The store failed in this way.
    pub const fn new(reason: StoreErrorKind) -> Self {
        Self { reason }
    }
}

impl Admission {
    fn new<S: Store>(
        settings: &Settings,
        active: &ActiveLimiter<S>,
        decision: Decision,
        assumption: Option<Box<SizeAssumption>>,
        lease: Option<Box<HeldLease>>,
        is_metered: bool,
    ) -> Self {
        let delay = decision.delay();
        let corrects_cost =
            settings.actual_cost.is_some() || active.has_cost_headers || is_metered || assumption.is_some();
        Self {
            headers: LimitHeaders::from_decision(header_policy(settings, active), &decision),
            is_security: decision.is_security(),
            degraded_mode: decision.degraded().map(DegradedMode::new),
            delay,
            receipt: (corrects_cost || !delay.is_zero()).then(|| decision.into_receipt()),
            assumption,
            lease,
            usage: None,
            reserved_tokens: None,
        }
    }

    /// Leaves the correction of the cost to the service, which learns the tokens.
    #[cold]
    fn with_reservation<S: Store + 'static>(
        mut self,
        settings: &Settings,
        active: &ActiveLimiter<S>,
        plan: &Plan<'_>,
        reservation: Option<Reservation>,
    ) -> Self {
        self.reserved_tokens = ReservedTokens::from_plan(active.limiter.rules(), plan);
        let taken = self.receipt.take().unwrap_or_default();
        self.usage = Some(UsageReport::new(&active.limiter, plan, (reservation, taken), &settings.timer));
        self
    }
}

impl<T, S> LimitService<T, S> {
    pub(crate) const fn new(inner: T, layer: LimitLayer<S>) -> Self {
        Self { inner, layer }
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
    type Future = LimitFuture<B, T::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The service that reported ready must be the one that is called; its clone is not ready.
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        LimitFuture::new(handle(self.layer.clone(), ready, request))
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
        return Ok(bad_request_response(message));
    }
    let body_size = if active.reads_size { body_size(&parts, &body) } else { None };
    let admission = match check(&layer, &active, &parts, body_size).await {
        CheckOutcome::Admit(admission) => admission,
        CheckOutcome::Reject(response) => return Ok(response),
    };
    if let Some(degraded_mode) = admission.degraded_mode {
        parts.extensions.insert(degraded_mode);
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
        let receipt = if admission.delay.is_zero() {
            admission.receipt
        } else if let Some(usage) = &admission.usage {
            let guard = ReleaseGuard::new(usage);
            release(&mut inner);
            guard.wait(admission.delay, &*settings.timer).await;
            reacquire(&mut inner).await?;
            None
        } else {
            let guard = RefundGuard::new(&active.limiter, admission.receipt);
            release(&mut inner);
            let receipt = guard.wait(admission.delay, &*settings.timer).await;
            reacquire(&mut inner).await?;
            receipt
        };
        Ok((inner.call(Request::from_parts(parts, body)).await?, receipt))
    };
    let Some(served) = unless_lost(lease.as_deref(), serve).await else {
        return Ok(reject_lost(settings, &active, &headers.unwrap_or_default()));
    };
    let (response, receipt) = served?;
    let (mut parts, body) = response.into_parts();
    if let Some(usage) = &admission.usage {
        let by_size = cost_by_size(settings, &active, admission.assumption.as_deref());
        let cost =
            |rule: &str| stated_cost(settings, &active, &parts, rule).or_else(|| by_size.as_ref()?.rule_cost(rule));
        usage.settle_others(cost).await;
        usage.end_if_stated();
    } else if let Some(receipt) = receipt {
        correct_cost(settings, &active, receipt, &parts, admission.assumption.as_deref()).await;
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
) -> CheckOutcome<B> {
    let settings = &*layer.settings;
    let layer_attributes = settings.attributes.as_ref().map(|attributes| attributes(parts)).unwrap_or_default();
    let cost = settings.cost.as_ref().map_or(1, |cost| cost(parts));
    let values = active.sources.read(parts, &layer_attributes, (settings.peer)(parts), body_size);
    let request = values.to_request(&settings.action, cost);
    let origin = Origin::new(settings.front_door).with_method(parts.method.as_str());
    let plan = active.limiter.plan(&request).with_max_delay(settings.max_delay).with_origin(origin);
    let is_metered = active.has_usage && active.limiter.rules().settles_by_usage(&plan);
    let result = if is_metered {
        active.limiter.reserve_usage_plan(plan.clone()).await
    } else {
        active.limiter.check_plan(&plan).await
    };
    if let Some(slot) = parts.extensions.get::<DecisionSlot>() {
        slot.fill(&result);
    }
    match result {
        Ok(decision) if decision.is_allowed() => {
            let BodyUse { size, assumed_size, .. } = plan.body_use();
            let assumption = assumed_size.map(|bytes| {
                Box::new(SizeAssumption {
                    size: AssumedBodySize::new((size == BodyNeed::Enforced).then_some(bytes)),
                    attributes: values.to_owned_attributes(),
                    cost,
                })
            });
            let is_held = plan.lease_owner().is_some() && settings.holds_leases;
            let lease = if is_held { decision.lease() } else { None };
            let lease = lease.map(|lease| Box::new(layer.handle.hold(&active.limiter, lease, &settings.timer)));
            // The slots of concurrency limits are held as a lease.
            let reservation =
                if is_metered { decision.reservation().and_then(Reservation::without_slots) } else { None };
            let admission = Admission::new(settings, active, decision, assumption, lease, is_metered);
            if is_metered {
                return CheckOutcome::Admit(admission.with_reservation(settings, active, &plan, reservation));
            }
            CheckOutcome::Admit(admission)
        }
        Ok(decision) => CheckOutcome::Reject(reject_denied(settings, active, &parts.headers, &decision)),
        Err(error) => CheckOutcome::Reject(reject_unavailable(settings, active, &parts.headers, &error)),
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
    let message = rule.and_then(Rule::message);
    let rejection = header_policy(settings, active).reject(decision, message, accept(headers).as_deref());
    reject(settings, headers, rejection)
}

/// The response to a request that is refused, since the store fails or this instance is overloaded.
fn reject_unavailable<S: Store, B>(
    settings: &Settings,
    active: &ActiveLimiter<S>,
    headers: &HeaderMap,
    error: &StoreError,
) -> Response<ResponseBody<B>> {
    reject(settings, headers, header_policy(settings, active).reject_unavailable(error, accept(headers).as_deref()))
}

/// The response to a request that has lost its slots before its response began.
fn reject_lost<S: Store, B>(
    settings: &Settings,
    active: &ActiveLimiter<S>,
    headers: &HeaderMap,
) -> Response<ResponseBody<B>> {
    let error = StoreError::new(StoreErrorKind::Refused, "the slot of the request was lost");
    reject_unavailable(settings, active, headers, &error)
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

/// The policy of the layer, else that of the rules.
fn header_policy<'a, S: Store>(settings: &'a Settings, active: &'a ActiveLimiter<S>) -> &'a HeaderPolicy {
    settings.header_policy.as_ref().unwrap_or_else(|| active.limiter.rules().header_policy())
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
