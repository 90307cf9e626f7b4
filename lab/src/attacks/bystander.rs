//! Bystanders: well-behaved clients beside an attack, one on each instance. Each stays within its limit, so each request must pass.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Clock, SystemClock};
use tokio::time::timeout;

use super::attack::Attack;
use super::scale::Scale;
use super::target::{Client, Target};
use crate::suite::{Answer, AnswerCounts, CountingLoad};
use conformance::suite::MAX_WAIT;

/// The answers, and how long they took.
pub(super) type Bystanders = CountingLoad<(AnswerCounts, Vec<Duration>)>;

/// Starts a bystander on each instance. After half of its limit, it is replaced by a new one.
pub(super) fn start(target: &Target, scale: &Scale) -> Bystanders {
    let (mut bystanders, attack) = (Bystanders::new(Default::default()), target.attack);
    for index in 0..target.instances.len() {
        let mut client = target.client(index);
        bystanders.spawn(scale.pace, |mut pace, counts| async move {
            let mut number = 0;
            while pace.next().await {
                send_request(&mut client, &key(attack, index, number / (attack.limit() / 2)), &counts).await;
                number += 1;
            }
        });
    }
    bystanders
}

/// The latency that this part of the requests did not exceed.
pub(super) fn latency(latencies: &mut [Duration], part: f64) -> Duration {
    latencies.sort_unstable();
    let rank = (latencies.len() as f64 * part).ceil() as usize;
    latencies.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// The API key of a bystander, or its address in a network of its own.
fn key(attack: Attack, index: usize, number: u64) -> String {
    match attack {
        Attack::SubjectFlood => format!("{}.{}.{}.7", 20 + index, number / 250 % 250, number % 250),
        _ => format!("bystander-{index}-{number}"),
    }
}

async fn send_request(client: &mut Client, key: &str, counts: &Arc<Mutex<(AnswerCounts, Vec<Duration>)>>) {
    let clock = SystemClock::new();
    let start = clock.now();
    let answer = timeout(MAX_WAIT, client.send(key)).await.unwrap_or(Answer::Refused);
    let mut counts = counts.lock().unwrap();
    counts.0.record(answer);
    counts.1.push(clock.now().since(start));
}
