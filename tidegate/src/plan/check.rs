//! `Check`: a gate with the key of a subject and a cost.

use std::time::Duration;

use super::{Gate, Role};
use crate::key::Key;
use crate::limit::MAX_AMOUNT;
use crate::rules::OnOverload;
use crate::spi::Subject;
use crate::{Network, OnFailure, StoreError, StoreErrorKind, Timestamp};

/// A cost that no limit admits. Larger costs saturate at it.
const IMPOSSIBLE_COST: u64 = MAX_AMOUNT + 1;

/// A gate with the key of a subject and a cost.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Check<'r> {
    gate: &'r Gate,
    key: Key<'r>,
    cost: u64,
    /// That of the rule, or of a stricter one that shares the check, and so the next three.
    on_failure: OnFailure,
    on_overload: OnOverload,
    denial_cache: bool,
    security: bool,
    usage: bool,
    anonymous: bool,
    network: Option<Network>,
}

impl<'r> Check<'r> {
    pub(crate) fn from_key(gate: &'r Gate, key: Key<'r>, cost: u64) -> Self {
        let rule = gate.rule();
        Self {
            gate,
            key,
            cost: bounded_cost(gate, cost),
            on_failure: rule.on_failure,
            on_overload: rule.on_overload,
            denial_cache: rule.denial_cache,
            security: rule.security,
            usage: rule.usage.is_some(),
            anonymous: false,
            network: None,
        }
    }

    /// A check of `gate` for a subject that decides its own partition.
    pub fn new(gate: &'r Gate, subject: Subject, cost: u64) -> Self {
        Self::from_key(gate, Key::new(gate.stem(), subject.partition(), subject), cost)
    }

    /// The limit and its rule.
    pub const fn gate(&self) -> &'r Gate {
        self.gate
    }

    /// Whether it has no effect on the request.
    pub(crate) fn is_shadow(&self) -> bool {
        self.gate.role() == Role::Shadow
    }

    /// The key of its state.
    pub const fn key(&self) -> &Key<'r> {
        &self.key
    }

    /// Whether responses must not contain details, for this rule or one that shares the check.
    pub const fn is_security(&self) -> bool {
        self.security
    }

    /// Whether the actual cost is the [token usage](crate::rules::UsageKind) of a language model, for this rule or one that shares the check.
    pub const fn settles_by_usage(&self) -> bool {
        self.usage
    }

    /// Sets whether the actual cost is the token usage of a language model.
    pub const fn with_usage(mut self, usage: bool) -> Self {
        self.usage = usage;
        self
    }

    /// What happens while the store fails.
    pub const fn on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// What happens while this instance is overloaded.
    pub const fn on_overload(&self) -> OnOverload {
        self.on_overload
    }

    /// Whether a store may deny the check in the process, for this rule and all that share the check.
    pub const fn denial_cache(&self) -> bool {
        self.denial_cache
    }

    /// What happens to a request after the store failed with `error`: [`on_failure`](Self::on_failure), or what
    /// [`on_overload`](Self::on_overload) makes of it. A static rule without a static limit is closed, and so is a rule whose ledger does
    /// not [fit](crate::StoreErrorKind::Mismatch).
    pub fn policy(&self, error: &StoreError) -> OnFailure {
        if matches!(error.kind(), StoreErrorKind::Mismatch) && self.gate.ledger().is_some() {
            return OnFailure::Closed;
        }
        match self.on_failure.after(error, self.on_overload) {
            OnFailure::Static if self.gate.rule().static_limit.is_none() => OnFailure::Closed,
            policy => policy,
        }
    }

    /// Sets whether the subject is anonymous.
    pub const fn with_anonymous(mut self, anonymous: bool) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// Whether the subject is anonymous.
    pub const fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    /// Sets the network of the subject, if it has an address.
    pub const fn with_network(mut self, network: Option<Network>) -> Self {
        self.network = network;
        self
    }

    /// The network of the subject, if it has an address. A subject without a state of its own shares an
    /// [overflow bucket](crate::spi::Newcomer) by it.
    pub const fn network(&self) -> Option<Network> {
        self.network
    }

    /// How long the store keeps the state of the subject after its last request, if that is bounded.
    pub fn forget_after(&self) -> Option<Duration> {
        // A subject must not end its block by waiting for less.
        if self.anonymous && !self.gate.is_penalty() { self.gate.forget_after() } else { None }
    }

    /// The latest expiry, in microseconds, of a state written now.
    #[inline(always)]
    pub(crate) fn max_expiry(&self, now: Timestamp) -> u64 {
        self.forget_after().map_or(u64::MAX, |after| now.plus(after).as_micros())
    }

    /// Sets what happens while the store fails or this instance is overloaded, in place of what the rule says.
    pub(crate) const fn with_policy(mut self, on_failure: OnFailure) -> Self {
        (self.on_failure, self.on_overload) = (on_failure, OnOverload::Policy);
        self
    }

    /// Sets whether responses must not contain details.
    pub(crate) const fn with_security(mut self, security: bool) -> Self {
        self.security = security;
        self
    }

    /// Sets what happens while the store fails.
    pub(crate) const fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Sets the cost of one unit. That of a penalty stays 0.
    pub fn with_cost(mut self, cost: u64) -> Self {
        self.cost = bounded_cost(self.gate, cost);
        self
    }

    /// The cost of one unit.
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Merges a check of another rule with the same key.
    pub(super) fn join(&mut self, other: &Self) {
        self.add_cost(other.cost);
        self.restrict(other);
    }

    /// Unites it with the check of another reading of the same request. The larger cost counts.
    pub(super) fn unite(&mut self, other: &Self) {
        self.cost = self.cost.max(other.cost);
        self.restrict(other);
    }

    /// Takes the stricter settings of two checks with the same key. The subject is anonymous only if it is for both.
    fn restrict(&mut self, other: &Self) {
        self.on_failure = self.on_failure.stricter(other.on_failure);
        self.on_overload = self.on_overload.stricter(other.on_overload);
        self.denial_cache &= other.denial_cache;
        self.security |= other.security;
        self.usage |= other.usage;
        self.anonymous &= other.anonymous;
    }

    pub(super) fn add_cost(&mut self, cost: u64) {
        self.cost = self.cost.saturating_add(cost).min(IMPOSSIBLE_COST);
    }
}

/// The cost of a check: at most one that no limit admits. A penalty consumes nothing.
#[inline(always)]
fn bounded_cost(gate: &Gate, cost: u64) -> u64 {
    if gate.is_penalty() { 0 } else { cost.min(IMPOSSIBLE_COST) }
}
