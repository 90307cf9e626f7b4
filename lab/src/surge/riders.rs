//! Riders: each sends a request, waits for the response, pauses, and sends the next. Their retry behavior differs.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use serde::Serialize;
use tidegate::Timestamp;
use tokio::task::JoinSet;

use super::endpoint::Endpoint;
use super::options::Scenario;
use super::request_log::{ClientKind, RequestOutcome};
use super::rng::{random_duration, seeded_rng};
use super::simulation::{Client, RequestResult, Simulation};

/// Bounds of the pause after a response.
const MIN_THINK_TIME: Duration = Duration::from_millis(100);
const MAX_THINK_TIME: Duration = Duration::from_millis(300);

/// Time without a response after which a hammering rider taps again.
const TAP_INTERVAL: Duration = Duration::from_millis(300);

/// Requests in flight of one hammering rider, and its immediate retries after a refusal.
const MAX_TAPS: usize = 20;
const MAX_IMMEDIATE_RETRIES: u32 = 3;

/// What a rider does after a refusal or without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RetryBehavior {
    /// Waits as long as `Retry-After` says: six in ten.
    Patient,
    /// Ignores `Retry-After`: three in ten.
    Steady,
    /// Sends again while there is no response, and retries immediately after a refusal: one in ten.
    Hammering,
}

struct Rider {
    client: Client,
    behavior: RetryBehavior,
    rng: Rng,
    /// Requests in flight of a hammering rider.
    taps: JoinSet<RequestResult>,
}

/// Simulates a rider until the end of the phase.
pub(crate) async fn run_rider(simulation: Arc<Simulation>, number: u32) {
    let mut rider = Rider::new(&simulation.scenario, number);
    let arrival = Duration::from_secs(1) * number / simulation.scenario.arrivals_per_second;
    let mut due = simulation.start.plus(arrival);
    while simulation.wait_until(due).await {
        let endpoint = rider.choose_endpoint();
        let mut result = rider.request(&simulation, endpoint, due).await;
        for _ in 0..MAX_IMMEDIATE_RETRIES {
            if rider.behavior != RetryBehavior::Hammering
                || result.outcome == RequestOutcome::Served
                || result.at >= simulation.end
            {
                break;
            }
            result = rider.request(&simulation, endpoint, result.at).await;
        }
        due = result.at.plus(rider.pause(result));
    }
    // Requests in flight still count.
    while rider.taps.join_next().await.is_some() {}
}

impl RetryBehavior {
    pub(crate) const ALL: [Self; 3] = [Self::Patient, Self::Steady, Self::Hammering];

    pub(crate) const fn from_number(number: u32) -> Self {
        match number % 10 {
            0 | 2 | 4 | 5 | 7 | 9 => Self::Patient,
            1 | 3 | 6 => Self::Steady,
            _ => Self::Hammering,
        }
    }
}

impl Rider {
    fn new(scenario: &Scenario, number: u32) -> Self {
        let client = Client::new(ClientKind::Rider, number, &format!("rider-{number}"), scenario);
        let behavior = RetryBehavior::from_number(number);
        Self { client, behavior, rng: seeded_rng(scenario.seed, number.into()), taps: JoinSet::new() }
    }

    /// Five of eight requests are for a ride, two for a fare, one for nearby drivers.
    fn choose_endpoint(&mut self) -> Endpoint {
        match self.rng.u64(..8) {
            0..5 => Endpoint::Ride,
            5..7 => Endpoint::Fare,
            _ => Endpoint::Nearby,
        }
    }

    async fn request(&mut self, simulation: &Arc<Simulation>, endpoint: Endpoint, due: Timestamp) -> RequestResult {
        if self.behavior != RetryBehavior::Hammering {
            return simulation.send(&self.client, endpoint, due).await;
        }
        // Responses to earlier taps no longer matter.
        while self.taps.try_join_next().is_some() {}
        self.tap(simulation, endpoint, due);
        let mut next_tap = due.plus(TAP_INTERVAL);
        loop {
            let pause = next_tap.since(simulation.timer.now());
            tokio::select! {
                // The response to any of the taps counts.
                Some(result) = self.taps.join_next() => if let Ok(result) = result { return result },
                () = simulation.timer.sleep(pause), if self.taps.len() < MAX_TAPS && next_tap < simulation.end => {
                    self.tap(simulation, endpoint, next_tap);
                    next_tap = next_tap.plus(TAP_INTERVAL);
                }
                else => return RequestResult { at: simulation.end, outcome: RequestOutcome::CutOff, retry_after: None },
            }
        }
    }

    fn tap(&mut self, simulation: &Arc<Simulation>, endpoint: Endpoint, due: Timestamp) {
        let (simulation, client) = (Arc::clone(simulation), self.client.clone());
        self.taps.spawn(async move { simulation.send(&client, endpoint, due).await });
    }

    fn pause(&mut self, result: RequestResult) -> Duration {
        let think_time = random_duration(&mut self.rng, MIN_THINK_TIME, MAX_THINK_TIME);
        match self.behavior {
            RetryBehavior::Steady => think_time,
            RetryBehavior::Patient | RetryBehavior::Hammering => result.retry_after.unwrap_or_default().max(think_time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ten_riders_six_are_patient_three_steady_and_one_hammering() {
        let behaviors: Vec<RetryBehavior> = (0..10).map(RetryBehavior::from_number).collect();
        let count = |behavior| behaviors.iter().filter(|one| **one == behavior).count();
        assert_eq!(
            (count(RetryBehavior::Patient), count(RetryBehavior::Steady), count(RetryBehavior::Hammering)),
            (6, 3, 1)
        );
    }

    #[test]
    fn riders_request_rides_fares_and_drivers_at_five_to_two_to_one() {
        let mut rider = Rider::new(&Scenario::for_tests(), 0);
        let endpoints: Vec<Endpoint> = (0..8000).map(|_| rider.choose_endpoint()).collect();
        let count = |endpoint| endpoints.iter().filter(|one| **one == endpoint).count();
        let (rides, fares, nearby) = (count(Endpoint::Ride), count(Endpoint::Fare), count(Endpoint::Nearby));
        assert_eq!(rides + fares + nearby, 8000);
        assert!((4800..5200).contains(&rides) && (1850..2150).contains(&fares), "{rides}, {fares}, {nearby}");
    }

    #[test]
    fn only_patient_and_hammering_riders_wait_for_retry_after() {
        let result = RequestResult {
            at: Timestamp::default(),
            outcome: RequestOutcome::Refused,
            retry_after: Some(Duration::from_secs(2)),
        };
        for number in 0..10 {
            let mut rider = Rider::new(&Scenario::for_tests(), number);
            let pause = rider.pause(result);
            if rider.behavior == RetryBehavior::Steady {
                assert!((MIN_THINK_TIME..=MAX_THINK_TIME).contains(&pause));
            } else {
                assert_eq!(pause, Duration::from_secs(2));
            }
        }
    }
}
