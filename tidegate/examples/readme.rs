//! The program that the README shows: five logins of an account in ten minutes, and six in a row.

use std::time::Duration;

use tidegate::{Limit, Limiter, MemoryStore, Request, Rule, RuleSet};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let login = Limit::sliding_log(5, Duration::from_secs(600))?;
    let rules = RuleSet::new([Rule::new("login", login).with_per(["account"])])?;
    let limiter = Limiter::new(rules, MemoryStore::new());
    for _ in 0..6 {
        let decision = limiter.check_now(&Request::new("login").with_attribute("account", "a7"));
        println!("allowed: {}, retry: {:?}", decision.is_allowed(), decision.retry_after());
    }
    Ok(())
}
