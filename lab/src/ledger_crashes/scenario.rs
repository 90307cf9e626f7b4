//! `Scenario`: a fleet in which a test kills processes at chosen points, for crashes that random rounds seldom hit.

use std::path::Path;

use conformance::poll::{Polling, wait_for_some};
use serde_json::{Value, json};

use super::environment::Environment;
use super::rules::{Account, AccountIndex};
use super::strike::{Deployment, Victim};

/// Longer than a test, in seconds.
const RESERVATION_TTL: u64 = 3_600;

/// A running fleet.
pub struct Scenario(Environment);

impl Scenario {
    /// Starts the processes.
    pub async fn start(program: &Path) -> Self {
        Self(Environment::start(Deployment::Fleet, program, RESERVATION_TTL).await)
    }

    /// Kills or stops a process.
    pub fn strike(&mut self, victim: Victim) {
        self.0.strike(victim);
    }

    /// Starts or continues a process.
    pub async fn repair(&mut self, victim: Victim) {
        self.0.repair(victim).await;
    }

    /// Reserves under the quota of an account, at an instance. The status and the body of the answer.
    pub async fn reserve(&self, instance: usize, account: &Account, key: &str, cost: u64) -> (u16, Value) {
        let body = account.request(json!({ "cost": cost, "idempotency_key": key }));
        self.0.instances[instance].post("/v1/quotas/reserve", &body).await.expect("an answer")
    }

    /// The same again as long as the answer is 503, which says so: a busy machine may need more time than an instance has.
    pub async fn reserve_until_decided(
        &self,
        instance: usize,
        account: &Account,
        key: &str,
        cost: u64,
    ) -> (u16, Value) {
        let mut polling = Polling::until("an instance decides on a reservation");
        loop {
            let (status, body) = self.reserve(instance, account, key, cost).await;
            if status != 503 {
                return (status, body);
            }
            polling.pause(|| self.0.instances[instance].log_lines()).await;
        }
    }

    /// Waits until an instance decides on an account. Nothing is consumed.
    pub async fn wait_until_decided(&self, instance: usize, account: &Account) {
        let (instance, body) = (&self.0.instances[instance], account.request(json!({ "peek": true })));
        let mut polling = Polling::until("an instance decides");
        while instance.post("/v1/check", &body).await.expect("an answer").0 != 200 {
            polling.pause(|| instance.log_lines()).await;
        }
    }

    /// Waits until the outbox of an account is empty.
    pub async fn wait_until_drained(&self, account: &Account) {
        let keys = [AccountIndex::new().key(account)];
        wait_for_some("the outbox is empty", async || self.0.is_drained(&keys).await.then_some(())).await;
    }
}
