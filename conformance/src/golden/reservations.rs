//! The rows of golden histories that make and end reservations.

use std::collections::HashMap;

use tidegate::spi::Store;
use tidegate::{Decision, Limiter, Receipt, Request, Reservation, ReservationError};

use super::Row;

/// The reservations of a history, by row.
pub(super) type Reservations = HashMap<usize, Reservation>;

impl Row {
    /// The decision of `reserve COST` or `reserve COST as KEY`. `None` for other rows, and for a reservation that is refused.
    pub(super) async fn reserve<S: Store>(&self, limiter: &Limiter<S>, user: &str) -> Option<Decision> {
        let words = self.cell("ask").strip_prefix("reserve ")?;
        let (cost, key) = words.split_once(" as ").map_or((words, None), |(cost, key)| (cost, Some(key)));
        let request = Request::new("").with_attribute("user", user).with_cost(cost.parse().unwrap());
        match limiter.reserve(&request, key).await {
            Ok(decision) => return Some(decision),
            Err(ReservationError::AlreadyEnded) => assert_eq!(self.cell("answer"), "already ended"),
            Err(ReservationError::KeyReused) => assert_eq!(self.cell("answer"), "key reused"),
            Err(error) => panic!("line {}: {error}", self.line),
        }
        None
    }

    /// Ends a reservation, as another process does that has only its bytes: `commit row NUMBER at COST` or `release
    /// row NUMBER`. Other rows that release are about slots.
    pub(super) async fn end_reservation<S: Store>(&self, limiter: &Limiter<S>, reservations: &Reservations) -> bool {
        let ask = self.cell("ask");
        let commit = ask.strip_prefix("commit row ").and_then(|words| words.split_once(" at "));
        let Some(row) = commit.map(|(row, _)| row).or_else(|| ask.strip_prefix("release row ")) else { return false };
        let Some(reservation) = reservations.get(&row.parse().unwrap()) else { return false };
        let receipt = Receipt::from_bytes(&reservation.stored().to_bytes()).unwrap();
        let reservation = Reservation::from_stored(receipt, limiter.rules()).unwrap();
        let result = match commit {
            Some((_, cost)) => limiter.commit(&reservation, cost.parse().unwrap()).await,
            None => limiter.release_reservation(&reservation).await,
        };
        let answer = match result {
            Ok(()) if commit.is_some() => "committed",
            Ok(()) => "released",
            Err(ReservationError::NotFound) => "not found",
            Err(ReservationError::AlreadyEnded) => "already ended",
            Err(error) => panic!("line {}: {error}", self.line),
        };
        assert_eq!(self.cell("answer"), answer, "line {}", self.line);
        true
    }
}
