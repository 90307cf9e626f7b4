//! The flood: a bot that requests rides under one user ID over many connections, which take turns. It takes no notice of
//! refusals.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Request, Timestamp};
use tidegate_server::command::Failure;

use super::endpoint::Endpoint;
use super::request_log::ClientKind;
use super::simulation::{Client, Simulation};
use crate::traffic::{Connection, Protocol, RequestError, raise_file_limit};

const FLOOD_USER: &str = "flood";

/// Time between two requests of a connection.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);

/// Open files of a run without a flood: its crowd shares connections.
const CROWD_FILES: u64 = 1024;

/// Raises the limit on open files of this process if it is too low for a flood over this many connections.
pub(crate) fn raise_open_file_limit(connections: u32) -> Result<(), Failure> {
    raise_file_limit(&format!("--flood {connections}"), files_needed(connections))
}

/// Client and gateway run in one process, so that each connection between them takes two files.
fn files_needed(connections: u32) -> u64 {
    CROWD_FILES + 2 * u64::from(connections)
}

/// Opens connections to all gateways in turn, so that all of them can send at the start of the phase.
pub(crate) async fn connect(gateways: &[SocketAddr], connections: u32) -> Result<Vec<Connection>, RequestError> {
    let mut opened = Vec::with_capacity(connections as usize);
    for gateway in gateways.iter().cycle().take(connections as usize) {
        opened.extend(Connection::open_many(Protocol::Http1, &gateway.to_string(), 1).await?);
    }
    Ok(opened)
}

/// Sends a request over `connection` in each interval, until the end of the phase. `position` is that of the connection among all,
/// from 0 to 1: the connections take turns, so that a response shows what the gateway does rather than how long the machine takes
/// for a thousand requests at once.
pub(crate) async fn run_connection(simulation: Arc<Simulation>, mut connection: Connection, position: f64) {
    let client = Client::new(ClientKind::Flood, 0, FLOOD_USER, &simulation.scenario);
    let first = simulation.start.plus(REQUEST_INTERVAL.mul_f64(position));
    let mut due = first;
    while simulation.wait_until(due).await {
        let result = simulation.send_over(&mut connection, &client, Endpoint::Ride, due).await;
        due = next_request(first, result.at);
    }
}

/// A request of the flood as the rules see it.
pub(crate) fn ride_request() -> Request<'static> {
    let request = Request::new("").with_attribute("method", "POST").with_attribute("path", Endpoint::Ride.path());
    request.with_attribute("header:x-user-id", FLOOD_USER)
}

/// The first turn after `now`. A connection that waits for a response misses turns, and does not make up for them.
fn next_request(first: Timestamp, now: Timestamp) -> Timestamp {
    let number = now.since(first).as_micros() / REQUEST_INTERVAL.as_micros() + 1;
    first.plus(REQUEST_INTERVAL * u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::phase::Phase;
    use super::super::results::RIDE_RULE;
    use super::*;
    use rustix::process::{Resource, getrlimit};

    #[test]
    fn the_rules_of_both_phases_limit_the_flood() {
        for phase in [Phase::Shared, Phase::Capacity] {
            let rules = phase.rules().ok().unwrap();
            let plan = rules.resolve(&ride_request());
            assert!(plan.checks().iter().any(|check| check.gate().rule().id == RIDE_RULE), "{phase:?}");
        }
    }

    #[test]
    fn a_connection_that_waited_for_its_response_sends_at_its_next_turn() {
        let first = Timestamp::from_micros(1_700_000_000_000_000);
        let next = |millis| next_request(first, first.plus(Duration::from_millis(millis))).since(first).as_millis();
        assert_eq!([next(0), next(3), next(499), next(500), next(1700)], [500, 500, 500, 1000, 2000]);
    }

    #[test]
    fn a_flood_needs_two_files_for_each_connection() {
        assert_eq!(files_needed(1000) - files_needed(0), 2000);
    }

    #[test]
    fn the_limit_suffices_after_it_was_raised() {
        let limits = getrlimit(Resource::Nofile);
        if limits.maximum.is_none_or(|limit| limit >= files_needed(1000)) {
            assert!(raise_open_file_limit(1000).is_ok());
            assert!(getrlimit(Resource::Nofile).current.is_none_or(|limit| limit >= files_needed(1000)));
        } else {
            assert!(raise_open_file_limit(1000).is_err());
        }
    }
}
