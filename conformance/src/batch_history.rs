//! Random histories of batches: plans of every kind, role and mode that share keys, many of them equal, decided by one call; and
//! their replay, in which every batch must equal the same plans decided one by one.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::limits::Penalty;
use tidegate::rules::{AnonymousBounds, UsageKind};
use tidegate::spi::{
    Check, Gate, KeyStem, LeaseOwner, MAX_AMOUNT, MAX_LOG_LIMIT, Plan, PlanMode, ReservationTerms, Role, Store,
    Subject, Verdict,
};
use tidegate::{Clock, Limit, ManualClock, Rule, Timestamp};
use tidegate_redis::RedisStore;

use crate::history::{self, Cost, START, TimeMove};
use crate::model::ModelStore;
use crate::pure_store::PureStore;

const MAX_BATCH_PLANS: usize = 256;

const RESERVATION_TTL: Duration = Duration::from_secs(10);

const SUBJECTS: u128 = 5;

#[derive(Clone, Debug)]
pub struct BatchHistory {
    gates: Vec<GateSpec>,
    plans: Vec<PlanSpec>,
    rounds: Vec<Round>,
}

/// A limit, and the limit that a change of its rule makes of it: the same key, other amounts.
#[derive(Clone, Copy, Debug)]
struct GateSpec {
    limit: Limit,
    changed: Limit,
    role: Role,
}

/// A plan that batches contain, often several times.
#[derive(Clone, Debug)]
struct PlanSpec {
    /// Gate and subject of each check. Those that occur twice count once.
    checks: Vec<(usize, u128)>,
    cost: Cost,
    mode: PlanMode,
    max_units: u64,
    max_delay: Option<u64>,
    peek: bool,
    changed: bool,
    /// The number of the owner of a reservation, and whether only rules that count tokens hold the cost.
    reservation: Option<(u64, bool)>,
}

/// A move of the clock, then a batch of these plans.
#[derive(Clone, Debug)]
struct Round {
    time: TimeMove,
    batch: Vec<usize>,
}

/// Histories with batches of 1 to 256 plans.
pub fn batch_histories() -> BoxedStrategy<BatchHistory> {
    let limit = prop_oneof![4 => history::any_limit(), 1 => history::penalty()];
    let gate = (limit, any::<u64>(), history::role()).prop_map(|(limit, amount, role)| GateSpec {
        limit,
        changed: with_amount(&limit, amount),
        role,
    });
    // In half of the histories all checks are enforced, and most plans share the keys of the first subject.
    let gates = (prop::collection::vec(gate, 1..5), any::<bool>()).prop_map(|(mut gates, all_enforced)| {
        gates.iter_mut().filter(|_| all_enforced).for_each(|gate| gate.role = Role::Enforced);
        // A penalty belongs to the rule of the limit before it.
        for index in 1..gates.len() {
            if let Limit::Penalty(_) = gates[index].limit {
                gates[index].role = gates[index - 1].role;
            }
        }
        gates
    });
    let subject = prop_oneof![1 => Just(0), 1 => 0..SUBJECTS];
    let units = prop_oneof![12 => Just(1), 1 => 1..10u64, 1 => any::<u64>()];
    let checks = prop_oneof![3 => 1..2usize, 2 => 2..5usize]
        .prop_flat_map(move |checks| prop::collection::vec((any::<usize>(), subject.clone()), checks));
    let reservation = prop_oneof![4 => Just(None), 1 => (1..9u64, any::<bool>()).prop_map(Some)];
    let flags = (prop::bool::weighted(0.1), prop::bool::weighted(0.1), reservation);
    let plan = (checks, history::cost(), history::mode(8), units, history::max_delay(), flags).prop_map(
        |(checks, cost, mode, max_units, max_delay, (peek, changed, reservation))| PlanSpec {
            checks,
            cost,
            mode,
            max_units,
            max_delay,
            peek,
            changed,
            reservation,
        },
    );
    // In half of the histories every reservation is followed by a plain plan on the same keys, often in several equal copies.
    let plans = (prop::collection::vec(plan, 1..12), any::<bool>()).prop_map(|(plans, with_plain)| {
        let with_plain_twin = |plan: PlanSpec| {
            let plain = plan.reservation.filter(|_| with_plain).map(|_| plan.without_options());
            std::iter::once(plan).chain(plain)
        };
        plans.into_iter().flat_map(with_plain_twin).collect::<Vec<PlanSpec>>()
    });
    let size = prop_oneof![2 => 1..3usize, 6 => 2..16usize, 1 => 16..=MAX_BATCH_PLANS];
    let copies = prop_oneof![3 => Just(1), 1 => 2..5usize];
    let round = (history::time_move(), size)
        .prop_flat_map(move |(time, size)| {
            (Just(time), prop::collection::vec((any::<usize>(), copies.clone()), size), Just(size))
        })
        .prop_map(|(time, plans, size)| {
            let batch = plans.into_iter().flat_map(|(plan, copies)| std::iter::repeat_n(plan, copies));
            Round { time, batch: batch.take(size).collect() }
        });
    (gates, plans, prop::collection::vec(round, 1..12))
        .prop_map(|(gates, plans, rounds)| BatchHistory { gates, plans, rounds })
        .boxed()
}

