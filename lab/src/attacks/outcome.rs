//! `AttackOutcome`: the result of one attack in one state of the store, and the promises it is held to. Pure.

use std::time::Duration;

use tidegate::spi::PARTITIONS;

use super::assault::{AttackerCounts, UNKNOWN_ATTACKER};
use super::attack::{Attack, StoreState};
use super::bystander::BystanderCounts;
use super::target::MAX_SUBJECTS;

/// The result of one attack in one state of the store.
#[derive(Clone, Debug)]
pub struct AttackOutcome {
    /// The attack.
    pub attack: Attack,
    /// The state of the store.
    pub state: StoreState,
    /// The limit of each API key.
    pub limit: u64,
    /// How many requests of the attacker can be under way together, at the gateway.
    pub connections: u64,
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
        if self.attack == Attack::SubjectFlood {
            return self.flood_bound();
        }
        self.attacker.passed.keys().map(|subject| self.bound_of(subject)).sum()
    }

    /// The promised maximum for a flood of addresses, each of which sends one request: as many as the store remembers and as were under
    /// way when it had as many, and the limit of each overflow bucket of their network. If an instance decided without the store, by its
    /// memory, all of them.
    fn flood_bound(&self) -> u64 {
        if self.within_timeout && self.overloads == 0 {
            MAX_SUBJECTS + self.connections + self.limit * u64::from(PARTITIONS)
        } else {
            self.attacker.asked
        }
    }

    /// The promised maximum of denied bystanders: newcomers that share an overflow bucket with a flood from one network, 1 of 64, twice as
    /// many by chance.
    fn max_denied_bystanders(&self) -> u64 {
        if self.attack == Attack::SubjectFlood { self.bystander.asked / 32 + 1 } else { 0 }
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
        let BystanderCounts { denied, refused, .. } = self.bystander;
        let is_served = refused == 0 && denied <= self.max_denied_bystanders();
        promise(is_served, "a bystander within its limit was refused");
        promise(
            !self.within_timeout || self.breaker_openings == 0,
            "a circuit breaker opened although the store answered",
        );
        if self.attack == Attack::SubjectFlood {
            promise(self.passed() <= self.bound(), "the attacker got more than the bound");
            return problems;
        }
        let passed = || self.attacker.passed.iter();
        promise(!self.attacker.passed.is_empty(), "the attacker sent nothing");
        promise(
            passed().all(|(subject, passed)| *passed <= self.bound_of(subject)),
            "the attacker got more than the bound",
        );
        if self.within_timeout {
            let got_its_limit = |(subject, passed): (&String, &u64)| *passed >= self.limit || !self.is_exact(subject);
            promise(passed().all(got_its_limit), "the attacker got less than its limit");
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
