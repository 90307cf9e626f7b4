//! The accounts of a subject in the ledger, and resetting them.

use tidegate::spi::{AccountKey, Check, Key, Plan};
use tidegate::{Clock, Limit, Periods, SystemClock};
use tidegate_ledger::{Reset, ServiceError};

use super::UsageError;
use crate::serve::api::BadRequest;
use crate::serve::ledger::ServerLedger;

/// The quota of a subject.
#[derive(Clone, Debug)]
pub(in crate::serve::admin) struct Account {
    pub(super) key: AccountKey,
    pub(super) limit_name: String,
    pub(super) periods: Periods,
    pub(super) hard_limit: u64,
}

impl Account {
    /// The account of a check. `None` if it has no ledger.
    fn of_check(check: &Check<'_>) -> Option<Self> {
        check.gate().ledger()?;
        let Limit::Quota(quota) = check.gate().limit() else { return None };
        Some(Self {
            key: AccountKey::from_key(check.key()),
            limit_name: check.gate().limit_name().to_owned(),
            periods: quota.periods(),
            hard_limit: quota.hard_limit(),
        })
    }
}

/// The accounts among the limits of these plans, and the keys of all other limits.
pub(in crate::serve::admin) fn split_ledger_checks<'r>(plans: &[Plan<'r>]) -> (Vec<Account>, Vec<Key<'r>>) {
    let (mut accounts, mut others): (Vec<Account>, Vec<Key<'r>>) = (Vec::new(), Vec::new());
    for check in plans.iter().flat_map(Plan::checks) {
        match Account::of_check(check) {
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

/// Resets accounts in the ledger, then in the store. Returns whether the store has it already.
pub(in crate::serve::admin) async fn reset_accounts(
    ledger: &ServerLedger,
    accounts: &[Account],
    author: &str,
    reason: &str,
) -> Result<bool, UsageError> {
    let now = SystemClock::new().now();
    let keys: Vec<AccountKey> = accounts.iter().map(|account| account.key.clone()).collect();
    flush(ledger, &keys).await?;
    for account in accounts {
        let period = account.periods.bounds_at(now).index;
        ledger.ledger().reset(&Reset::new(account.key.clone(), author, reason, now).with_period(period)).await?;
    }
    Ok(repair(ledger, &keys).await)
}

/// Posts what the outboxes of these accounts contain: it counts before what an administrator posts now.
pub(super) async fn flush(ledger: &ServerLedger, keys: &[AccountKey]) -> Result<(), UsageError> {
    ledger.service().repair(keys).await.map(drop).map_err(service_error)
}

/// Sets these quotas in the store to what the ledger has. Returns whether this is done.
pub(super) async fn repair(ledger: &ServerLedger, keys: &[AccountKey]) -> bool {
    match ledger.service().repair(keys).await {
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
            UsageError::from((http::StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response())
        }
    }
}
