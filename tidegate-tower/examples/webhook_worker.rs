//! A worker that delivers webhooks no faster than their receiver likes: 10 a second, 50 at once. Events come at 200 a
//! second for three seconds; each waits for its turn, in the order in which they came. One that has waited too long goes to
//! the end of the queue, so none is lost.
//!
//! `cargo run -p tidegate-tower --example webhook_worker` takes no time, since the clock is one that it moves itself. In
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

/// How long an event waits for its turn before the worker tries another one.
const PATIENCE: Duration = Duration::from_secs(600);

/// Waits for the turn of each event, and reports it with the second in which it is delivered.
async fn deliver(
    limiter: Arc<Limiter<MemoryStore>>,
    clock: ManualClock,
    mut events: mpsc::UnboundedReceiver<u32>,
    deliveries: mpsc::UnboundedSender<(u32, u64)>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let request = Request::new("webhook").with_attribute("receiver", "https://example.com/hook");
    let mut put_back = VecDeque::new();
    loop {
        // Those that were put back come after those that have not been tried yet.
        let event = match events.try_recv().ok().or_else(|| put_back.pop_front()) {
            Some(event) => event,
            None => match events.recv().await {
                Some(event) => event,
                None => return Ok(()),
            },
        };
        match limiter.acquire(&request, PATIENCE, &clock).await? {
            AcquireOutcome::Granted(_) => deliveries.send((event, clock.now().as_micros() / 1_000_000))?,
            AcquireOutcome::TimedOut => put_back.push_back(event),
            // Its turn is too far away to wait for; nobody else's is nearer, as all go to one receiver.
            AcquireOutcome::Denied(decision) => {
                let retry = decision.retry_after().ok_or("no waiting helps: the limit is smaller than one event")?;
                put_back.push_back(event);
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

/// Lets everybody do what there is to do, then moves the clock.
async fn step(clock: &ManualClock) {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    clock.advance(STEP);
}
