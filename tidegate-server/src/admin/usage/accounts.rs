//! The accounts of a subject in the ledger, and resetting them.

use tidegate::limits::Periods;
use tidegate::spi::{AccountKey, Check, Key, Outbox, Plan};
use tidegate::{Clock, Limit, SystemClock};
use tidegate_ledger::{Correction, LedgerService, PendingRepair, Posted, ServiceError};

use super::UsageError;
use crate::calls::retry_after::RETRY_AFTER_ONE_SECOND;
use crate::doors::check::BadRequest;

/// The quota of a subject.
#[derive(Clone, Debug)]
pub(in crate::admin) struct Account {
    pub(super) key: AccountKey,
    pub(super) limit_name: String,
    pub(super) periods: Periods,
    pub(super) hard_limit: u64,
    /// The name of the tenant, if the rule keeps it.
    pub(super) name: Option<String>,
}

/// What was reset.
#[derive(Debug)]
pub(in crate::admin) struct AccountResets {
    /// The accounts that had something to reset.
    keys: Vec<AccountKey>,
    /// Whether the store has it already.
    pub(in crate::admin) repaired: bool,
}

impl AccountResets {
    /// Whether this check counts in an account that had something to reset.
    pub(in crate::admin) fn contains(&self, check: &Check<'_>) -> bool {
        self.keys.contains(&AccountKey::from_key(check.key()))
    }
}

impl Account {
    /// The account of a check. `None` if it has no ledger.
    fn of_check(check: &Check<'_>, name: Option<&str>) -> Option<Self> {
        check.gate().ledger()?;
        let Limit::Quota(quota) = check.gate().limit() else { return None };
        Some(Self {
            key: AccountKey::from_key(check.key()),
            limit_name: check.gate().limit_name().to_string(),
            periods: quota.periods(),
            hard_limit: quota.hard_limit(),
            name: name.map(str::to_owned),
        })
    }
}

/// The accounts among the limits of these plans, and the keys of all other limits.
pub(in crate::admin) fn split_ledger_checks<'p, 'r>(plans: &'p [Plan<'r>]) -> (Vec<Account>, Vec<Key<'r>>) {
    let (mut accounts, mut others): (Vec<Account>, Vec<Key<'r>>) = (Vec::new(), Vec::new());
    let named =
        |plan: &'p Plan<'r>| plan.checks().iter().enumerate().map(|(index, check)| (check, plan.account_name(index)));
    for (check, name) in plans.iter().flat_map(named) {
        match Account::of_check(check, name) {
            Some(account) if accounts.iter().any(|known| known.key == account.key) => {}
            Some(account) => accounts.push(account),
            None => others.push(*check.key()),
        }
    }
    (accounts, others)
}

/// The only account of these, by the name of its limit if there are several.
pub(super) fn choose(mut accounts: Vec<Account>, limit_name: Option<&str>) -> Result<Account, UsageError> {
    if let Some(name) = limit_name {
        accounts.retain(|account| account.limit_name == name);
    }
    match accounts.as_slice() {
        [account] => Ok(account.clone()),
        [] => Err(BadRequest::new(
            "the rule has no quota with a ledger, or none of this name, or does not know the subject",
        )
        .into()),
        several => {
            let names: Vec<&str> = several.iter().map(|account| account.limit_name.as_str()).collect();
            let message = format!("the rule has several quotas; name one as `limit_name`: {}", names.join(", "));
            Err(BadRequest::new(message).into())
        }
    }
}

/// Resets accounts in the ledger, then in the store. An account without entries has nothing to reset, and is left out. After a failure in
/// the middle, the store has what was reset before it.
pub(in crate::admin) async fn reset_accounts<O: Outbox + 'static>(
    service: &LedgerService<O>,
    accounts: &[Account],
    author: &str,
    reason: &str,
) -> Result<AccountResets, UsageError> {
    let now = SystemClock::new().now();
    let keys: Vec<AccountKey> = accounts.iter().map(|account| account.key.clone()).collect();
    flush(service, &keys).await?;
    let pending = service.pending_repair(keys);
    let (mut reset_keys, mut failure) = (Vec::new(), None);
    for account in accounts {
        let period = account.periods.bounds_at(now).index;
        let reset = Correction::reset(account.key.clone(), author, reason, now).with_period(period);
        match service.ledger().correct(&reset).await {
            Ok(posted) if posted == Posted::default() => continue,
            Ok(_) => {}
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
        reset_keys.push(account.key.clone());
    }
    // Also after a failure: only its answer may be lost.
    let repaired = repair(pending).await;
    failure.map_or(Ok(AccountResets { keys: reset_keys, repaired }), |error| Err(error.into()))
}

/// Posts what the outboxes of these accounts contain: it counts before what an administrator posts now.
pub(super) async fn flush<O: Outbox + 'static>(
    service: &LedgerService<O>,
    keys: &[AccountKey],
) -> Result<(), UsageError> {
    service.repair(keys).await.map(drop).map_err(service_error)
}

