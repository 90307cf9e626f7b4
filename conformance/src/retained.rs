//! `RetainedTakes`: what a limit has admitted and not got back, and the theorem of each limit about it, checked naively.

use tidegate::{Limit, Timestamp};

#[derive(Clone, Debug, Default)]
pub struct RetainedTakes(Vec<RetainedTake>);

#[derive(Clone, Copy, Debug)]
struct RetainedTake {
    /// When it was admitted, in microseconds.
    at: u64,
    /// How long it must wait for its slot, in microseconds.
    delay: u64,
    /// The cost that was admitted and not given back.
    cost: u64,
}

impl RetainedTakes {
    /// Records an admitted take. Returns its number.
    pub fn add(&mut self, at: u64, delay: u64, cost: u64) -> usize {
        self.0.push(RetainedTake { at, delay, cost });
        self.0.len() - 1
    }

    /// Records that all of a take but `actual` is given back, whatever the limit makes of it.
    pub fn give_back(&mut self, number: usize, actual: u64) {
        self.0[number].cost = self.0[number].cost.min(actual);
    }

    /// Whether the theorem of `limit` holds for every interval that ends with a take. The error describes the first interval in
    /// which it does not.
    pub fn check(&self, limit: &Limit) -> Result<(), String> {
        let takes: Vec<RetainedTake> = self.0.iter().copied().filter(|take| take.cost > 0).collect();
        let within = |first: u64, last: u64| -> u128 {
            takes.iter().filter(|take| first <= take.at && take.at <= last).map(|take| u128::from(take.cost)).sum()
        };
        let too_many = |first: u64, last: u64, most: u128| {
            let units = within(first, last);
            (units > most).then(|| format!("{units} units from {first} to {last}, not {most}: {limit:?}\n{takes:#?}"))
        };
        let problem = match limit {
            Limit::TokenBucket(bucket) => takes.iter().find_map(|last| {
                let (amount, period) = (u128::from(bucket.refill().amount()), bucket.refill().period().as_micros());
                takes.iter().filter(|first| first.at <= last.at).find_map(|first| {
                    let refilled = u128::from(last.at - first.at) * amount / period;
                    too_many(first.at, last.at, u128::from(bucket.capacity()) + refilled)
                })
            }),
            Limit::LeakyBucket(bucket) => {
                let (amount, period) = (u128::from(bucket.drain().amount()), bucket.drain().period().as_micros());
                let mut slots: Vec<(u64, u64)> = takes.iter().map(|take| (take.at + take.delay, take.cost)).collect();
                slots.sort_unstable();
                // A delay is rounded up to a whole microsecond.
                let is_close = |pair: &&[(u64, u64)]| {
                    u128::from(pair[1].0 + 1 - pair[0].0) * amount < u128::from(pair[0].1) * period
                };
                slots.windows(2).find(is_close).map(|pair| format!("{pair:?} are too close: {limit:?}\n{takes:#?}"))
            }
            Limit::FixedWindow(window) => {
                let length = window.window().duration().unwrap_or_default().as_micros() as u64;
                let most = u128::from(window.limit());
                takes.iter().find_map(|take| {
                    let start = take.at / length * length;
                    too_many(start, start + length - 1, most)
                })
            }
            Limit::SlidingLog(log) => {
                let (window, most) = (log.window().as_micros() as u64, u128::from(log.limit()));
                takes.iter().find_map(|last| too_many(last.at - window + 1, last.at, most))
            }
            Limit::SlidingWindow(sliding) => {
                let exact = (sliding.window().as_micros() - sliding.slice().as_micros()) as u64;
                takes.iter().find_map(|last| too_many(last.at - exact + 1, last.at, u128::from(sliding.limit())))
            }
            Limit::Quota(quota) => takes.iter().find_map(|take| {
                let bounds = quota.periods().bounds_at(Timestamp::from_micros(take.at));
                too_many(bounds.starts[1], bounds.starts[2] - 1, u128::from(quota.hard_limit()))
            }),
            // Without renewals, a slot that is not released is held for the lease.
            Limit::Concurrency(slots) => {
                let (lease, most) = (slots.lease().as_micros() as u64, u128::from(slots.max()));
                takes.iter().find_map(|last| too_many(last.at - lease + 1, last.at, most))
            }
            _ => Some("no theorem".to_owned()),
        };
        problem.map_or(Ok(()), Err)
    }
}
