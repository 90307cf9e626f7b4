//! `Batch`: plans that one script call decides, one after the other. Every key and every limit is sent once.
//!
//! The script keeps the states until the last plan: each key is read once and written once, and each limit is unpacked once. Equal
//! plans of one unit are sent as one plan of up to n units. A batch is one of the serial orders in which its plans could have arrived, so
//! its results are those of single calls. A plan with an unreadable state fails alone.

mod arguments;
mod index_table;

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tidegate::spi::algorithm::lua;
use tidegate::{StoreError, Timestamp};

use crate::args::append_injected_now;
use crate::packed_plan::{LIMIT_HEADER_BYTES, PackedCheck, PackedPlan};
use crate::reply::{PlanReply, Repeat, STALE, malformed, split_reply};
use crate::scripts::{SCRIPTS, Script};
use arguments::BatchArguments;
use index_table::IndexTable;

/// Bounds of a batch: a server decides nothing else while it decides one.
pub(crate) const MAX_BATCH_PLANS: usize = 256;
/// The sum over all plans: a key that several plans share counts for each.
pub(crate) const MAX_BATCH_KEYS: usize = 512;
/// Likewise, of checks of sliding logs and of long lists of slots or holds. Equal plans count once, since they are decided as one.
pub(crate) const MAX_BATCH_LOG_CHECKS: usize = 16;

/// Plans that one script call decides.
#[derive(Debug)]
pub(crate) struct Batch {
    call: BatchCall,
    /// For each plan, the index of its result in the reply, and its place among the equal plans with the same result.
    results: Vec<(usize, u64)>,
    /// For each result, how many plans share it.
    repeats: Vec<u64>,
}

#[derive(Debug)]
enum BatchCall {
    /// A plan that a script for one check decides.
    SingleCheck(PackedPlan, PackedCheck),
    Plans(BatchArguments),
}

/// Which script decides a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchMode {
    Decide,
    /// For a server that has answered `OOM`: writes only keys that exist.
    OutOfMemory,
}

/// Counts plans, up to the bounds of a batch.
#[derive(Debug, Default)]
pub(crate) struct BatchSize {
    plans: usize,
    keys: usize,
    log_checks: usize,
    /// The [hashes](PackedPlan::repeat_hash) of plans whose log checks are counted.
    counted: SmallVec<[u64; MAX_BATCH_LOG_CHECKS]>,
}

impl Batch {
    /// A batch of these plans. Equal plans are decided together, at the place of the first one. A batch without plans only asks
    /// the server whether it answers.
    pub(crate) fn new<'p>(plans: impl IntoIterator<Item = &'p PackedPlan>) -> Self {
        let plans: SmallVec<[&PackedPlan; 32]> = plans.into_iter().collect();
        if let [plan] = plans[..]
            && let Some(check) = plan.single_check()
        {
            let call = BatchCall::SingleCheck(plan.clone(), *check);
            return Self { call, results: vec![(0, 0)], repeats: vec![1] };
        }
        let (mut results, mut distinct, mut repeats) = (Vec::with_capacity(plans.len()), Vec::new(), Vec::new());
        let mut table = IndexTable::with_capacity(plans.len());
        for plan in plans {
            let is_repeat = |index: usize| plan.is_repeat_of(distinct[index]);
            let next = distinct.len();
            let result = plan.repeat_hash().map_or(next, |hash| table.find_or_insert(hash, next, is_repeat));
            if result == next {
                distinct.push(plan);
                repeats.push(0);
            }
            results.push((result, repeats[result]));
            repeats[result] += 1;
        }
        let call = BatchCall::Plans(BatchArguments::pack(distinct.iter().copied().zip(repeats.iter().copied())));
        Self { call, results, repeats }
    }

    /// The command that decides the batch, and its script. `now` is the time that a test injects.
    pub(crate) fn command(&self, now: Option<Timestamp>, mode: BatchMode) -> (Cmd, &'static Script) {
        match &self.call {
            BatchCall::SingleCheck(plan, check) if mode == BatchMode::Decide => single_check_command(plan, check, now),
            BatchCall::SingleCheck(plan, _) => BatchArguments::pack([(plan, 1)].into_iter()).command(now, mode),
            BatchCall::Plans(arguments) => arguments.command(now, mode),
        }
    }

    /// The reply to each plan, in the order given to [`new`](Self::new). A plan without a reply may have been applied.
    pub(crate) fn parse(&self, reply: &Value) -> Vec<Result<PlanReply, StoreError>> {
        let parsed = split_reply(reply, self.repeats.len());
        let plan_reply = |(result, index): &(usize, u64)| {
            let (now, texts) = parsed.as_ref().ok()?;
            let repeat = Repeat { index: *index, count: self.repeats[*result] };
            if let [STALE] = texts[..] {
                return Some(PlanReply::new(*now, repeat, STALE));
            }
            Some(PlanReply::new(*now, repeat, texts.get(*result)?))
        };
        self.results.iter().map(|result| plan_reply(result).ok_or_else(malformed)).collect()
    }

    /// The indexes of the plans in the order in which the script decides them.
    pub(crate) fn decided_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.results.len()).collect();
        order.sort_by_key(|index| self.results[*index]);
        order
    }
}

