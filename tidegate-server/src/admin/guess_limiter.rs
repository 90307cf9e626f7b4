//! `GuessLimiter`: limits wrong admin tokens for each address, with a limiter of our own.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tidegate::sync::Mutex;
use tidegate::{Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet};

/// Wrong tokens of one address at once, and then in a minute.
const MAX_GUESSES: u64 = 10;

/// Warnings about guesses in a minute, whatever the number of addresses.
const MAX_WARNINGS: u64 = 10;

/// Addresses that are counted apart; beyond, they share buckets.
const MAX_ADDRESSES: usize = 100_000;

/// Limits wrong tokens.
#[derive(Debug)]
pub(super) struct GuessLimiter {
    /// Locked from the look at the limit until the guess is counted, so that guesses at the same time cannot exceed it.
    limiter: Mutex<Limiter<MemoryStore>>,
}

impl GuessLimiter {
    /// A limiter that counts in `store`.
    pub(super) fn new(store: MemoryStore) -> Result<Self, Box<dyn std::error::Error>> {
        let per_minute = |amount| Limit::token_bucket(amount, Rate::per_minute(amount)?);
        let guesses = Rule::new("guess", per_minute(MAX_GUESSES)?).with_action("guess").with_per(["network"]);
        let warnings = Rule::new("warning", per_minute(MAX_WARNINGS)?).with_action("warn");
        let rules = RuleSet::new([guesses, warnings])?;
        Ok(Self { limiter: Mutex::new(Limiter::new(rules, store.with_max_keys(MAX_ADDRESSES))) })
    }

    /// The result of `guess`, which is counted if it is `None`. Returns the time to wait instead if `client` has guessed too often.
    pub(super) fn guess<T>(&self, client: IpAddr, guess: impl FnOnce() -> Option<T>) -> Result<Option<T>, Duration> {
        let network = network(client);
        let request = Request::new("guess").with_attribute("network", &network);
        let limiter = self.limiter.lock();
        let plan = limiter.plan(&request);
        if let Some(retry_after) = limiter.plans().check_now(&plan.clone().with_peek()).retry_after() {
            return Err(retry_after);
        }
        let result = guess();
        if result.is_none()
            && limiter.plans().check_now(&plan).remaining() == Some(0)
            && limiter.check_now(&Request::new("warn")).is_allowed()
        {
            tracing::warn!(target: "tidegate::audit", "an address has sent {MAX_GUESSES} wrong admin tokens and is blocked");
        }
        Ok(result)
    }
}

/// An IPv4 address, or the /64 network of an IPv6 address, which one client has for itself.
fn network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).to_string(),
    }
}
