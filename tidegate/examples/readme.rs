//! The program that the README shows: a limit per user, a strict one per account, and six logins in a row.

use std::time::Duration;

use tidegate::{Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rules = RuleSet::new([
        Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?).with_per(["user"]),
        Rule::new("login", Limit::sliding_log(5, Duration::from_secs(600))?).with_action("login").with_per(["account"]),
    ])?;
    let limiter = Limiter::new(rules, MemoryStore::new());
    for _ in 0..6 {
        let decision =
            limiter.check_now(&Request::new("login").with_attribute("user", "ann").with_attribute("account", "a7"));
        let (rule, left) = (decision.rule().unwrap_or_default(), decision.remaining().unwrap_or_default());
        match decision.retry_after() {
            None => println!("{rule}: allowed, {left} left"),
            Some(wait) => println!("{rule}: denied, retry in {wait:.0?}"),
        }
    }
    Ok(())
}
