//! `Scenario`: a fleet in which a test kills processes at chosen points, for crashes that random rounds seldom hit.

use std::path::Path;

use conformance::http_client::HttpClient;
use conformance::poll::Polling;
use serde_json::{Value, json};
use tidegate::spi::AccountKey;

use super::client::send;
use super::environment::Environment;
use super::rules::{Account, AccountIndex};
use super::strike::{Deployment, Victim};

/// Seconds that a reservation lasts: longer than a test.
const RESERVATION_TTL: u64 = 3_600;

/// A running fleet.
pub struct Scenario {
    environment: Environment,
    index: AccountIndex,
}

impl Scenario {
    /// Starts the processes.
    pub async fn start(program: &Path) -> Self {
        let environment = Environment::start(Deployment::Fleet, program, RESERVATION_TTL).await;
        Self { environment, index: AccountIndex::new() }
    }

    /// Kills or stops a process.
    pub fn strike(&mut self, victim: Victim) {
        self.environment.strike(victim);
    }

    /// Starts or continues a process.
    pub async fn repair(&mut self, victim: Victim) {
        self.environment.repair(victim).await;
    }

    /// Reserves under the quota of an account, at an instance. The status and the body of the answer.
    pub async fn reserve(&self, instance: usize, account: &Account, key: &str, cost: u64) -> (u16, Value) {
        let body = json!({
            "action": account.quota.action(), "tenant": account.tenant, "cost": cost, "idempotency_key": key
        });
        self.post(instance, "/v1/quotas/reserve", &body).await
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
            polling.pause(|| self.environment.instances[instance].log_lines()).await;
        }
    }

    /// Waits until an instance decides on an account. Nothing is consumed.
    pub async fn wait_until_decided(&self, instance: usize, account: &Account) {
        let body = json!({ "action": account.quota.action(), "tenant": account.tenant, "peek": true });
        let mut polling = Polling::until("an instance decides");
        while self.post(instance, "/v1/check", &body).await.0 != 200 {
            polling.pause(|| self.environment.instances[instance].log_lines()).await;
        }
    }

    /// Waits until the outbox of an account is empty.
    pub async fn wait_until_drained(&self, account: &Account) {
        let keys: [AccountKey; 1] = [self.index.key(account)];
        let mut polling = Polling::until("the outbox is empty");
        while !self.environment.is_drained(&keys).await {
            polling.pause(String::new).await;
        }
    }

    async fn post(&self, instance: usize, path: &str, body: &Value) -> (u16, Value) {
        let to = self.environment.instances[instance].addresses().expect("an instance that is up").http;
        let response = send(&mut HttpClient::default(), to, "POST", path, &body.to_string()).await.expect("an answer");
        (response.status, response.json())
    }
}
