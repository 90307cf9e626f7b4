//! `LimitService`: the way of an HTTP request: translate, ask the limiter, hold, go on, tell. What the answers say is the
//! contract's business, and what the limits mean is the limiter's.

use std::borrow::Cow;
use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::ACCEPT;
use http::request::Parts;
use http::{Request, Response, response};
use tidegate::http::{HeaderPolicy, Rejection};
use tidegate::spi::{Origin, Store};
use tidegate::{Decision, Receipt, Rule, StoreErrorKind};
use tower_service::Service;

use crate::attributes::joined;
use crate::body::refusal;
use crate::fields::Fields;
use crate::handle::Current;
use crate::held::Held;
use crate::layer::Settings;
use crate::readiness::{give_back, regain};
use crate::{DecisionSlot, LimitFuture, LimitLayer, ResponseBody, grpc};

/// A service behind limits, made by a [`LimitLayer`]. Clones share one limiter.
pub struct LimitService<T, S> {
    inner: T,
    layer: LimitLayer<S>,
}

/// The store failed, and the request passes by what its rules say of that: an extension of the request, so that the application
/// can do less than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// How the store failed.
    pub reason: StoreErrorKind,
}

/// What becomes of a request.
enum Judged<B> {
    Passes(Pass),
    Refused(Response<ResponseBody<B>>),
}

/// All that may be said about limits has been said: an extension of the response, for the layers further out. The numbers of
/// another rule would contradict a refusal, and would give away what a rule against guessing keeps.
#[derive(Clone, Copy)]
struct Said;

/// A decision that lets a request pass.
struct Pass {
    fields: Fields,
    /// Whether a rule applied about which answers must give nothing away.
    is_security: bool,
    degraded: Option<Degraded>,
    delay: Duration,
    /// What was taken, if it may have to be given back or corrected.
    receipt: Option<Receipt>,
}

impl Pass {
    fn new<S: Store>(settings: &Settings, current: &Current<S>, decision: Decision) -> Self {
        let delay = decision.delay();
        let settles = settings.settle.is_some() || current.settles;
        Self {
            fields: Fields::of(contract(settings, current), &decision),
            is_security: decision.is_security(),
            degraded: decision.degraded().map(|reason| Degraded { reason }),
            delay,
            receipt: (settles || !delay.is_zero()).then(|| decision.into_receipt()),
        }
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
    A: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = T::Error;
    type Future = LimitFuture<B, T::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The one that said it is ready is the one to be called; its clone would have to be asked first.
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        LimitFuture::new(go(self.layer.clone(), ready, request))
    }
}

/// The whole way of a request.
async fn go<T, S, A, B>(
    layer: LimitLayer<S>,
    mut inner: T,
    request: Request<A>,
) -> Result<Response<ResponseBody<B>>, T::Error>
where
    T: Service<Request<A>, Response = Response<B>> + Clone,
    S: Store,
{
    let settings = &*layer.settings;
    let current = layer.handle.current();
    let (mut parts, body) = request.into_parts();
    let pass = match judge(settings, &current, &parts).await {
        Judged::Passes(pass) => pass,
        Judged::Refused(refusal) => return Ok(refusal),
    };
    if let Some(degraded) = pass.degraded {
        parts.extensions.insert(degraded);
    }
    let receipt = if pass.delay.is_zero() {
        pass.receipt
    } else {
        let held = Held::new(&current.limiter, pass.receipt);
        give_back(&mut inner);
        let receipt = held.wait(pass.delay, &*settings.timer).await;
        regain(&mut inner).await?;
        receipt
    };
    let response = inner.call(Request::from_parts(parts, body)).await?;
    let (mut parts, body) = response.into_parts();
    if let Some(receipt) = receipt {
        settle(settings, &current, receipt, &parts).await;
    }
    tell(&mut parts, pass.fields, pass.is_security);
    Ok(Response::from_parts(parts, ResponseBody::inner(body)))
}

/// Asks the limiter about a request.
async fn judge<S: Store, B>(settings: &Settings, current: &Current<S>, parts: &Parts) -> Judged<B> {
    let told = settings.attributes.as_ref().map(|attributes| attributes(parts)).unwrap_or_default();
    let cost = settings.cost.as_ref().map_or(1, |cost| cost(parts));
    let values = current.reads.values(parts, &told, (settings.peer)(parts));
    let request = values.request(&settings.action, cost);
    let origin = Origin::new(settings.front_door).with_method(parts.method.as_str());
    let plan = current.limiter.plan(&request).with_max_delay(settings.longest_delay).with_origin(origin);
    let result = current.limiter.check_plan(&plan).await;
    if let Some(slot) = parts.extensions.get::<DecisionSlot>() {
        slot.fill(&result);
    }
    match result {
        Ok(decision) if decision.is_allowed() => Judged::Passes(Pass::new(settings, current, decision)),
        Ok(decision) => Judged::Refused(denied(settings, current, parts, &decision)),
        Err(_) => Judged::Refused(failed(settings, current, parts)),
    }
}

fn denied<S: Store, B>(
    settings: &Settings,
    current: &Current<S>,
    parts: &Parts,
    decision: &Decision,
) -> Response<ResponseBody<B>> {
    let rule = decision.rule().and_then(|id| current.limiter.rules().rule(id));
    let message = rule.and_then(Rule::message);
    refused(settings, parts, contract(settings, current).reject(decision, message, accepted(parts).as_deref()))
}

fn failed<S: Store, B>(settings: &Settings, current: &Current<S>, parts: &Parts) -> Response<ResponseBody<B>> {
    refused(settings, parts, contract(settings, current).reject_unavailable(accepted(parts).as_deref()))
}

/// The refusal, in the language of the caller.
fn refused<B>(settings: &Settings, parts: &Parts, answer: Rejection) -> Response<ResponseBody<B>> {
    let spoken = if settings.http_only { None } else { grpc::spoken(&parts.headers) };
    let mut response = match spoken {
        Some(media_type) => grpc::refusal(answer, media_type),
        None => refusal(answer),
    };
    response.extensions_mut().insert(Said);
    response
}

/// What the layer was told goes before what the rules choose.
fn contract<'a, S: Store>(settings: &'a Settings, current: &'a Current<S>) -> &'a HeaderPolicy {
    settings.contract.as_ref().unwrap_or_else(|| current.limiter.rules().header_policy())
}

fn accepted(parts: &Parts) -> Option<Cow<'_, str>> {
    joined(&parts.headers, &ACCEPT)
}

/// Corrects the cost by what the response says. What the layer was told goes before what the rules name.
///
/// The work is done, and the observer has seen a failure: the caller gets the answer either way.
async fn settle<S: Store>(settings: &Settings, current: &Current<S>, receipt: Receipt, response: &response::Parts) {
    let limiter = &current.limiter;
    if let Some(actual) = &settings.settle {
        let _ = limiter.settle(receipt, |rule| actual(response, rule)).await;
    } else if current.settles {
        let header = |name: &str| response.headers.get(name)?.to_str().ok();
        let _ = limiter.settle(receipt, |rule| limiter.rules().actual_cost(rule, header)).await;
    }
}

/// Adds what the limits say, unless a layer or the service further in has spoken of limits itself: half of one set of numbers
/// and half of another would make no sense. A rule against guessing has nothing to say, and nobody may say more.
fn tell(response: &mut response::Parts, fields: Fields, is_security: bool) {
    if is_security || !fields.is_empty() {
        let said = response.extensions.insert(Said).is_some();
        if !said && !fields.is_in(&response.headers) {
            fields.add_to(&mut response.headers);
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