fn with_amount(limit: &Limit, amount: u64) -> Limit {
    let changed = match limit {
        Limit::TokenBucket(bucket) => Limit::token_bucket(amount % 200, bucket.refill()),
        Limit::LeakyBucket(leaky) => Limit::leaky_bucket(leaky.bucket().refill(), amount % 200),
        Limit::FixedWindow(window) => Limit::fixed_window(amount % MAX_AMOUNT, window.window()),
        Limit::SlidingLog(log) => Limit::sliding_log(amount % MAX_LOG_LIMIT, log.window()),
        Limit::Concurrency(leases) => Limit::concurrency(amount % 200, leases.lease()),
        Limit::SlidingWindow(window) => Limit::sliding_window(amount % MAX_AMOUNT, window.window(), window.slices()),
        Limit::Quota(_) => Ok(history::changed_quota(limit, amount)),
        Limit::Penalty(penalty) => {
            let (factor, block) = (penalty.factor(), penalty.block());
            return Penalty::new(1 + amount % 5, block, factor, penalty.max()).map_or(*limit, Limit::Penalty);
        }
        _ => Ok(*limit),
    };
    changed.unwrap_or(*limit)
}

impl BatchHistory {
    pub fn decisions(&self) -> u64 {
        self.rounds.iter().map(|round| round.batch.len() as u64).sum()
    }

