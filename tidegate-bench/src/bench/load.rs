//! Load: requests as fast as they are answered, or requests at their time. All of it runs on one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Timer, Timestamp};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::ask::Ask;
use super::latency::{Latencies, Times};
use crate::traffic::{Line, NoAnswer, PATIENCE, Schedule};

/// The timer of the runtime is this coarse; the rest of the way to a request is spent looking at the clock.
const COARSE: Duration = Duration::from_millis(2);

/// The next request, and those that wait for a turn to take it: only one looks at the clock at a time.
struct Tickets {
    next: Mutex<u64>,
    schedule: Schedule,
}

/// As many requests as `count`, each line sending its next as soon as it has its answer. Any wrong answer ends it.
pub(crate) async fn at_once(lines: Vec<Line>, ask: &Arc<Ask>, count: u64) -> Result<Vec<Line>, String> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for mut line in lines {
        let (ask, next) = (Arc::clone(ask), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(line);
                }
                let answer = line.ask(ask.request(number), PATIENCE).await.map_err(|error| error.to_string())?;
                if let Some(wrong) = ask.wrong(&answer) {
                    return Err(wrong);
                }
            }
        });
    }
    let mut lines = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        lines.push(ended.map_err(|error| error.to_string())??);
    }
    Ok(lines)
}

/// Requests at a fixed rate. Those without an answer are counted; a wrong answer ends it.
pub(crate) async fn on_time(
    lines: Vec<Line>,
    ask: &Arc<Ask>,
    rate: u32,
    span: Duration,
    timer: &Arc<impl Timer + 'static>,
) -> Result<Latencies, String> {
    let schedule = Schedule::new(timer.now(), rate, span);
    let tickets = Arc::new(Tickets { next: Mutex::new(0), schedule });
    let found = Arc::new(Mutex::new(Latencies::new()));
    let mut tasks = JoinSet::new();
    for line in lines {
        tasks.spawn(work(line, Arc::clone(ask), Arc::clone(&tickets), Arc::clone(&found), Arc::clone(timer)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| error.to_string())??;
    }
    let taken = *tickets.next.lock().await;
    let mut found = std::mem::replace(&mut *found.lock().await, Latencies::new());
    found.give_up(schedule.count().saturating_sub(taken));
    Ok(found)
}

/// Sends what is due on one line until nothing more is.
async fn work(
    mut line: Line,
    ask: Arc<Ask>,
    tickets: Arc<Tickets>,
    found: Arc<Mutex<Latencies>>,
    timer: Arc<impl Timer>,
) -> Result<(), String> {
    while let Some((number, times)) = tickets.take(timer.as_ref()).await {
        let answered = line.ask(ask.request(number), PATIENCE).await;
        let ended = timer.now();
        let status = match &answered {
            Ok(answer) => match ask.wrong(answer) {
                Some(wrong) => return Err(wrong),
                None => Some(answer.status.as_u16()),
            },
            Err(NoAnswer::Unreachable | NoAnswer::Broken | NoAnswer::Late) => None,
        };
        found.lock().await.add(times, ended, status);
    }
    Ok(())
}

impl Tickets {
    /// Waits until the next request is due; none is left at the end, or once it would make no sense any more.
    async fn take(&self, timer: &impl Timer) -> Option<(u64, Times)> {
        let free = timer.now();
        let mut next = self.next.lock().await;
        let (number, due) = (*next, self.schedule.due(*next)?);
        if free > self.schedule.end().plus(PATIENCE) {
            return None;
        }
        let sent = until(due, timer).await;
        *next += 1;
        Some((number, Times { due, free, sent }))
    }
}

/// Waits until then, and says when it was.
async fn until(due: Timestamp, timer: &impl Timer) -> Timestamp {
    loop {
        let now = timer.now();
        let left = due.since(now);
        if left.is_zero() {
            return now;
        }
        if left > COARSE {
            timer.sleep(left.saturating_sub(COARSE)).await;
        } else {
            // Others have their turn, answers are read, and no time is slept away.
            tokio::task::yield_now().await;
        }
    }
}
