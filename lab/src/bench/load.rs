//! Load on one thread: closed loop (each connection sends its next request after the response) or open loop (requests are due
//! at a fixed rate, whatever the responses do).

use std::cell::{Cell, RefCell};
use std::time::Duration;

use futures_util::future::try_join_all;
use tidegate::{Timer, Timestamp};
use tidegate_server::command::Failure;
use tokio::sync::Mutex;

use super::Bench;
use super::latency::{Latencies, RequestTimes};
use super::launcher::ServerUnderTest;
use super::options::BenchArgs;
use super::request_template::RequestTemplate;
use crate::traffic::{Connection, DEFAULT_TIMEOUT, Schedule};

/// Resolution of the runtime's timer. The rest of the time to a request is spent polling the clock.
const TIMER_RESOLUTION: Duration = Duration::from_millis(2);

/// Opens connections and uses each a few times, so that connecting is not part of what is measured. Over HTTP/2 they share one TCP
/// connection.
pub(super) async fn open_warm_connections(template: &RequestTemplate, count: u16) -> Result<Vec<Connection>, String> {
    closed_loop(template.connect(count).await?, template, u64::from(count) * 4).await
}

/// The latencies of requests at the rate of the options, over warm connections.
pub(super) async fn measure_latencies(
    bench: &Bench<'_>,
    server: &ServerUnderTest,
    template: &RequestTemplate,
) -> Result<Latencies, Failure> {
    let BenchArgs { rate, seconds, connections, .. } = *bench.arguments;
    let failed = |reason: String| server.no_figures(reason);
    let connections = open_warm_connections(template, connections).await.map_err(failed)?;
    open_loop(connections, template, rate, seconds, bench.timer.as_ref()).await.map_err(failed)
}

/// Sends `count` requests as fast as they are answered, and returns the connections. Stops at the first unexpected response.
pub(super) async fn closed_loop(
    connections: Vec<Connection>,
    template: &RequestTemplate,
    count: u64,
) -> Result<Vec<Connection>, String> {
    let next = &Cell::new(0);
    let send = async |mut connection: Connection| {
        loop {
            let number = next.replace(next.get() + 1);
            if number >= count {
                return Ok(connection);
            }
            let response = connection.send(template.request(number), DEFAULT_TIMEOUT).await;
            template.check_response(&response.map_err(|error| error.to_string())?)?;
        }
    };
    try_join_all(connections.into_iter().map(send)).await
}

/// Sends requests at a fixed rate for `duration`. Requests without a response are counted; an unexpected response stops the
/// run.
pub(super) async fn open_loop(
    connections: Vec<Connection>,
    template: &RequestTemplate,
    rate_per_second: u32,
    duration: Duration,
    timer: &dyn Timer,
) -> Result<Latencies, String> {
    let schedule = Schedule::new(timer.now(), rate_per_second, duration);
    // The next request. The lock lets one connection at a time poll the clock.
    let next = Mutex::new(0);
    let latencies = RefCell::new(Latencies::new());
    let send = async |mut connection: Connection| {
        while let Some((number, times)) = next_due(&next, &schedule, timer).await {
            let response = connection.send(template.request(number), DEFAULT_TIMEOUT).await;
            let completed = timer.now();
            if let Ok(response) = &response {
                template.check_response(response)?;
            }
            let status = response.ok().map(|response| response.status().as_u16());
            latencies.borrow_mut().add(times, completed, status);
        }
        Ok::<_, String>(())
    };
    try_join_all(connections.into_iter().map(&send)).await?;
    let mut latencies = latencies.into_inner();
    // Requests that were never sent, because no connection became free in time.
    latencies.unanswered += schedule.count().saturating_sub(next.into_inner());
    Ok(latencies)
}

/// Waits until the next request is due. Returns `None` after the last request, or once the run is overdue by a timeout.
async fn next_due(next: &Mutex<u64>, schedule: &Schedule, timer: &dyn Timer) -> Option<(u64, RequestTimes)> {
    let free = timer.now();
    let mut next = next.lock().await;
    let (number, due) = (*next, schedule.due(*next)?);
    if free > schedule.end().plus(DEFAULT_TIMEOUT) {
        return None;
    }
    let sent = wait_until(due, timer).await;
    *next += 1;
    Some((number, RequestTimes { due, free, sent }))
}

/// Waits until `due`, and returns the time then.
async fn wait_until(due: Timestamp, timer: &dyn Timer) -> Timestamp {
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
