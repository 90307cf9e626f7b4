//! `DecisionSlot`: carries the decision on a request to the code around the layer, such as an access log.

use std::sync::{Arc, OnceLock};

use tidegate::{Decision, StoreError, StoreErrorKind};

/// An extension of a request, which the layer fills with its decision. Clones share it: keep one, and put the other into the
/// request.
///
/// ```
/// use tidegate_tower::DecisionSlot;
///
/// let slot = DecisionSlot::default();
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(slot.clone());
/// assert!(slot.get().is_none(), "until a layer has decided");
/// ```
#[derive(Clone, Debug, Default)]
pub struct DecisionSlot(Arc<OnceLock<DecisionSummary>>);

/// What was decided about a request. It has no subject.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecisionSummary {
    /// Whether the request passed.
    pub allowed: bool,
    /// The rule that the decision shows, if any applied.
    pub rule: Option<String>,
    /// How the store failed, if it did.
    pub degraded: Option<StoreErrorKind>,
}

impl DecisionSlot {
    /// The first decision on the request: that of the outermost layer.
    pub fn get(&self) -> Option<&DecisionSummary> {
        self.0.get()
    }

    pub(crate) fn fill(&self, result: &Result<Decision, StoreError>) {
        let _ = self.0.set(match result {
            Ok(decision) => DecisionSummary {
                allowed: decision.is_allowed(),
                rule: decision.rule().map(str::to_owned),
                degraded: decision.degraded(),
            },
            Err(error) => DecisionSummary { allowed: false, rule: None, degraded: Some(error.kind()) },
        });
    }
}
