//! The clients that are not riders: a bot that requests rides, drivers that report positions, and clerks. Their requests are due at
//! fixed times, whatever the responses are.

use std::sync::Arc;
use std::time::Duration;

use tidegate::Timestamp;
use tokio::task::JoinSet;

use super::endpoint::Endpoint;
use super::options::Scenario;
use super::request_log::ClientKind;
use super::rng::{random_duration, seeded_rng};
use super::simulation::{Client, Simulation};
use crate::traffic::Schedule;

const BOT_REQUESTS_PER_SECOND: u32 = 200;
const BOT_USER: &str = "bot";
const DRIVERS_PER_HUNDRED: u32 = 20;
const CONVOY_COUNT: u32 = 2;
const CLERK_COUNT: u32 = 20;

/// Positions that a driver collects in the tunnel, one for each second.
const TUNNEL_POSITIONS: u32 = 30;

/// Time in which all drivers of a convoy leave the tunnel.
const CONVOY_SPREAD: Duration = Duration::from_millis(500);

/// Starts the bot, the drivers and the clerks.
pub(crate) fn spawn(simulation: &Arc<Simulation>, crowd: &mut JoinSet<()>) {
    let Scenario { users, seed, phase_duration, .. } = simulation.scenario;
    let client = |kind, user: &str| (Arc::clone(simulation), Client::new(kind, 0, user, &simulation.scenario));
    let schedule = |rate| Schedule::new(simulation.start, rate, phase_duration).times();
    crowd.spawn(open_loop(client(ClientKind::Bot, BOT_USER), Endpoint::Ride, schedule(BOT_REQUESTS_PER_SECOND)));
    for number in 0..driver_count(users) {
        let positions = position_times(seed, number, simulation.start, phase_duration);
        let driver = client(ClientKind::Staff, &format!("driver-{number}"));
        crowd.spawn(open_loop(driver, Endpoint::Location, positions.into_iter()));
    }
    // Two clerks request city statistics once a second, the others trip histories twice a second.
    for number in 0..CLERK_COUNT {
        let (endpoint, rate) = if number < 2 { (Endpoint::Stats, 1) } else { (Endpoint::History, 2) };
        let clerk = client(ClientKind::Staff, &format!("clerk-{number}"));
        crowd.spawn(open_loop(clerk, endpoint, schedule(rate)));
    }
}

const fn driver_count(users: u32) -> u32 {
    users.saturating_mul(DRIVERS_PER_HUNDRED).div_ceil(100)
}

/// When the positions of a driver are due, in order: one each second. Half of the drivers drive through a tunnel without a network, and
/// report the collected positions at once when they leave it.
fn position_times(seed: u64, number: u32, start: Timestamp, duration: Duration) -> Vec<Timestamp> {
    let mut rng = seeded_rng(seed, u64::from(number) | 1 << 40);
    let offset = random_duration(&mut rng, Duration::ZERO, Duration::from_secs(1));
    let convoy = u64::from(number / 2) % u64::from(CONVOY_COUNT);
    let leaves = (number.is_multiple_of(2)).then(|| {
        // All drivers of a convoy leave shortly after each other.
        let departure = random_duration(&mut seeded_rng(seed, convoy | 1 << 41), Duration::ZERO, duration / 10);
        let share = u32::try_from(convoy).unwrap_or(0) + 1;
        duration * share / (CONVOY_COUNT + 1) + departure + random_duration(&mut rng, Duration::ZERO, CONVOY_SPREAD)
    });
    let enters = leaves.map(|leaves| leaves.saturating_sub(Duration::from_secs(TUNNEL_POSITIONS.into())));
    let mut due: Vec<Duration> = Vec::new();
    let mut at = offset;
    while at < duration {
        let in_tunnel = leaves.zip(enters).is_some_and(|(leaves, enters)| enters <= at && at < leaves);
        if !in_tunnel {
            due.push(at);
        }
        at += Duration::from_secs(1);
    }
    due.extend(leaves.into_iter().flat_map(|leaves| std::iter::repeat_n(leaves, TUNNEL_POSITIONS as usize)));
    due.sort_unstable();
    due.into_iter().map(|after| start.plus(after)).collect()
}

/// Sends each request when it is due, whether or not earlier ones were answered.
async fn open_loop(
    (simulation, client): (Arc<Simulation>, Client),
    endpoint: Endpoint,
    times: impl Iterator<Item = Timestamp>,
) {
    let mut requests = JoinSet::new();
    for due in times {
        if !simulation.wait_until(due).await {
            break;
        }
        let (simulation, client) = (Arc::clone(&simulation), client.clone());
        requests.spawn(async move { simulation.send(&client, endpoint, due).await });
        while requests.try_join_next().is_some() {}
    }
    while requests.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    #[test]
    fn a_driver_reports_each_second_and_all_tunnel_positions_at_once() {
        let span = Duration::from_secs(45);
        let open_road = position_times(1, 1, START, span);
        assert_eq!(open_road.len(), 45);
        assert!(open_road.windows(2).all(|two| two[1].since(two[0]) == Duration::from_secs(1)));
        let through_tunnel = position_times(1, 4, START, span);
        let leaves = through_tunnel.windows(2).find(|two| two[0] == two[1]).unwrap()[0];
        assert_eq!(through_tunnel.iter().filter(|due| **due == leaves).count(), 30);
        assert!(through_tunnel.is_sorted());
        assert_eq!(through_tunnel, position_times(1, 4, START, span));
        assert_ne!(through_tunnel, position_times(2, 4, START, span));
    }

    #[test]
    fn a_convoy_reports_more_positions_than_the_index_can_write() {
        let span = Duration::from_secs(45);
        let mut due: Vec<Timestamp> =
            (0..driver_count(2000)).flat_map(|number| position_times(1, number, START, span)).collect();
        due.sort_unstable();
        let busiest = due.iter().map(|first| {
            let begin = due.partition_point(|one| one < first);
            due.partition_point(|one| *one < first.plus(Duration::from_secs(1))) - begin
        });
        assert!(busiest.max().unwrap() > 3000);
    }
}
