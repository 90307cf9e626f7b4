//! Riders: people who want to get home. Each does one thing after the other: asks, waits for the answer, waits a moment. What they
//! do when they are refused, or not answered, is their temper.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tidegate::Timestamp;
use tokio::task::JoinSet;

use super::draw::Draw;
use super::endpoint::Endpoint;
use super::ledger::{Ended, Party};
use super::town::{Told, Town};

/// How long people look at an answer.
const GLANCE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(300));

/// Who hammers taps again after so long without an answer.
const TAP: Duration = Duration::from_millis(300);

/// So many taps of one finger are under way at most.
const TAPS: usize = 20;

/// So often who hammers tries again at once after a refusal.
const RETRIES: u32 = 3;

/// What a rider makes of bad news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Temper {
    /// Comes back when told to: six in ten.
    Patient,
    /// Goes on as if nothing had been said: three in ten.
    Steady,
    /// Taps again while there is no answer, and tries again at once after a refusal: one in ten.
    Hammering,
}

struct Rider {
    number: u32,
    user: HeaderValue,
    temper: Temper,
    draw: Draw,
    /// Requests that may still be answered.
    taps: JoinSet<Told>,
}

/// The evening of a rider.
pub(crate) async fn rider(town: Arc<Town>, number: u32) {
    let mut rider = Rider::new(town.shape.seed, number);
    let arrival = Duration::from_secs(1) * number / town.shape.arrivals;
    let mut due = town.start.plus(arrival);
    while town.until(due).await {
        let endpoint = rider.wish();
        let mut told = rider.ask(&town, endpoint, due).await;
        for _ in 0..RETRIES {
            if rider.temper != Temper::Hammering || told.ended == Ended::Served || told.at >= town.end {
                break;
            }
            told = rider.ask(&town, endpoint, told.at).await;
        }
        due = told.at.plus(rider.pause(told));
    }
    // What they still wait for, they wait for.
    while rider.taps.join_next().await.is_some() {}
}

impl Rider {
    fn new(seed: u64, number: u32) -> Self {
        let temper = match number % 10 {
            0 | 2 | 4 | 5 | 7 | 9 => Temper::Patient,
            1 | 3 | 6 => Temper::Steady,
            _ => Temper::Hammering,
        };
        // Digits are fine in a header.
        let user = HeaderValue::try_from(format!("rider-{number}")).unwrap_or(HeaderValue::from_static("rider"));
        Self { number, user, temper, draw: Draw::of(seed, number.into()), taps: JoinSet::new() }
    }

    /// A ride five times, what it costs twice, and once whether anybody is there.
    fn wish(&mut self) -> Endpoint {
        match self.draw.below(8) {
            0..5 => Endpoint::Ride,
            5..7 => Endpoint::Fare,
            _ => Endpoint::Nearby,
        }
    }

    async fn ask(&mut self, town: &Arc<Town>, endpoint: Endpoint, due: Timestamp) -> Told {
        if self.temper != Temper::Hammering {
            return town.ask(Party::Rider(self.number), &self.user, endpoint, due, town.shape.patience).await;
        }
        // Answers that came while nobody looked are history.
        while self.taps.try_join_next().is_some() {}
        self.tap(town, endpoint, due);
        let mut again = due.plus(TAP);
        loop {
            let idle = again.since(town.timer.now());
            tokio::select! {
                // An answer to any of the taps will do.
                Some(told) = self.taps.join_next() => if let Ok(told) = told { return told },
                () = town.timer.sleep(idle), if self.taps.len() < TAPS && again < town.end => {
                    self.tap(town, endpoint, again);
                    again = again.plus(TAP);
                }
                else => return Told { at: town.end, ended: Ended::CutOff, retry_after: None },
            }
        }
    }

    fn tap(&mut self, town: &Arc<Town>, endpoint: Endpoint, due: Timestamp) {
        let (town, user, party) = (Arc::clone(town), self.user.clone(), Party::Rider(self.number));
        self.taps.spawn(async move { town.ask(party, &user, endpoint, due, town.shape.patience).await });
    }

    /// How long it takes them to do the next thing.
    fn pause(&mut self, told: Told) -> Duration {
        let glance = self.draw.between(GLANCE.0, GLANCE.1);
        match self.temper {
            Temper::Steady => glance,
            Temper::Patient | Temper::Hammering => told.retry_after.unwrap_or_default().max(glance),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ten_riders_six_are_patient_three_steady_and_one_hammers() {
        let tempers: Vec<Temper> = (0..10).map(|number| Rider::new(1, number).temper).collect();
        let count = |temper| tempers.iter().filter(|one| **one == temper).count();
        assert_eq!((count(Temper::Patient), count(Temper::Steady), count(Temper::Hammering)), (6, 3, 1));
    }

    #[test]
    fn wishes_are_five_to_two_to_one() {
        let mut rider = Rider::new(1, 0);
        let wishes: Vec<Endpoint> = (0..8000).map(|_| rider.wish()).collect();
        let count = |endpoint| wishes.iter().filter(|one| **one == endpoint).count();
        let (rides, fares, nearby) = (count(Endpoint::Ride), count(Endpoint::Fare), count(Endpoint::Nearby));
        assert_eq!(rides + fares + nearby, 8000);
        assert!((4800..5200).contains(&rides) && (1850..2150).contains(&fares), "{rides}, {fares}, {nearby}");
    }

    #[test]
    fn who_is_told_when_to_come_back_does_so_or_not_by_temper() {
        let told = Told { at: Timestamp::default(), ended: Ended::Refused, retry_after: Some(Duration::from_secs(2)) };
        for number in 0..10 {
            let mut rider = Rider::new(1, number);
            let pause = rider.pause(told);
            if rider.temper == Temper::Steady {
                assert!((GLANCE.0..=GLANCE.1).contains(&pause));
            } else {
                assert_eq!(pause, Duration::from_secs(2));
            }
        }
    }
}
