//! Everybody who is no rider: a bot that grabs rides, drivers who tell where they are, clerks. Their requests are due at fixed
//! times, whatever the answers are.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tidegate::Timestamp;
use tokio::task::JoinSet;

use super::draw::Draw;
use super::endpoint::Endpoint;
use super::ledger::Party;
use super::town::Town;
use crate::traffic::Schedule;

/// How many rides the bot asks for in a second.
pub(crate) const BOT_RATE: u32 = 200;

/// The name of the bot.
pub(crate) const BOT: &str = "bot";

/// The bot does not wait long: it has asked for a thousand more by then.
const BOT_PATIENCE: Duration = Duration::from_secs(5);

/// How many positions a driver has kept in the tunnel, one for each second.
const KEPT: u32 = 30;

/// Within this time a convoy is out of the tunnel.
const CONVOY: Duration = Duration::from_millis(500);

/// So many drivers for a hundred riders.
const DRIVERS_PER_HUNDRED: u32 = 20;

/// How many convoys there are.
const CONVOYS: u32 = 2;

/// Asks for rides under one name.
pub(crate) async fn bot(town: Arc<Town>) {
    let schedule = Schedule::new(town.start, BOT_RATE, town.shape.span);
    let patience = BOT_PATIENCE.min(town.shape.patience);
    open_loop(town, Party::Bot, HeaderValue::from_static(BOT), Endpoint::Ride, patience, |number| schedule.due(number))
        .await;
}

/// People behind a desk: some look up a trip twice a second, some look at the map of the city.
pub(crate) async fn clerk(town: Arc<Town>, number: u32) {
    let (endpoint, rate) = if number < 2 { (Endpoint::Stats, 1) } else { (Endpoint::History, 2) };
    let schedule = Schedule::new(town.start, rate, town.shape.span);
    let patience = town.shape.patience;
    open_loop(town, Party::Staff, name("clerk", number), endpoint, patience, |number| schedule.due(number)).await;
}

/// How many clerks there are.
pub(crate) const CLERKS: u32 = 20;

/// How many drivers there are.
pub(crate) const fn drivers(users: u32) -> u32 {
    users.saturating_mul(DRIVERS_PER_HUNDRED).div_ceil(100)
}

/// A driver tells a position each second. Half of them drive through the tunnel, where nothing gets out, and tell all that they
/// have kept at once when they leave it.
pub(crate) async fn driver(town: Arc<Town>, number: u32) {
    let positions = positions(town.shape.seed, number, town.start, town.shape.span);
    let (user, patience) = (name("driver", number), town.shape.patience);
    let mut positions = positions.into_iter();
    open_loop(town, Party::Staff, user, Endpoint::Location, patience, |_| positions.next()).await;
}

/// When the positions of a driver are due, in their order.
fn positions(seed: u64, number: u32, start: Timestamp, span: Duration) -> Vec<Timestamp> {
    let mut draw = Draw::of(seed, u64::from(number) | 1 << 40);
    let offset = draw.between(Duration::ZERO, Duration::from_secs(1));
    let convoy = u64::from(number / 2) % u64::from(CONVOYS);
    let leaves = (number.is_multiple_of(2)).then(|| {
        // All of a convoy leave together, each some moments after the one before.
        let moment = Draw::of(seed, convoy | 1 << 41).between(Duration::ZERO, span / 10);
        let share = u32::try_from(convoy).unwrap_or(0) + 1;
        span * share / (CONVOYS + 1) + moment + draw.between(Duration::ZERO, CONVOY)
    });
    let enters = leaves.map(|leaves| leaves.saturating_sub(Duration::from_secs(KEPT.into())));
    let mut due: Vec<Duration> = Vec::new();
    let mut at = offset;
    while at < span {
        let hidden = leaves.zip(enters).is_some_and(|(leaves, enters)| enters <= at && at < leaves);
        if !hidden {
            due.push(at);
        }
        at += Duration::from_secs(1);
    }
    due.extend(leaves.into_iter().flat_map(|leaves| std::iter::repeat_n(leaves, KEPT as usize)));
    due.sort_unstable();
    due.into_iter().map(|after| start.plus(after)).collect()
}

/// Sends each request when it is due, whether the one before was answered or not.
async fn open_loop(
    town: Arc<Town>,
    party: Party,
    user: HeaderValue,
    endpoint: Endpoint,
    patience: Duration,
    mut due: impl FnMut(u64) -> Option<Timestamp>,
) {
    let mut asked = JoinSet::new();
    for number in 0.. {
        let Some(due) = due(number) else { break };
        if !town.until(due).await {
            break;
        }
        let (town, user) = (Arc::clone(&town), user.clone());
        asked.spawn(async move { town.ask(party, &user, endpoint, due, patience).await });
        while asked.try_join_next().is_some() {}
    }
    while asked.join_next().await.is_some() {}
}

fn name(kind: &str, number: u32) -> HeaderValue {
    // Letters and digits are fine in a header.
    HeaderValue::try_from(format!("{kind}-{number}")).unwrap_or(HeaderValue::from_static("somebody"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    #[test]
    fn a_driver_tells_a_position_each_second_and_those_of_the_tunnel_at_once() {
        let span = Duration::from_secs(45);
        let by_day = positions(1, 1, START, span);
        assert_eq!(by_day.len(), 45);
        assert!(by_day.windows(2).all(|two| two[1].since(two[0]) == Duration::from_secs(1)));
        let through_tunnel = positions(1, 4, START, span);
        let leaves = through_tunnel.windows(2).find(|two| two[0] == two[1]).unwrap()[0];
        assert_eq!(through_tunnel.iter().filter(|due| **due == leaves).count(), 30);
        assert!(through_tunnel.is_sorted());
        assert_eq!(through_tunnel, positions(1, 4, START, span));
        assert_ne!(through_tunnel, positions(2, 4, START, span));
    }

    #[test]
    fn a_convoy_brings_more_than_the_index_takes() {
        let span = Duration::from_secs(45);
        let mut due: Vec<Timestamp> = (0..drivers(2000)).flat_map(|number| positions(1, number, START, span)).collect();
        due.sort_unstable();
        let busiest = due.iter().map(|first| {
            let begin = due.partition_point(|one| one < first);
            due.partition_point(|one| *one < first.plus(Duration::from_secs(1))) - begin
        });
        assert!(busiest.max().unwrap() > 3000);
    }
}
