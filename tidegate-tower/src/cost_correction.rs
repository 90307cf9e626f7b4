//! Corrects the cost of a request once its response is there: by what the response states, or by the size of the body.

use http::response;
use tidegate::attributes::{RequestAttributes, SIZE};
use tidegate::grants::Costs;
use tidegate::spi::{Plan, Store};
use tidegate::{Ending, Grant};

use crate::body_size::AssumedBodySize;
use crate::handle::ActiveLimiter;
use crate::layer::Settings;

/// The size that was assumed for a request, and what its costs are computed from once the size is known.
pub(crate) struct SizeAssumption {
    pub(crate) size: AssumedBodySize,
    pub(crate) attributes: RequestAttributes<'static>,
}

/// Corrects the cost by the response: by the function of the layer, else by the headers that rules name; and else by the size of the
/// body, if that was assumed and is known now.
///
/// A failure is reported to the observer only: the work is done, and the client gets its response.
pub(crate) async fn correct_cost<S: Store>(
    settings: &Settings,
    active: &ActiveLimiter<S>,
    mut grant: Grant,
    response: &response::Parts,
    assumption: Option<&SizeAssumption>,
) {
    let by_size = cost_by_size(active, assumption);
    if settings.actual_cost.is_some() || active.has_cost_headers || by_size.is_some() {
        let by_size = |rule: &str| by_size.as_ref()?.rule_cost(rule);
        let actual = |rule: &str| stated_cost(settings, active, response, rule).or_else(|| by_size(rule));
        let ending = Ending::Settle(Costs::of(&grant, actual));
        let _ = active.limiter.end(&mut grant, &ending).await;
    }
}

/// The plan by the size of the body, if that was assumed and is known now.
pub(crate) fn cost_by_size<'a, S: Store>(
    active: &'a ActiveLimiter<S>,
    assumption: Option<&SizeAssumption>,
) -> Option<Plan<'a>> {
    let assumption = assumption?;
    let size = assumption.size.actual()?.to_string();
    Some(active.limiter.plan(&assumption.attributes.request().with_replaced_attribute(SIZE, &size)))
}

/// The actual cost under a rule by the head of the response.
pub(crate) fn stated_cost<S: Store>(
    settings: &Settings,
    active: &ActiveLimiter<S>,
    response: &response::Parts,
    rule: &str,
) -> Option<u64> {
    match &settings.actual_cost {
        Some(actual_cost) => actual_cost(response, rule),
        None if active.has_cost_headers => {
            active.limiter.rules().actual_cost(rule, |name| response.headers.get(name)?.to_str().ok())
        }
        None => None,
    }
}
