//! A worker that delivers webhooks at the rate that their receiver allows: 10 per second with a burst of 50. Events arrive
//! at 200 per second for three seconds; each waits for admission in order of arrival. One that times out goes to the end of
//! the queue, so none is lost.
//!
//! `cargo run -p tidegate-tower --example webhook_worker` finishes at once, since it advances a manual clock. In
//! production the timer is `tidegate::SleepTimer::new(tokio::time::sleep)`, and nothing else changes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{AcquireOutcome, Clock, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, Timer};
use tokio::sync::mpsc;

const EVENTS_PER_SECOND: u32 = 200;
const SECONDS: u32 = 3;
const STEP: Duration = Duration::from_millis(5);

/// How long an event waits for admission before the worker tries another one.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(600);

/// Waits until each event is admitted, and reports the second of its delivery.
async fn deliver(
    limiter: Arc<Limiter<MemoryStore>>,
    clock: ManualClock,
    mut events: mpsc::UnboundedReceiver<u32>,
    deliveries: mpsc::UnboundedSender<(u32, u64)>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let request = Request::new("webhook").with_attribute("receiver", "https://example.com/hook");
    let mut postponed = VecDeque::new();
    loop {
        // Postponed events come after those that have not been tried yet.
        let event = match events.try_recv().ok().or_else(|| postponed.pop_front()) {
            Some(event) => event,
            None => match events.recv().await {
                Some(event) => event,
                None => return Ok(()),
            },
        };
        match limiter.acquire(&request, ACQUIRE_TIMEOUT, &clock).await? {
            AcquireOutcome::Granted(_) => deliveries.send((event, clock.now().as_micros() / 1_000_000))?,
            AcquireOutcome::TimedOut => postponed.push_back(event),
            // The wait exceeds the timeout. All events go to one receiver, so no other event is admitted earlier.
            AcquireOutcome::Denied(decision) => {
                let retry = decision.retry_after().ok_or("the limit is smaller than one event")?;
                postponed.push_back(event);
                clock.sleep(retry).await;
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let limit = Limit::token_bucket(50, Rate::per_second(10)?)?;
    let rules = RuleSet::new([Rule::new("webhooks", limit).with_per(["receiver"])])?;
    let clock = ManualClock::default();
    let limiter = Arc::new(Limiter::new(rules, MemoryStore::new().with_clock(clock.clone())));

    let (events, incoming) = mpsc::unbounded_channel();
    let (outgoing, mut deliveries) = mpsc::unbounded_channel();
    let worker = tokio::spawn(deliver(limiter, clock.clone(), incoming, outgoing));

    for event in 0..EVENTS_PER_SECOND * SECONDS {
        events.send(event)?;
        step(&clock).await;
    }
    drop(events);
    while !worker.is_finished() {
        step(&clock).await;
    }
    worker.await??;

    let (mut by_second, mut delivered) = (BTreeMap::new(), BTreeSet::new());
    while let Some((event, second)) = deliveries.recv().await {
        *by_second.entry(second).or_insert(0_u32) += 1;
        delivered.insert(event);
    }
    if !(0..EVENTS_PER_SECOND * SECONDS).eq(delivered) {
        return Err("an event was lost".into());
    }
    let later = by_second.values().skip(1).max().copied().unwrap_or_default();
    println!("events:     {} in {SECONDS} seconds", EVENTS_PER_SECOND * SECONDS);
    println!("deliveries: {} in {} seconds", by_second.values().sum::<u32>(), by_second.len());
    println!("            {} in the first, at most {later} in each later one", by_second[&0]);
    Ok(())
}

/// Lets the other tasks run, then advances the clock.
async fn step(clock: &ManualClock) {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    clock.advance(STEP);
}
