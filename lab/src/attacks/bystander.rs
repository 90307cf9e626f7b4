//! `Bystanders`: well-behaved clients beside an attack, one on each instance. Each stays within its limit, so each request must pass.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Clock, SystemClock};
use tokio::time::timeout;

use super::attack::Attack;
use super::scale::Scale;
use super::target::{Answer, Client, Target};
use crate::traffic::Workers;
use conformance::suite::{MAX_WAIT, wait_until};

/// What bystanders got.
#[derive(Clone, Debug, Default)]
pub struct BystanderCounts {
    /// Requests.
    pub asked: u64,
    /// Requests that passed.
    pub allowed: u64,
    /// Denied by a limit.
    pub denied: u64,
    /// Refused with 503, or not answered.
    pub refused: u64,
    latencies: Vec<Duration>,
}

/// Running bystanders.
pub(super) struct Bystanders {
    counts: Arc<Mutex<BystanderCounts>>,
    workers: Workers,
}

impl Bystanders {
    /// Starts a bystander on each instance. After half of its `limit`, it is replaced by a new one.
    pub(super) fn start(target: &Target, limit: u64, scale: &Scale) -> Self {
        let (counts, mut workers) = (Arc::new(Mutex::new(BystanderCounts::default())), Workers::default());
        for index in 0..target.instances.len() {
            let (mut client, attack, counts) = (target.client(index), target.attack, Arc::clone(&counts));
            workers.spawn(scale.pace, |mut pace| async move {
                let mut number = 0;
                while pace.next().await {
                    send_request(&mut client, &key(attack, index, number / (limit / 2)), &counts).await;
                    number += 1;
                }
            });
        }
        Self { counts, workers }
    }

    /// Waits until the bystanders have sent this many more requests.
    pub(super) async fn continue_for(&self, requests: u64) {
        let asked = || self.counts.lock().unwrap().asked;
        let target = asked() + requests;
        wait_until("bystanders get no answers", || asked() >= target, || format!("{:?}", self.counts)).await;
    }

    /// Stops the bystanders.
    pub(super) async fn stop(self) -> BystanderCounts {
        self.workers.stop().await;
        self.counts.lock().unwrap().clone()
    }
}

impl BystanderCounts {
    /// The latency that this part of the requests did not exceed.
    pub fn latency(&self, part: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() as f64 * part).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// The API key of a bystander, or its address in a network of its own.
fn key(attack: Attack, index: usize, number: u64) -> String {
    match attack {
        Attack::SubjectFlood => format!("{}.{}.{}.7", 20 + index, number / 250 % 250, number % 250),
        _ => format!("bystander-{index}-{number}"),
    }
}

async fn send_request(client: &mut Client, key: &str, counts: &Mutex<BystanderCounts>) {
    let clock = SystemClock::new();
    let start = clock.now();
    let answer = timeout(MAX_WAIT, client.send(key)).await.unwrap_or(Answer::Refused);
    let latency = clock.now().since(start);
    let mut counts = counts.lock().unwrap();
    counts.asked += 1;
    counts.latencies.push(latency);
    *match answer {
        Answer::Allowed => &mut counts.allowed,
        Answer::Denied => &mut counts.denied,
        Answer::Refused => &mut counts.refused,
    } += 1;
}
