//! What a ledger service does beside entries: it records reservations that ran out, and names of tenants.

use std::time::Duration;

use tidegate::Timestamp;
use tidegate::spi::Outbox;

use super::state::ServiceState;
use super::timer;

/// Reservations that are recorded as expired in one transaction.
const MAX_EXPIRED: u32 = 1_000;

/// So much later than its end a reservation is recorded as expired, because the clock of the store may be behind.
const EXPIRY_MARGIN: Duration = Duration::from_secs(5);

/// How often names of tenants are sent.
const NAMES_INTERVAL: Duration = Duration::from_secs(1);

impl<O: Outbox> ServiceState<O> {
    /// The task that records reservations that ran out, until the service is stopped.
    pub(super) async fn run_expiry(&self) {
        let mut ticks = timer::interval(self.options.expiry_interval);
        while self.goes_on_after(async { _ = ticks.tick().await }).await {
            if self.retry_at().is_none() {
                // A failure is recorded by the call. The next tick repeats it.
                let _ = self.expire_reservations().await;
            }
        }
    }

    /// The task that sends names of tenants, until the service is stopped.
    pub(super) async fn run_names(&self) {
        let mut ticks = timer::interval(NAMES_INTERVAL);
        while self.goes_on_after(async { _ = ticks.tick().await }).await {
            self.send_names().await;
        }
    }

    pub(super) async fn expire_reservations(&self) -> Result<u64, crate::LedgerError> {
        let now = self.options.clock.now().as_micros().saturating_sub(EXPIRY_MARGIN.as_micros() as u64);
        let mut expired = 0;
        loop {
            let some = self.call(self.ledger.expire_reservations(Timestamp::from_micros(now), MAX_EXPIRED)).await?;
            expired += some;
            if some < u64::from(MAX_EXPIRED) {
                return Ok(expired);
            }
        }
    }

    pub(super) async fn send_names(&self) {
        let names = self.names.take();
        if names.is_empty() {
            return;
        }
        match self.call(self.ledger.set_names(&names)).await {
            Ok(()) => self.names.record_sent(names),
            Err(_) => self.names.put_back(names),
        }
    }
}