    /// Replays the history; with bounds, for anonymous subjects. The first store decides every batch by one call, the other every plan
    /// by a call of its own, in another namespace. The error describes the first plan whose verdict in the batch differs.
    pub async fn agree(
        &self,
        clock: &ManualClock,
        stores: &[RedisStore; 2],
        anonymous: Option<AnonymousBounds>,
    ) -> Result<(), String> {
        let [in_batches, alone] = stores;
        let hash = history::next_hash();
        let gates = |is_changed: bool| -> Vec<Gate> {
            let gate = |(index, spec): (usize, &GateSpec)| spec.gate(index, is_changed, anonymous);
            self.gates.iter().enumerate().map(gate).collect()
        };
        let (gates, changed_gates) = (gates(false), gates(true));
        let plan_of = |which: usize| {
            let spec = &self.plans[which % self.plans.len()];
            spec.plan(if spec.changed { &changed_gates } else { &gates }, hash, anonymous)
        };
        let (rust, model) = (PureStore::new(clock.clone()), ModelStore::new(clock.clone()));
        // The model knows no changes of limits.
        let has_model = !self.plans.iter().any(|plan| plan.changed);
        let mut last_retry = None;
        clock.set(Timestamp::from_micros(START));
        for (number, round) in self.rounds.iter().enumerate() {
            let now = round.time.from(clock.now().as_micros(), &self.gates[0].limit, last_retry);
            clock.set(Timestamp::from_micros(now.clamp(START / 2, Timestamp::MAX.as_micros())));
            let plans: Vec<Plan<'_>> = round.batch.iter().map(|which| plan_of(*which)).collect();
            let (order, verdicts) = in_batches.decide_batch(&plans).await;
            for index in order {
                let (plan, verdict) = (&plans[index], verdicts[index].as_ref().unwrap());
                let differs = |other: &Verdict, by: &str| {
                    let place = format!("round {number}, plan {index} of {}, at {:?}", plans.len(), clock.now());
                    (verdict != other)
                        .then(|| format!("{place}: {plan:#?}\nin the batch:\n{verdict:#?}\n{by}:\n{other:#?}"))
                };
                let single = alone.decide(plan).await.unwrap();
                let problem = differs(&single, "alone")
                    .or(differs(&rust.decide(plan).await.unwrap(), "in Rust"))
                    .or(if has_model { differs(&model.decide(plan).await.unwrap(), "by the model") } else { None });
                if let Some(problem) = problem {
                    return Err(problem);
                }
                last_retry = history::longest_retry(verdict).or(last_retry);
            }
            // How many are live is an estimate: the server's clock, which expires keys, is not that of the history.
            let created = stores.each_ref().map(|store| {
                let stats = store.anonymous_stats().into_iter();
                stats.map(|rule| (rule.rule, rule.created)).collect::<Vec<_>>()
            });
            if created[0] != created[1] {
                return Err(format!("round {number}: keys created in the batch and alone: {created:?}"));
            }
        }
        Ok(())
    }
}

impl GateSpec {
    fn gate(&self, index: usize, is_changed: bool, anonymous: Option<AnonymousBounds>) -> Gate {
        let limit = if is_changed { self.changed } else { self.limit };
        let rule = match limit {
            // Of the limit before it, or of a rule of its own.
            Limit::Penalty(_) => index.checked_sub(1).map_or("r".into(), |before| format!("r{before}")),
            _ => format!("r{index}"),
        };
        let stem = KeyStem::for_rule(&rule, &self.limit, "");
        let mut rule = Rule::new(rule, limit).with_per(["subject"]);
        rule.usage = index.is_multiple_of(2).then_some(UsageKind::Total);
        rule.anonymous = anonymous;
        Gate::new(rule, "", limit).with_role(self.role).with_stem(stem)
    }
}

impl PlanSpec {
    /// A plan of one unit on the same keys that reserves nothing.
    fn without_options(&self) -> Self {
        let checks = self.checks.clone();
        let (mode, max_units, max_delay) = (PlanMode::AllOrNothing, 1, None);
        Self { checks, mode, max_units, max_delay, peek: false, reservation: None, ..*self }
    }

    fn plan<'g>(&self, gates: &'g [Gate], history: u128, anonymous: Option<AnonymousBounds>) -> Plan<'g> {
        let mut checks: Vec<(usize, u128)> = Vec::new();
        for (gate, subject) in &self.checks {
            if !checks.contains(&(gate % gates.len(), *subject)) {
                checks.push((gate % gates.len(), *subject));
            }
        }
        let checks = checks.into_iter().map(|(gate, subject)| {
            let gate = &gates[gate];
            let check = Check::new(gate, Subject::from_hash(history ^ subject), self.cost.of(gate));
            check.with_anonymous(anonymous.is_some())
        });
        let plan = Plan::new(checks).unwrap().with_mode(self.mode).with_max_units(self.max_units);
        let plan = self.max_delay.map_or(plan.clone(), |delay| plan.with_max_delay(Duration::from_micros(delay)));
        let reservation = self.reservation.and_then(|(owner, only)| Some((LeaseOwner::from_number(owner)?, only)));
        let plan = match reservation {
            Some((owner, usage_only)) => {
                let terms = ReservationTerms::new(owner, RESERVATION_TTL, true);
                plan.with_reservation(if usage_only { terms.with_usage_only() } else { terms })
            }
            None => plan,
        };
        if self.peek { plan.with_peek() } else { plan }
    }
}
