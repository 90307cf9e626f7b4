//! Denials are recorded as scripts reply with them, on a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use tidegate::rules::AnonymousBounds;
use tidegate::spi::{Check, Gate, KnownDenial, LeaseOwner, Plan, PlanMode, ReservationTerms, Role, Subject};
use tidegate::{Limit, ManualClock, Rate, Rule, Timestamp};

use super::{DenialCache, DenialTicket, MAX_ENTRIES, MAX_ENTRY_AGE};
use crate::reply::{PlanReply, Repeat};

/// Noon of a day in September 2026: the start of an hour.
const NOON: u64 = 1_789_473_600_000_000;
const HOUR: Duration = Duration::from_secs(3600);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A cache on a clock that the test moves, and the same clock as the server's.
struct Fixture {
    cache: Arc<DenialCache>,
    clock: ManualClock,
}

/// The reply of the script to a plan.
struct ScriptReply<'s> {
    decided_at: u64,
    granted: i64,
    states: &'s [String],
    /// For each check of an anonymous subject, how long its state is kept.
    marks: &'s [i64],
}

impl ScriptReply<'_> {
    const fn denial_at(decided_at: u64) -> Self {
        Self { decided_at, granted: 0, states: &[], marks: &[] }
    }
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::starting_at(Timestamp::from_micros(NOON));
        Self { cache: Arc::new(DenialCache::new(Some(Arc::new(clock.clone())))), clock }
    }

    fn now(&self) -> u64 {
        use tidegate::Clock;
        self.clock.now().as_micros()
    }

    /// Records the denial of all checks of `plan`, found in these states.
    fn deny(&self, plan: &Plan<'_>, states: &[String]) {
        let ticket = self.cache.ticket(plan);
        self.arrive(plan, states, ticket);
    }

    /// Records a denial, decided now, of a plan with this ticket.
    fn arrive(&self, plan: &Plan<'_>, states: &[String], ticket: DenialTicket) {
        self.record(plan, ticket, &ScriptReply { states, ..ScriptReply::denial_at(self.now()) });
    }

    fn record(&self, plan: &Plan<'_>, ticket: DenialTicket, reply: &ScriptReply<'_>) {
        let ScriptReply { decided_at, granted, states, marks } = *reply;
        // The text of `decide_batch.lua`.
        let mut text = if plan.max_units() > 1 { format!("g{granted}") } else { String::new() };
        for (index, state) in states.iter().enumerate() {
            let mark = marks.get(index).copied();
            let letter = if mark == Some(-1) { "s" } else { "a" };
            text += &if granted > 0 { letter.to_owned() } else { letter.to_uppercase() };
            text += state;
            text += &mark.filter(|mark| *mark >= 0).map_or(String::new(), |millis| format!("m{millis}"));
        }
        let reply = PlanReply::new(Timestamp::from_micros(decided_at), Repeat { index: 0, count: 1 }, text.as_bytes());
        let reply = reply.into_reply(plan).unwrap();
        self.cache.record(plan, &reply, &reply.verdict(plan), ticket);
    }

    fn known(&self, plan: &Plan<'_>) -> Option<KnownDenial> {
        self.cache.known_denial(plan)
    }

    fn retry(&self, plan: &Plan<'_>) -> Option<Duration> {
        self.known(plan)?.verdict.outcome.retry_after
    }
}

/// A token bucket of 10 that refills one token in 10 ms.
fn quick_bucket() -> Gate {
    Gate::for_rule("api", Limit::token_bucket(10, Rate::per_second(100).unwrap()).unwrap())
}

/// The state of that bucket with this many tokens missing.
fn missing(tokens: u64) -> String {
    format!("{:016}", NOON + tokens * 10_000)
}

fn hourly(rule: &str, amount: u64) -> Gate {
    hourly_with(|rule| rule, rule, amount)
}

fn hourly_with(settings: impl Fn(Rule) -> Rule, rule: &str, amount: u64) -> Gate {
    let limit = Limit::fixed_window(amount, HOUR).unwrap();
    Gate::new(settings(Rule::new(rule, limit).with_per(["subject"])), "", limit)
}