impl BatchSize {
    /// Counts `plan`, if the batch has room for it. A batch without plans has room for any. `long_lists` is the number of its checks
    /// that may meet a [long list](crate::long_hold_lists::LongHoldLists) of holds.
    pub(crate) fn try_add(&mut self, plan: &PackedPlan, long_lists: usize) -> bool {
        let log_checks = plan.log_checks() + long_lists;
        let repeat = plan.repeat_hash().filter(|_| log_checks > 0);
        let is_counted = repeat.is_some_and(|hash| self.counted.contains(&hash));
        let (plans, keys) = (self.plans + 1, self.keys + plan.keys());
        let log_checks = self.log_checks + if is_counted { 0 } else { log_checks };
        let fits = plans <= MAX_BATCH_PLANS && keys <= MAX_BATCH_KEYS && log_checks <= MAX_BATCH_LOG_CHECKS;
        if !fits && self.plans > 0 {
            return false;
        }
        (self.plans, self.keys, self.log_checks) = (plans, keys, log_checks);
        self.counted.extend(repeat.filter(|_| !is_counted));
        true
    }

    /// The number of plans.
    pub(crate) const fn plans(&self) -> usize {
        self.plans
    }
}

/// A call of `decide_one.lua`.
fn single_check_command(plan: &PackedPlan, check: &PackedCheck, now: Option<Timestamp>) -> (Cmd, &'static Script) {
    let script = SCRIPTS.decide_one(check.algorithm);
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(script.hash()).arg(1 + usize::from(check.overflow.is_some())).arg(plan.part(&check.key));
    if let Some(overflow) = &check.overflow {
        cmd.arg(plan.part(overflow));
    }
    let (header, arguments) = plan.part(&check.limit).split_at(LIMIT_HEADER_BYTES);
    cmd.arg(&arguments[..8 * lua::FUNCTIONS[check.algorithm - 1].numbers]);
    if check.has_route() || now.is_some() {
        cmd.arg(if check.has_max_ttl { &header[16..] } else { &[] });
    }
    append_injected_now(&mut cmd, now);
    (cmd, script)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::long_hold_lists::LongHoldLists;
    use crate::packed_plan::LIMIT_BYTES;
    use crate::period_clock::PackTime;
    use crate::timer;
    use tidegate::limits::{Penalty, Period, Periods};
    use tidegate::spi::{Check, Gate, Plan, PlanMode, Role, Subject};
    use tidegate::{Limit, Rate, StoreErrorKind};

    fn gate(rule: &str, limit: Limit, role: Role) -> Gate {
        Gate::for_rule(rule, limit).with_role(role)
    }

    fn token_bucket() -> Limit {
        Limit::token_bucket(5, Rate::per_second(1).unwrap()).unwrap()
    }

    fn plan<'g>(gates: &[&'g Gate], subject: u128) -> Plan<'g> {
        Plan::new(gates.iter().map(|gate| Check::new(gate, Subject::from_hash(subject), 1))).unwrap()
    }

    fn pack(plan: &Plan<'_>) -> PackedPlan {
        PackedPlan::pack("tg", plan, &[], &PackTime::At(Timestamp::from_micros(1_800_000_000_000_000)))
    }

    fn arguments(batch: &Batch) -> Vec<Vec<u8>> {
        let (command, _) = batch.command(None, BatchMode::Decide);
        let bytes = |argument: redis::Arg<&[u8]>| {
            if let redis::Arg::Simple(bytes) = argument { bytes.to_vec() } else { Vec::new() }
        };
        command.args_iter().map(bytes).collect()
    }

    /// The characters of a reply, the frequent ones more often.
    const ALPHABET: &[u8] = b";;;;aaaAsSnNoOUupPgtmhhrek!~0123456789,,,";

    #[test]
    fn keys_limits_and_equal_plans_are_sent_once() {
        let (tenant, client) =
            (gate("tenant", token_bucket(), Role::Enforced), gate("client", token_bucket(), Role::Enforced));
        let plans: Vec<PackedPlan> = (0..60).map(|number| pack(&plan(&[&tenant, &client], number % 20))).collect();
        let batch = Batch::new(&plans);
        let arguments = arguments(&batch);
        // Command, hash and number of keys, the keys, the plans, the limits, the numbers.
        assert_eq!((arguments[2].as_slice(), arguments.len()), (&b"40"[..], 3 + 40 + 3));
        assert_eq!(arguments[44].len(), LIMIT_BYTES, "both rules have the same limit");
        assert_eq!(arguments[43].len(), 2 * (3 + 20 * (3 + 2 * 3)), "each plan once, with the number of its repeats");
        assert_eq!(batch.decided_order()[..4], [0, 20, 40, 1]);
    }

    #[test]
    fn only_equal_plans_that_cannot_affect_each_other_otherwise_are_decided_as_one() {
        let window = Duration::from_secs(60);
        let count = |plan: &dyn Fn(u128) -> PackedPlan| {
            let plans = [plan(1), plan(1), plan(2), plan(1)];
            Batch::new(&plans).repeats.len()
        };
        let one = |limit: Limit, role: Role| {
            let gate = gate("r", limit, role);
            count(&|subject| pack(&plan(&[&gate], subject)))
        };
        let sliding_window = Limit::sliding_window(5, window, 6).unwrap();
        let quota = Limit::quota(5, Periods::utc(Period::Month)).unwrap();
        for limit in [token_bucket(), Limit::fixed_window(5, window).unwrap(), sliding_window, quota] {
            assert_eq!(one(limit, Role::Enforced), 2);
            assert_eq!((one(limit, Role::Shadow), one(limit, Role::AnyOf(0))), (4, 4));
        }
        let leaky_bucket = Limit::leaky_bucket(Rate::per_second(1).unwrap(), 5).unwrap();
        // Each request has an owner of its own.
        let slots = Limit::concurrency(5, window).unwrap();
        for limit in [leaky_bucket, Limit::sliding_log(5, window).unwrap(), slots] {
            assert_eq!(one(limit, Role::Enforced), 4);
        }
        let gate = gate("r", token_bucket(), Role::Enforced);
        assert_eq!(count(&|subject| pack(&plan(&[&gate], subject).with_peek())), 4);
        assert_eq!(count(&|subject| pack(&plan(&[&gate], subject).with_max_units(2))), 4);
        assert_eq!(count(&|subject| pack(&plan(&[&gate], subject).with_mode(PlanMode::CountEach))), 4);
    }

    #[test]
    fn a_batch_is_bounded_in_plans_keys_and_sliding_logs() {
        let fill = |limit: Limit, checks: usize| {
            let gates: Vec<Gate> =
                (0..checks).map(|number| gate(&format!("r{number}"), limit, Role::Enforced)).collect();
            let plan = pack(&plan(&gates.iter().collect::<Vec<_>>(), 1));
            let mut size = BatchSize::default();
            while size.try_add(&plan, 0) {}
            size.plans()
        };
        let log = Limit::sliding_log(5, Duration::from_secs(60)).unwrap();
        assert_eq!((fill(token_bucket(), 1), fill(token_bucket(), 3), fill(token_bucket(), 32)), (256, 170, 16));
        assert_eq!((fill(log, 1), fill(log, 3), fill(log, 32)), (16, 5, 1), "a plan alone always has room");
        let slots = |max| Limit::concurrency(max, Duration::from_secs(60)).unwrap();
        assert_eq!((fill(slots(256), 1), fill(slots(257), 1)), (256, 16), "long lists of leases count as sliding logs");
    }

    /// Whoever holds them, and also takes that hold nothing.
    #[test]
    fn long_lists_of_holds_count_as_sliding_logs_until_they_have_ended() {
        const NOW: u64 = 1_800_000_000_000_000;
        let [tenant, client] = ["tenant", "client"].map(|rule| gate(rule, token_bucket(), Role::Enforced));
        let two_checks = |subject| {
            let checks =
                [Check::new(&tenant, Subject::from_hash(0), 1), Check::new(&client, Subject::from_hash(subject), 1)];
            pack(&Plan::new(checks).unwrap())
        };
        let equal = pack(&plan(&[&tenant], 0));
        let (mut lists, start) = (LongHoldLists::new(timer::now()), timer::now());
        let learn = |lists: &mut LongHoldLists, entries: u64, plan: &PackedPlan| {
            let text = format!("a1800000000000000h0,{},{entries}A", NOW + 60_000_000);
            let repeat = Repeat { index: 0, count: 1 };
            lists.record(plan, &PlanReply::new(Timestamp::from_micros(NOW), repeat, text.as_bytes()), start);
        };
        let fill = |lists: &LongHoldLists, plan: &dyn Fn(u128) -> PackedPlan, now| {
            let (mut size, mut number) = (BatchSize::default(), 0);
            while size.try_add(&plan(number), lists.checks_of(&plan(number), now)) {
                number += 1;
            }
            size.plans()
        };
        learn(&mut lists, 64, &two_checks(1));
        assert_eq!(fill(&lists, &two_checks, start), 256, "a short list");
        learn(&mut lists, 65, &two_checks(1));
        assert_eq!(fill(&lists, &two_checks, start), 16, "a long list of the first check");
        assert_eq!(fill(&lists, &|_| equal.clone(), start), 256, "equal plans are decided as one");
        assert_eq!(fill(&lists, &|subject| pack(&plan(&[&client], subject)), start), 256, "other keys");
        assert_eq!(fill(&lists, &two_checks, start + Duration::from_secs(62)), 256, "it has ended");
    }

    #[test]
    fn plans_without_a_result_are_possibly_applied() {
        let gate = gate("r", token_bucket(), Role::Enforced);
        let plans: Vec<Plan<'_>> = (0..3).map(|subject| plan(&[&gate], subject)).collect();
        let packed: Vec<PackedPlan> = plans.iter().map(pack).collect();
        let batch = Batch::new(&packed);
        let decode = |texts: &str| -> Vec<Option<u64>> {
            let bytes = [&1.8e15_f64.to_le_bytes()[..], texts.as_bytes()].concat();
            let replies = batch.parse(&Value::BulkString(bytes));
            assert_eq!(replies.len(), plans.len());
            let granted = |(reply, plan): (Result<PlanReply, StoreError>, &Plan<'_>)| match reply
                .and_then(|reply| reply.into_reply(plan))
            {
                Ok(reply) => Some(reply.verdict(plan).granted()),
                Err(error) => {
                    assert_eq!(error.is_possibly_applied(), error.kind() != StoreErrorKind::Unreadable, "{error}");
                    None
                }
            };
            replies.into_iter().zip(&plans).map(granted).collect()
        };
        assert_eq!(decode(";a;A;a1800000000000001"), [Some(1), Some(0), Some(1)]);
        assert_eq!(decode(";a;!1;a"), [Some(1), None, Some(1)]);
        assert_eq!(decode(";a;A"), [Some(1), Some(0), None]);
        assert_eq!(decode(";a;;a"), [Some(1), None, Some(1)]);
        assert_eq!(decode(";a;u;ab"), [Some(1), None, None]);
        assert_eq!(decode(";a;g1a;aa"), [Some(1), None, None]);
        for texts in [";a;a;a;a", "a;a;a", "", "x"] {
            assert_eq!(decode(texts), [None; 3], "{texts}");
        }
        for reply in [Value::Nil, Value::Okay, Value::Array(Vec::new()), Value::BulkString(b";a;a".to_vec())] {
            assert!(batch.parse(&reply).iter().all(Result::is_err), "{reply:?}");
        }
    }

    /// Whatever a server or a proxy answers: a result or an error for each plan, never a panic.
    #[test]
    fn any_reply_gives_one_result_for_each_plan() {
        let window = Duration::from_secs(60);
        let limits = [
            token_bucket(),
            Limit::leaky_bucket(Rate::per_second(1).unwrap(), 5).unwrap(),
            Limit::fixed_window(5, window).unwrap(),
            Limit::sliding_log(5, window).unwrap(),
            Limit::sliding_window(5, window, 6).unwrap(),
            Limit::concurrency(5, window).unwrap(),
            Limit::Penalty(Penalty::new(1, window, 2, window).unwrap()),
            Limit::quota(5, Periods::utc(Period::Day)).unwrap(),
        ];
        let gates = limits.map(|limit| gate("r", limit, Role::Enforced));
        let all: Vec<&Gate> = gates.iter().collect();
        let mut plans: Vec<Plan<'_>> = gates.iter().map(|gate| plan(&[gate], 1)).collect();
        plans.extend([plan(&all[..1], 1), plan(&all[..1], 1).with_max_units(9), plan(&all, 1), plan(&all[2..3], 1)]);
        let packed: Vec<PackedPlan> = plans.iter().map(pack).collect();
        let batch = Batch::new(&packed);
        let now = timer::now();
        bolero::check!().with_type::<(bool, Vec<u8>)>().for_each(|(is_plausible, bytes)| {
            let letter = |byte: &u8| ALPHABET[usize::from(*byte) % ALPHABET.len()];
            let bytes = match is_plausible {
                true => [1.8e15_f64.to_le_bytes().to_vec(), bytes.iter().map(letter).collect()].concat(),
                false => bytes.clone(),
            };
            let replies = batch.parse(&Value::BulkString(bytes));
            assert_eq!(replies.len(), plans.len());
            let mut lists = LongHoldLists::new(now);
            for ((reply, plan), packed) in replies.into_iter().zip(&plans).zip(&packed) {
                if let Ok(reply) = &reply {
                    lists.record(packed, reply, now);
                }
                if let Ok(reply) = reply.and_then(|reply| reply.into_reply(plan)) {
                    assert_eq!(reply.verdict(plan).checks().len(), plan.checks().len());
                }
            }
        });
    }
}
