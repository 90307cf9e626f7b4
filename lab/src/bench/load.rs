//! Load on one thread: closed loop (each connection sends its next request after the response) or open loop (requests are due
//! at a fixed rate, whatever the responses do).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Timer, Timestamp};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::latency::{Latencies, RequestTimes};
use super::request_template::RequestTemplate;
use crate::traffic::{Connection, DEFAULT_TIMEOUT, Schedule};

/// Resolution of the runtime's timer. The rest of the time to a request is spent polling the clock.
const TIMER_RESOLUTION: Duration = Duration::from_millis(2);

/// The next request of the schedule. The lock lets one connection at a time poll the clock.
struct RequestQueue {
    next: Mutex<u64>,
    schedule: Schedule,
}

/// Opens connections and uses each a few times, so that connecting is not part of what is measured. Over HTTP/2 they share one TCP
/// connection.
pub(crate) async fn open_warm_connections(
    template: &Arc<RequestTemplate>,
    count: u16,
) -> Result<Vec<Connection>, String> {
    let opened = Connection::open_many(template.protocol, &template.authority, count).await;
    closed_loop(opened.map_err(|error| error.to_string())?, template, u64::from(count) * 4).await
}

/// Sends `count` requests as fast as they are answered, and returns the connections. Stops at the first unexpected response.
pub(crate) async fn closed_loop(
    connections: Vec<Connection>,
    template: &Arc<RequestTemplate>,
    count: u64,
) -> Result<Vec<Connection>, String> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for mut connection in connections {
        let (template, next) = (Arc::clone(template), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(connection);
                }
                let response = connection.send(template.request(number), DEFAULT_TIMEOUT).await;
                let response = response.map_err(|error| error.to_string())?;
                if let Some(mismatch) = template.mismatch(&response) {
                    return Err(mismatch);
                }
            }
        });
    }
    let mut connections = Vec::new();
    while let Some(result) = tasks.join_next().await {
        connections.push(result.map_err(|error| error.to_string())??);
    }
    Ok(connections)
}

/// Sends requests at a fixed rate for `duration`. Requests without a response are counted; an unexpected response stops the
/// run.
pub(crate) async fn open_loop(
    connections: Vec<Connection>,
    template: &Arc<RequestTemplate>,
    rate_per_second: u32,
    duration: Duration,
    timer: &Arc<impl Timer + 'static>,
) -> Result<Latencies, String> {
    let schedule = Schedule::new(timer.now(), rate_per_second, duration);
    let queue = Arc::new(RequestQueue { next: Mutex::new(0), schedule });
    let latencies = Arc::new(Mutex::new(Latencies::new()));
    let mut tasks = JoinSet::new();
    for connection in connections {
        let (template, queue) = (Arc::clone(template), Arc::clone(&queue));
        tasks.spawn(send_due_requests(connection, template, queue, Arc::clone(&latencies), Arc::clone(timer)));
    }
    while let Some(result) = tasks.join_next().await {
        result.map_err(|error| error.to_string())??;
    }
    let sent = *queue.next.lock().await;
    let mut latencies = std::mem::replace(&mut *latencies.lock().await, Latencies::new());
    latencies.add_unsent(schedule.count().saturating_sub(sent));
    Ok(latencies)
}

/// Sends due requests on one connection until the queue is empty.
async fn send_due_requests(
    mut connection: Connection,
    template: Arc<RequestTemplate>,
    queue: Arc<RequestQueue>,
    latencies: Arc<Mutex<Latencies>>,
    timer: Arc<impl Timer>,
) -> Result<(), String> {
    while let Some((number, times)) = queue.next_due(timer.as_ref()).await {
        let response = connection.send(template.request(number), DEFAULT_TIMEOUT).await;
        let completed = timer.now();
        let status = match &response {
            Ok(response) => match template.mismatch(response) {
                Some(mismatch) => return Err(mismatch),
                None => Some(response.status.as_u16()),
            },
            Err(_) => None,
        };
        latencies.lock().await.add(times, completed, status);
    }
    Ok(())
}

impl RequestQueue {
    /// Waits until the next request is due. Returns `None` after the last request, or once the run is overdue by a timeout.
    async fn next_due(&self, timer: &impl Timer) -> Option<(u64, RequestTimes)> {
        let free = timer.now();
        let mut next = self.next.lock().await;
        let (number, due) = (*next, self.schedule.due(*next)?);
        if free > self.schedule.end().plus(DEFAULT_TIMEOUT) {
            return None;
        }
        let sent = wait_until(due, timer).await;
        *next += 1;
        Some((number, RequestTimes { due, free, sent }))
    }
}

/// Waits until `due`, and returns the time then.
async fn wait_until(due: Timestamp, timer: &impl Timer) -> Timestamp {
    loop {
        let now = timer.now();
        let left = due.since(now);
        if left.is_zero() {
            return now;
        }
        if left > TIMER_RESOLUTION {
            timer.sleep(left.saturating_sub(TIMER_RESOLUTION)).await;
        } else {
            // Yielding lets other tasks read responses; sleeping would be too coarse.
            tokio::task::yield_now().await;
        }
    }
}