/// The state of a window of an hour with this many units counted.
fn counted(units: u64) -> String {
    format!("{units}{:010}", NOON / 3_600_000_000)
}

fn check(gate: &Gate, cost: u64) -> Check<'_> {
    Check::new(gate, Subject::from_hash(7), cost)
}

fn plan(gate: &Gate, cost: u64) -> Plan<'_> {
    Plan::new([check(gate, cost)]).unwrap()
}

#[test]
fn an_exhausted_subject_is_denied_for_a_second_after_the_call_was_sent() {
    let (fixture, gate) = (Fixture::new(), hourly("api", 5));
    let plan = plan(&gate, 1);
    let ticket = fixture.cache.ticket(&plan);
    fixture.clock.advance(100 * MILLISECOND);
    assert_eq!(fixture.known(&plan), None);
    fixture.arrive(&plan, &[counted(5)], ticket);
    let known = fixture.known(&plan).unwrap();
    assert_eq!((known.check, known.verdict.outcome.remaining, known.verdict.consumed), (0, 0, false));
    fixture.clock.advance(899 * MILLISECOND);
    assert!(fixture.known(&plan).is_some());
    fixture.clock.advance(MILLISECOND);
    assert_eq!(fixture.known(&plan), None);
    assert_eq!(fixture.cache.entries(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_an_injected_clock_the_second_passes_on_the_clock_of_the_runtime() {
    let cache = Arc::new(DenialCache::new(None));
    let (fixture, gate) = (Fixture { cache, clock: Fixture::new().clock }, hourly("api", 5));
    let plan = plan(&gate, 1);
    fixture.deny(&plan, &[counted(5)]);
    tokio::time::advance(999 * MILLISECOND).await;
    let known = fixture.known(&plan).unwrap();
    assert_eq!(known.decided_at.as_micros(), NOON + 999_000);
    assert_eq!(known.verdict.outcome.retry_after, Some(Duration::from_millis(3_599_001)));
    tokio::time::advance(MILLISECOND).await;
    assert_eq!(fixture.known(&plan), None);
}

#[test]
fn nobody_is_denied_longer_than_the_limit_says() {
    let (fixture, gate) = (Fixture::new(), quick_bucket());
    let plan = plan(&gate, 1);
    fixture.deny(&plan, &[missing(10)]);
    fixture.clock.advance(9 * MILLISECOND);
    assert_eq!(fixture.retry(&plan), Some(MILLISECOND));
    fixture.clock.advance(MILLISECOND);
    assert_eq!(fixture.known(&plan), None);
}

#[test]
fn a_cheaper_request_that_passes_reaches_the_store_and_a_dearer_one_gets_its_own_retry() {
    let (fixture, gate) = (Fixture::new(), quick_bucket());
    fixture.deny(&plan(&gate, 5), &[missing(7)]);
    let retries = [1, 3, 4, 5, 8, 10, 11]
        .map(|cost| (cost, fixture.known(&plan(&gate, cost)).map(|known| known.verdict.outcome.retry_after)));
    let tokens = |tokens: u32| Some(Some(tokens * 10 * MILLISECOND));
    let expected =
        [(1, None), (3, None), (4, tokens(1)), (5, tokens(2)), (8, tokens(5)), (10, tokens(7)), (11, Some(None))];
    assert_eq!(retries, expected);
}

#[test]
fn a_request_without_a_cost_is_never_denied() {
    let (fixture, gate) = (Fixture::new(), hourly("api", 5));
    fixture.deny(&plan(&gate, 1), &[counted(5)]);
    assert_eq!(fixture.known(&plan(&gate, 0)), None);
}

#[test]
fn a_request_for_several_units_is_denied_if_there_is_no_room_for_one() {
    let (fixture, gate) = (Fixture::new(), quick_bucket());
    let plan = |cost| plan(&gate, cost).with_max_units(100);
    fixture.deny(&plan(2), &[missing(9)]);
    assert_eq!(fixture.retry(&plan(2)), Some(10 * MILLISECOND));
    assert_eq!(fixture.known(&plan(1)), None);
}

#[test]
fn a_permanent_denial_is_known_for_a_second() {
    let (fixture, gate) = (Fixture::new(), hourly("api", 5));
    fixture.deny(&plan(&gate, 6), &[String::new()]);
    fixture.clock.advance(999 * MILLISECOND);
    assert!(fixture.known(&plan(&gate, 6)).unwrap().verdict.outcome.is_permanent());
    assert_eq!(fixture.known(&plan(&gate, 5)), None);
    fixture.clock.advance(MILLISECOND);
    assert_eq!(fixture.known(&plan(&gate, 6)), None);
}

#[test]
fn the_longest_delay_of_the_request_counts() {
    let limit = Limit::leaky_bucket(Rate::per_second(100).unwrap(), 9).unwrap();
    let (fixture, gate) = (Fixture::new(), Gate::for_rule("api", limit));
    let plan = |delay| plan(&gate, 1).with_max_delay(delay);
    fixture.deny(&plan(Duration::ZERO), &[missing(5)]);
    assert_eq!(fixture.retry(&plan(Duration::ZERO)), Some(50 * MILLISECOND));
    assert_eq!(fixture.retry(&plan(49 * MILLISECOND)), Some(MILLISECOND));
    assert_eq!(fixture.known(&plan(50 * MILLISECOND)), None);
}

#[test]
fn changed_amounts_ask_the_store() {
    let fixture = Fixture::new();
    fixture.deny(&plan(&hourly("api", 5), 1), &[counted(5)]);
    assert_eq!(fixture.known(&plan(&hourly("api", 6), 1)), None);
    assert_eq!(fixture.known(&plan(&hourly("api", 4), 1)), None);
    assert!(fixture.known(&plan(&hourly("api", 5), 1)).is_some());
}

#[test]
fn a_check_that_denied_denies_every_plan_it_is_part_of() {
    let fixture = Fixture::new();
    let (tenant, client) = (hourly("tenant", 5), quick_bucket());
    fixture.deny(&plan(&tenant, 1), &[counted(5)]);
    let both = Plan::new([check(&client, 1), check(&tenant, 1)]).unwrap();
    assert_eq!(fixture.known(&both).map(|known| known.check), Some(1));
    assert_eq!(fixture.known(&plan(&client, 1)), None);
    // Of two, the one with the longer retry.
    fixture.deny(&plan(&client, 1), &[missing(10)]);
    assert_eq!(fixture.known(&both).map(|known| known.check), Some(1));
}

#[test]
fn only_enforced_checks_that_denied_by_themselves_are_cached() {
    let enforced = hourly("api", 5);
    let with_role = |role| enforced.clone().with_role(role);
    for role in [Role::Shadow, Role::AnyOf(0)] {
        let (fixture, other) = (Fixture::new(), with_role(role));
        fixture.deny(&plan(&other, 1), &[counted(5)]);
        assert_eq!(fixture.known(&plan(&enforced, 1)), None, "{role:?} is not cached");
        fixture.deny(&plan(&enforced, 1), &[counted(5)]);
        assert_eq!(fixture.known(&plan(&other, 1)), None, "{role:?} is not answered");
        assert!(fixture.known(&plan(&enforced, 1)).is_some());
    }
    let fixture = Fixture::new();
    let (peek, count_each) = (plan(&enforced, 1).with_peek(), plan(&enforced, 1).with_mode(PlanMode::CountEach));
    for other in [&peek, &count_each] {
        fixture.deny(other, &[counted(5)]);
    }
    assert_eq!(fixture.known(&plan(&enforced, 1)), None);
    fixture.deny(&plan(&enforced, 1), &[counted(5)]);
    assert_eq!((fixture.known(&peek), fixture.known(&count_each)), (None, None));
}

/// Every request of the gateway under a rule with tokens is a reservation without a key.
#[test]
fn a_reservation_is_denied_like_any_request_unless_it_may_find_its_hold() {
    let (fixture, gate) = (Fixture::new(), hourly("tokens", 5));
    let reserve = |keyed: bool| {
        let terms = ReservationTerms::new(LeaseOwner::from_number(9).unwrap(), HOUR, keyed);
        plan(&gate, 1).with_reservation(terms)
    };
    fixture.deny(&reserve(true), &[counted(5)]);
    let beside_holds = format!("{}h3,{},1", counted(5), NOON + 1_000_000);
    fixture.deny(&reserve(false), &[beside_holds]);
    assert_eq!(fixture.known(&plan(&gate, 1)), None, "neither is cached");
    fixture.deny(&reserve(false), &[counted(5)]);
    assert!(fixture.known(&reserve(false)).is_some() && fixture.known(&plan(&gate, 1)).is_some());
    assert_eq!(fixture.known(&reserve(true)), None);
}

#[test]
fn a_rule_can_turn_the_cache_off() {
    let (fixture, gate) = (Fixture::new(), hourly("api", 5));
    let off = hourly_with(|rule| rule.with_denial_cache(false), "api", 5);
    fixture.deny(&plan(&off, 1), &[counted(5)]);
    assert_eq!(fixture.known(&plan(&gate, 1)), None);
    fixture.deny(&plan(&gate, 1), &[counted(5)]);
    assert_eq!(fixture.known(&plan(&off, 1)), None);
}

#[test]
fn denials_of_overflow_buckets_and_of_states_about_to_be_forgotten_are_not_cached() {
    let bounds = AnonymousBounds::new(10).with_forget_after(HOUR);
    let (fixture, gate) = (Fixture::new(), hourly_with(|rule| rule.with_anonymous(bounds), "api", 5));
    let plan = Plan::new([check(&gate, 1).with_anonymous(true)]).unwrap();
    let ticket = fixture.cache.ticket(&plan);
    let record = |mark| {
        let reply = ScriptReply { states: &[counted(5)], marks: &[mark], ..ScriptReply::denial_at(NOON) };
        fixture.record(&plan, ticket, &reply);
    };
    for mark in [-1, 0] {
        record(mark);
        assert_eq!(fixture.known(&plan), None, "{mark}");
    }
    record(20);
    fixture.clock.advance(19 * MILLISECOND);
    assert!(fixture.known(&plan).is_some());
    fixture.clock.advance(MILLISECOND);
    assert_eq!(fixture.known(&plan), None, "the store has forgotten the subject");
}

#[test]
fn a_log_is_known_only_for_the_denied_cost_because_its_summary_has_no_other_retry() {
    let limit = Limit::sliding_log(5, Duration::from_secs(10)).unwrap();
    let (fixture, gate) = (Fixture::new(), Gate::for_rule("api", limit));
    let summary = |blocker: u64| format!("5,{},{blocker}", NOON - 1_000_000);
    fixture.deny(&plan(&gate, 2), &[summary(NOON - 5_000_000)]);
    assert_eq!(fixture.retry(&plan(&gate, 2)), Some(Duration::from_secs(5)));
    assert_eq!((fixture.known(&plan(&gate, 1)), fixture.known(&plan(&gate, 3))), (None, None));
    fixture.deny(&plan(&gate, 1), &[summary(NOON - 6_000_000)]);
    fixture.deny(&plan(&gate, 2), &[summary(NOON - 5_000_000)]);
    assert_eq!(fixture.retry(&plan(&gate, 1)), Some(Duration::from_secs(4)), "the smallest cost is kept");
}

#[test]
fn a_refund_drops_the_denial_also_one_that_is_still_on_its_way() {
    let (fixture, gate) = (Fixture::new(), hourly("api", 5));
    let plan = plan(&gate, 1);
    let key = *plan.checks()[0].key();
    let exhausted = [counted(5)];
    fixture.deny(&plan, &exhausted);
    let before = fixture.cache.ticket(&plan);
    let change = fixture.cache.begin_change([&key]);
    assert_eq!(fixture.known(&plan), None, "dropped at once");
    let during = fixture.cache.ticket(&plan);
    fixture.arrive(&plan, &exhausted, before);
    assert_eq!(fixture.known(&plan), None, "sent before the refund, arrived during it");
    fixture.arrive(&plan, &exhausted, during);
    drop(change);
    assert_eq!(fixture.known(&plan), None, "sent and arrived during the refund");
    fixture.arrive(&plan, &exhausted, before);
    fixture.arrive(&plan, &exhausted, during);
    assert_eq!(fixture.known(&plan), None, "sent before the reply to the refund, arrived after it");
    fixture.deny(&plan, &exhausted);
    assert!(fixture.known(&plan).is_some(), "sent after the refund");
    drop(fixture.cache.begin_change_of_all());
    assert_eq!(fixture.known(&plan), None, "everything was deleted");
    assert_eq!(fixture.cache.entries(), 0);
}

#[test]
fn a_refund_of_another_subject_drops_nothing() {
    let (fixture, gate) = (Fixture::new(), hourly("api", 5));
    let other = Check::new(&gate, Subject::from_hash(8), 1);
    fixture.deny(&plan(&gate, 1), &[counted(5)]);
    drop(fixture.cache.begin_change([other.key()]));
    assert!(fixture.known(&plan(&gate, 1)).is_some());
}

/// Otherwise a dearer request would get the retry of a fuller bucket.
#[test]
fn what_this_instance_consumes_drops_the_denial_of_a_dearer_request() {
    let (fixture, gate) = (Fixture::new(), quick_bucket());
    fixture.deny(&plan(&gate, 5), &[missing(7)]);
    let cheap = plan(&gate, 1);
    let reply = ScriptReply { granted: 1, states: &[missing(7)], ..ScriptReply::denial_at(NOON) };
    fixture.record(&cheap, fixture.cache.ticket(&cheap), &reply);
    assert_eq!(fixture.known(&plan(&gate, 5)), None);
}

#[test]
fn an_older_denial_that_arrives_late_does_not_replace_a_newer_one() {
    let (fixture, gate) = (Fixture::new(), quick_bucket());
    let plan = plan(&gate, 1);
    let ticket = fixture.cache.ticket(&plan);
    fixture.clock.advance(5 * MILLISECOND);
    fixture.deny(&plan, &[format!("{:016}", NOON + 105_000)]);
    let late = ScriptReply { states: &[missing(10)], ..ScriptReply::denial_at(NOON) };
    fixture.record(&plan, ticket, &late);
    assert_eq!(fixture.retry(&plan), Some(10 * MILLISECOND));
}

/// A clock that was set back leaves a state far ahead, which the denial moves back and writes.
#[test]
fn a_state_that_the_denial_rebased_recovers_as_in_the_store() {
    let (fixture, gate) = (Fixture::new(), quick_bucket());
    let plan = plan(&gate, 1);
    fixture.deny(&plan, &[missing(1_000_000)]);
    assert_eq!(fixture.retry(&plan), Some(10 * MILLISECOND));
    fixture.clock.advance(4 * MILLISECOND);
    assert_eq!(fixture.retry(&plan), Some(6 * MILLISECOND));
}

#[test]
fn a_flood_of_exhausted_subjects_fills_a_bounded_cache() {
    let (fixture, gate) = (Fixture::new(), hourly("api", 5));
    let plan = |subject: usize| Plan::new([Check::new(&gate, Subject::from_hash(subject as u128), 1)]).unwrap();
    for subject in 0..2 * MAX_ENTRIES {
        fixture.deny(&plan(subject), &[counted(5)]);
        assert!(fixture.known(&plan(subject)).is_some(), "the newest is always kept");
    }
    let entries = fixture.cache.entries();
    assert!((MAX_ENTRIES * 9 / 10..=MAX_ENTRIES).contains(&entries), "{entries}");
    let known = (0..2 * MAX_ENTRIES).filter(|subject| fixture.known(&plan(*subject)).is_some()).count();
    assert_eq!(known, entries);
    fixture.clock.advance(MAX_ENTRY_AGE);
    assert_eq!(fixture.cache.entries(), 0);
}
