//! `Timeline`: what would happen if one request came again and again, in virtual time.

use std::time::Duration;

use tidegate::{Limiter, ManualClock, MemoryStore, Request, RuleSet, Timestamp};

/// The most requests that one moment of a timeline tries.
const MOST_TRIES: u64 = 100_000;

/// How many moments are shown.
const MOMENTS: usize = 4;

/// What would happen if one request came again and again: at first as fast as possible, and whenever there is room again.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The moments, from the first request on. Empty if no rule limits the request.
    pub moments: Vec<Moment>,
}

/// One moment.
#[derive(Clone, Debug)]
pub struct Moment {
    /// When, after the first request.
    pub at: Duration,
    /// How many requests pass then.
    pub allowed: u64,
    /// How long the last of them is held.
    pub longest_delay: Duration,
    /// What refuses the next one. None if more would pass than were tried.
    pub denied: Option<Denied>,
}

/// A refusal.
#[derive(Clone, Debug)]
pub struct Denied {
    /// The rule.
    pub rule: String,
    /// When the next one passes. None if it never does.
    pub retry_after: Option<Duration>,
    /// When everything is as at the beginning.
    pub reset_after: Duration,
}

pub(crate) fn timeline(rules: &RuleSet, request: &Request<'_>) -> Timeline {
    let start = Timestamp::from_micros(1_767_225_600_000_000); // a midnight, so that windows begin there
    let clock = ManualClock::at(start);
    let limiter = Limiter::new(rules.clone(), MemoryStore::new().clock(clock.clone()));
    let mut timeline = Timeline::default();
    if limiter.plan(request).checks().is_empty() || request.units() == 0 {
        return timeline;
    }
    let mut at = Duration::ZERO;
    while timeline.moments.len() < MOMENTS {
        clock.set(start.plus(at));
        let moment = Moment::of(&limiter, request, at);
        let next = moment.denied.as_ref().and_then(|denied| {
            // First the moment when there is room for one, in the end the one when there is room for all.
            let wait = if timeline.moments.len() + 2 >= MOMENTS { denied.reset_after } else { denied.retry_after? };
            denied.retry_after.map(|_| at + wait)
        });
        timeline.moments.push(moment);
        match next {
            Some(next) => at = next,
            None => break,
        }
    }
    timeline
}

impl Moment {
    fn of(limiter: &Limiter<MemoryStore>, request: &Request<'_>, at: Duration) -> Self {
        let mut moment = Self { at, allowed: 0, longest_delay: Duration::ZERO, denied: None };
        while moment.allowed < MOST_TRIES {
            let decision = limiter.check_now(request);
            if !decision.is_allowed() {
                moment.denied = Some(Denied {
                    rule: decision.rule().unwrap_or_default().to_owned(),
                    retry_after: decision.retry_after(),
                    reset_after: decision.reset_after().unwrap_or_default(),
                });
                break;
            }
            moment.longest_delay = moment.longest_delay.max(decision.delay());
            moment.allowed += 1;
        }
        moment
    }
}
