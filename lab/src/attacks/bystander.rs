//! `Bystanders`: well-behaved clients beside an attack, one on each instance. Each stays within its limit, so each request must pass.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Clock, SystemClock};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::attack::Attack;
use super::scale::Scale;
use super::target::{Answer, Client, Target};
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
    stop: Arc<AtomicBool>,
    running: JoinSet<()>,
}

impl Bystanders {
    /// Starts a bystander on each instance. After half of its `limit`, it is replaced by a new one.
    pub(super) fn start(target: &Target, limit: u64, scale: &Scale) -> Self {
        let (counts, stop) = (Arc::new(Mutex::new(BystanderCounts::default())), Arc::new(AtomicBool::new(false)));
        let mut running = JoinSet::new();
        for index in 0..target.instances.len() {
            let (mut client, pace, attack) = (target.client(index), scale.pace, target.attack);
            let (counts, stop) = (Arc::clone(&counts), Arc::clone(&stop));
            running.spawn(async move {
                let mut pace = interval(pace);
                pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
                for number in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    pace.tick().await;
                    let key = key(attack, index, number / (limit / 2));
                    send_request(&mut client, &key, &counts).await;
                }
            });
        }
        Self { counts, stop, running }
    }

    /// Waits until the bystanders have sent this many more requests.
    pub(super) async fn continue_for(&self, requests: u64) {
        let asked = || self.counts.lock().unwrap().asked;
        let target = asked() + requests;
        wait_until("bystanders get no answers", || asked() >= target, || format!("{:?}", self.counts)).await;
    }

    /// Stops the bystanders.
    pub(super) async fn stop(mut self) -> BystanderCounts {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap();
        }
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
