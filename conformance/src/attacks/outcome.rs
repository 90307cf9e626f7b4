//! `AttackOutcome`: the result of one attack in one state of the store, and the promises it is held to. Pure.

use std::time::Duration;

use super::assault::{AttackerCounts, UNKNOWN_ATTACKER};
use super::attack::{Attack, StoreState};
use super::bystander::BystanderCounts;

/// The result of one attack in one state of the store.
#[derive(Clone, Debug)]
pub struct AttackOutcome {
    /// The attack.
    pub attack: Attack,
    /// The state of the store.
    pub state: StoreState,
    /// The limit of each API key.
    pub limit: u64,
    /// What the attacker got.
    pub attacker: AttackerCounts,
    /// What the others got.
    pub bystander: BystanderCounts,
    /// How often a circuit breaker opened.
    pub breaker_openings: u64,
    /// How many plans waited too long for the store, or were too many.
    pub overloads: u64,
    /// The slowest answer of the store that an independent connection saw, if the store answers.
    pub slowest_answer: Option<Duration>,
    /// Whether all answers came within the timeout.
    pub within_timeout: bool,
}

impl AttackOutcome {
    /// What passed under all limits that the attacker tried to exceed.
    pub fn passed(&self) -> u64 {
        if self.attack == Attack::SubjectFlood { self.attacker.allowed } else { self.attacker.passed.values().sum() }
    }

    /// The promised maximum of what passes under all of them.
    pub fn bound(&self) -> u64 {
        self.attacker.passed.keys().map(|subject| self.bound_of(subject)).sum()
    }

    /// The promised maximum for one subject: its limit, and without the store once more for each instance.
    fn bound_of(&self, subject: &str) -> u64 {
        let without_store = if self.is_exact(subject) { 0 } else { self.attack.instances() as u64 * self.limit };
        self.limit + without_store
    }

    /// Whether the store alone decides for this subject: it answers, it is not full or has known the subject before, and the instance
    /// is not overloaded, or refuses this subject then since it has several plans waiting.
    fn is_exact(&self, subject: &str) -> bool {
        let is_crowded = self.attack != Attack::ExhaustedClients;
        self.within_timeout && subject != UNKNOWN_ATTACKER && (is_crowded || self.overloads == 0)
    }

    /// Describes every broken promise.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut promise = |kept: bool, what: &str| {
            if !kept {
                let outcome = self.summary();
                problems.push(format!("{}, store {}: {what}: {outcome}", self.attack.name(), self.state.name()));
            }
        };
        if !self.attack.is_bounded() {
            return problems;
        }
        let passed = || self.attacker.passed.iter();
        promise(!self.attacker.passed.is_empty(), "the attacker sent nothing");
        promise(
            passed().all(|(subject, passed)| *passed <= self.bound_of(subject)),
            "the attacker got more than the bound",
        );
        promise(self.bystander.allowed == self.bystander.asked, "a bystander within its limit was refused");
        if self.within_timeout {
            let got_its_limit = |(subject, passed): (&String, &u64)| *passed >= self.limit || !self.is_exact(subject);
            promise(passed().all(got_its_limit), "the attacker got less than its limit");
            promise(self.breaker_openings == 0, "a circuit breaker opened although the store answered");
        }
        problems
    }

    fn summary(&self) -> String {
        let Self { limit, attacker, bystander, breaker_openings, overloads, slowest_answer, .. } = self;
        let AttackerCounts { asked, allowed, denied, refused, passed } = attacker;
        let worst = passed.values().max().copied().unwrap_or_default();
        format!(
            "attacker: {asked} asked, {allowed} allowed, {denied} denied, {refused} refused, {worst} of {limit} under one of {} \
             limits; bystander: {} asked, {} allowed, {} denied, {} refused; breaker opened {breaker_openings} times; \
             {overloads} overloads; slowest answer {slowest_answer:?}",
            passed.len(),
            bystander.asked,
            bystander.allowed,
            bystander.denied,
            bystander.refused,
        )
    }
}
