//! `AttackOutcome`: the result of one attack in one state of the store, and the promises it is held to. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::spi::PARTITIONS;

use super::assault::UNKNOWN_ATTACKER;
use super::attack::{Attack, StoreState};
use super::target::MAX_SUBJECTS;
use crate::suite::{Answer, AnswerCounts, broken_promises};

/// The result of one attack in one state of the store.
#[derive(Clone, Debug)]
pub struct AttackOutcome {
    pub(super) attack: Attack,
    pub(super) state: StoreState,
    /// How many requests of the attacker can be under way together, at the gateway.
    pub(super) connections: u64,
    /// How many requests the attacker sent, whether it waited for the answers or not.
    pub(super) sent: u64,
    pub(super) attacker: AnswerCounts,
    /// The attacker's requests that passed, for each limit that it wants to exceed.
    pub(super) passed: BTreeMap<String, u64>,
    /// What the others got, and the median and the 99th percentile of their latencies.
    pub(super) bystander: AnswerCounts,
    pub(super) latencies: [Duration; 2],
    pub(super) breaker_openings: u64,
    /// How many plans waited too long for the store, or were too many.
    pub(super) overloads: u64,
    /// The slowest answer of the store that an independent connection saw, if the store answers.
    pub(super) slowest_answer: Option<Duration>,
    /// Whether all answers came within the timeout.
    pub(super) within_timeout: bool,
}

impl AttackOutcome {
    /// What passed under all limits that the attacker tried to exceed.
    pub(super) fn passed(&self) -> u64 {
        if self.attack == Attack::SubjectFlood { self.attacker.of(Answer::Allowed) } else { self.passed.values().sum() }
    }

    /// The promised maximum of what passes under all of them.
    pub(super) fn bound(&self) -> u64 {
        if self.attack == Attack::SubjectFlood {
            return self.flood_bound();
        }
        self.passed.keys().map(|subject| self.bound_of(subject)).sum()
    }

    /// The promised maximum for a flood of addresses, each of which sends one request: as many as the store remembers and as were under
    /// way when it had as many, and the limit of each overflow bucket of their network. If an instance decided without the store, by its
    /// memory, all of them.
    fn flood_bound(&self) -> u64 {
        if self.within_timeout && self.overloads == 0 {
            MAX_SUBJECTS + self.connections + self.attack.limit() * u64::from(PARTITIONS)
        } else {
            self.sent
        }
    }

    /// The promised maximum of denied bystanders: newcomers that share an overflow bucket with a flood from one network, 1 of 64, twice as
    /// many by chance.
    fn max_denied_bystanders(&self) -> u64 {
        if self.attack == Attack::SubjectFlood { self.bystander.total() / 32 + 1 } else { 0 }
    }

    /// The promised maximum for one subject: its limit, and without the store once more for each instance.
    fn bound_of(&self, subject: &str) -> u64 {
        let limit = self.attack.limit();
        if self.is_exact(subject) { limit } else { limit + self.attack.instances() as u64 * limit }
    }

    /// Whether the store alone decides for this subject: it answers, it is not full or has known the subject before, and the instance
    /// is not overloaded, or refuses this subject then since it has several plans waiting.
    fn is_exact(&self, subject: &str) -> bool {
        let is_crowded = self.attack != Attack::ExhaustedClients;
        self.within_timeout && subject != UNKNOWN_ATTACKER && (is_crowded || self.overloads == 0)
    }

    /// Describes every broken promise.
    pub fn problems(&self) -> Vec<String> {
        let is_flood = self.attack == Attack::SubjectFlood;
        let is_served = self.bystander.of(Answer::Refused) == 0
            && self.bystander.of(Answer::Denied) <= self.max_denied_bystanders();
        let each_is_bounded = || self.passed.iter().all(|(subject, passed)| *passed <= self.bound_of(subject));
        let is_within_bound = if is_flood { self.passed() <= self.bound() } else { each_is_bounded() };
        let got_its_limit =
            |(subject, passed): (&String, &u64)| *passed >= self.attack.limit() || !self.is_exact(subject);
        let outcome = format!("{}, store {}", self.attack.name(), self.state.name());
        let promises = [
            (is_served, "a bystander within its limit was refused"),
            (
                !self.within_timeout || self.breaker_openings == 0,
                "a circuit breaker opened although the store answered",
            ),
            (is_flood || !self.passed.is_empty(), "the attacker sent nothing"),
            (is_within_bound, "the attacker got more than the bound"),
            (
                is_flood || !self.within_timeout || self.passed.iter().all(got_its_limit),
                "the attacker got less than its limit",
            ),
        ];
        // There may be a thousand subjects.
        let worst =
            self.passed.iter().max_by_key(|(_, passed)| **passed).map(|(subject, passed)| (subject.clone(), *passed));
        broken_promises(&outcome, &Self { passed: worst.into_iter().collect(), ..self.clone() }, promises)
    }
}
