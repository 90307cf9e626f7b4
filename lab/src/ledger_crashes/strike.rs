//! What is killed in a round, and when. Drawn from the seed of the round; the moments count finished calls, not time.

use fastrand::Rng;

/// In one of so many rounds a further victim is killed with the first, and in one of so many of these a third.
const ROUNDS_PER_FURTHER_VICTIM: u8 = 3;

/// A process that can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Victim {
    /// A server instance, with its flusher.
    Instance(usize),
    /// Redis, which loses everything.
    Redis,
    /// PostgreSQL, all processes at once.
    Postgres,
    /// PostgreSQL stops (SIGSTOP) and continues later: connections stay open, nothing is answered.
    PostgresStopped,
}

/// The processes of an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deployment {
    /// Two instances on Redis, with a ledger in PostgreSQL.
    Fleet,
    /// One instance with its own memory, and a ledger in SQLite.
    Single,
}

/// One kill.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strike {
    pub(super) victim: Victim,
    /// Calls of the round that are finished before it.
    pub(super) after_calls: u64,
    /// A further delay, so that it does not always follow an answer.
    pub(super) delay_micros: u64,
    /// Calls that are finished while it is dead.
    pub(super) dead_for_calls: u64,
}

impl Victim {
    /// Its name on the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instance(_) => "server",
            Self::Redis => "Redis",
            Self::Postgres => "PostgreSQL",
            Self::PostgresStopped => "PostgreSQL stopped",
        }
    }
}

impl Deployment {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Fleet, Self::Single];

    /// Its name on the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Single => "single",
        }
    }

    pub(super) const fn instances(self) -> usize {
        match self {
            Self::Fleet => 2,
            Self::Single => 1,
        }
    }

    /// What is killed in a round: one victim, or sometimes more.
    pub(super) fn strikes(self, calls: u64, rng: &mut Rng) -> Vec<Strike> {
        let mut victims = match self {
            Self::Fleet => {
                vec![Victim::Instance(0), Victim::Instance(1), Victim::Redis, Victim::Postgres, Victim::PostgresStopped]
            }
            Self::Single => vec![Victim::Instance(0)],
        };
        rng.shuffle(&mut victims);
        let is_postgres = |victim: &Victim| matches!(victim, Victim::Postgres | Victim::PostgresStopped);
        let mut struck = vec![victims[0]];
        for victim in &victims[1..] {
            // A killed PostgreSQL cannot be stopped.
            if rng.u8(..ROUNDS_PER_FURTHER_VICTIM) > 0 || (is_postgres(victim) && struck.iter().any(is_postgres)) {
                break;
            }
            struck.push(*victim);
        }
        let after_calls = rng.u64(calls / 8..=calls / 2);
        let strike = |victim: Victim| Strike {
            victim,
            // All at about the same time.
            after_calls: after_calls + rng.u64(..4),
            delay_micros: rng.u64(..5_000),
            dead_for_calls: rng.u64(1..=calls / 4),
        };
        struck.into_iter().map(strike).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_strikes_again_and_all_victims_are_struck() {
        let draw = |seed| Deployment::Fleet.strikes(100, &mut Rng::with_seed(seed));
        let names = |seed| draw(seed).iter().map(|strike| strike.victim).collect::<Vec<_>>();
        assert_eq!(names(7), names(7));
        let struck: std::collections::BTreeSet<_> = (0..200).flat_map(names).collect();
        assert_eq!(struck.len(), 5);
        assert!([2, 3].iter().all(|count| (0..200).any(|seed| names(seed).len() == *count)));
    }
}