/// Sets these quotas in the store to what the ledger has. Returns whether this is done.
pub(super) async fn repair<O: Outbox>(pending: PendingRepair<O>) -> bool {
    match pending.finish().await {
        Ok(report) => report.busy.is_empty(),
        Err(error) => {
            tracing::warn!(target: "tidegate::ledger", "quotas were changed in the ledger and not yet in the store: {error}");
            false
        }
    }
}

/// The response to a failure of the ledger or the store.
pub(super) fn service_error(error: ServiceError) -> UsageError {
    use axum::response::IntoResponse;
    match error {
        ServiceError::Ledger(error) => UsageError::Ledger(error),
        error => {
            let body = serde_json::json!({ "error": "unavailable", "message": error.to_string() });
            let parts = (http::StatusCode::SERVICE_UNAVAILABLE, RETRY_AFTER_ONE_SECOND, axum::Json(body));
            UsageError::from(parts.into_response())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::response::IntoResponse;
    use tidegate::limits::Period;
    use tidegate::spi::{EntryId, EntryKind, OutboxEntry, Subject};
    use tidegate::{MemoryStore, StoreError, StoreErrorKind, Timestamp};
    use tidegate_ledger::{JournalFile, Ledger, ServiceOptions};

    use super::*;

    /// A monthly quota of a subject.
    fn account(subject: u128) -> Account {
        let key = AccountKey { partition: 31, stem: "exports:u1mo".into(), subject: Subject::from_hash(subject) };
        let periods = Periods::utc(Period::Month);
        Account { key, limit_name: String::new(), periods, hard_limit: 10, name: None }
    }

    /// What an account has consumed now.
    fn consumed(account: &Account) -> OutboxEntry {
        let at = SystemClock::new().now();
        let sequence = account.key.subject.hash() as u64;
        OutboxEntry {
            id: EntryId { generation: 77, partition: account.key.partition, millis: 1, sequence },
            kind: EntryKind::Consume,
            at,
            stem: account.key.stem.clone(),
            subject: account.key.subject,
            period: account.periods.bounds_at(at).index,
            amount: 5,
            late_amount: 0,
            held: 0,
            owner: 0,
            expires_at: Timestamp::default(),
            hard_limit: 10,
        }
    }

    #[test]
    fn a_failure_of_the_store_says_when_to_try_again_like_one_of_the_ledger() {
        let store = StoreError::new(StoreErrorKind::Unavailable, "the store did not answer in time");
        for error in [ServiceError::Store(store), ServiceError::TimedOut] {
            let response = service_error(error).into_response();
            assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (503, &"1".parse().unwrap()));
        }
    }

    #[tokio::test]
    async fn after_a_reset_that_fails_in_the_middle_store_and_ledger_agree() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
        let ledger = Ledger::open(&url.parse().unwrap()).await.unwrap();
        let journal = Arc::new(JournalFile::open(folder.path().join("journal")).unwrap());
        let options = ServiceOptions::default().with_journal(Arc::clone(&journal));
        let store = MemoryStore::new().with_journal(journal);
        let service = LedgerService::start(ledger.clone(), store, options).unwrap();
        // The ledger refuses to reset a month that is counted in hours: it has not begun.
        let refused = Account { periods: Periods::utc(Period::Hour), ..account(3) };
        let accounts = [account(1), account(2), refused, account(4)];
        let entries: Vec<OutboxEntry> = [1, 3, 4].map(|subject| consumed(&account(subject))).to_vec();
        ledger.post(&entries).await.unwrap();
        service.prepare().await.unwrap();

        let failed = reset_accounts(&service, &accounts, "eve", "a new trial").await;
        assert!(matches!(failed, Err(UsageError::Ledger(_))));
        let states = ledger.gate_states_of(&accounts.map(|account| account.key)).await.unwrap();
        assert_eq!(states.iter().map(|state| state.state.used).collect::<Vec<_>>(), [0, 0, 5, 5]);
        let report = service.reconcile(false).await.unwrap();
        assert_eq!((report.accounts, report.differences), (3, 0));
    }
}
