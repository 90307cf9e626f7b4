//! `Ledger::correct`: entries that an administrator makes.

use tidegate::Timestamp;
use tidegate::limits::Periods;
use tidegate::spi::{AccountKey, EntryKind, MAX_AMOUNT};

use super::account_balances::AccountBalances;
use super::correction::Correction;
use super::entry_row::{EntryRow, RowId, row_id, signed};
use super::posting::{BalancesByAccount, load_balances, write_balances};
use super::transaction::{Argument, LedgerTransaction};
use super::{Ledger, LimitName, Posted};
use crate::LedgerError;
use crate::usage::period_text;

/// How many periods a correction may be ahead of its time and of the account: calendars of several zones are up to two apart.
const MAX_LEAD: u64 = 2;

impl Ledger {
    /// Posts a correction. One with an idempotency key that was posted before is repeated, and changes nothing. Fails with
    /// [`LedgerErrorKind::Invalid`](crate::LedgerErrorKind::Invalid), and changes nothing, if the consumption of the period would be
    /// below 0 or above [`MAX_AMOUNT`], or if the idempotency key was used for another correction of the account.
    ///
    /// After a [reset](Correction::reset), what was used in the period before stays. An account without consumption and debt has nothing to
    /// reset: then nothing is posted.
    pub async fn correct(&self, correction: &Correction) -> Result<Posted, LedgerError> {
        correction.validate()?;
        self.repeat(|| self.correct_once(correction)).await
    }

    async fn correct_once(&self, correction: &Correction) -> Result<Posted, LedgerError> {
        let Correction { key, period, at, .. } = correction;
        let Some(amount) = correction.amount else { return self.reset_once(correction).await };
        let create = correction.hard_limit.is_some();
        let Some(mut open) = OpenAccount::lock(self, key, *period, create).await? else {
            return Err(LedgerError::invalid(
                "the ledger has no such account; check the rule, the limit and the tenant",
            ));
        };
        let period = open.period(key, *period, *at)?;
        let hard_limit = correction.hard_limit.map(signed).or_else(|| open.balances.hard_limit_near(period));
        let Some(hard_limit) = hard_limit else {
            return open.refuse("the account has no entries; give the amount of its quota with the correction").await;
        };
        let row = EntryRow { period, amount, hard_limit, ..open.row(correction, EntryKind::Correct) };
        if let Some((kind, posted)) = open.posted(&row.id).await? {
            let is_same = kind == i64::from(EntryKind::Correct.number()) && posted == amount;
            return open.end_repeated(is_same).await;
        }
        let consumed = open.balances.get(period).map_or(0, |balance| balance.consumed);
        let (sum, shown) = (consumed.saturating_add(amount), shown_period(key, period.unsigned_abs()));
        if amount < 0 && sum < 0 {
            let text = format!(
                "a correction by {amount} would bring the consumption of {shown} below 0: it is {consumed}, so at most {} can be \
                 given back",
                consumed.max(0)
            );
            return open.refuse(&text).await;
        }
        // Consumption itself may go beyond it, and what is beyond can be given back.
        if amount > 0 && sum > signed(MAX_AMOUNT) {
            let text = format!(
                "a correction by {amount} would bring the consumption of {shown} above {MAX_AMOUNT}, the largest amount of a \
                 quota: it is {consumed}"
            );
            return open.refuse(&text).await;
        }
        open.append(row).await
    }

    async fn reset_once(&self, reset: &Correction) -> Result<Posted, LedgerError> {
        let Some(mut open) = OpenAccount::lock(self, &reset.key, None, false).await? else {
            return Ok(Posted::default());
        };
        let last = open.balances.last_period().unwrap_or_default();
        let period = open.period(&reset.key, reset.period, reset.at)?.max(last);
        let consumed = open.balances.get(period).map_or(0, |balance| balance.consumed);
        let carried = open.balances.carried_into(period);
        let row = EntryRow {
            period,
            amount: consumed.saturating_neg(),
            hard_limit: open.balances.hard_limit_near(period).unwrap_or_default(),
            forgiven: Some(carried),
            ..open.row(reset, EntryKind::Reset)
        };
        if let Some((kind, _)) = open.posted(&row.id).await? {
            return open.end_repeated(kind == i64::from(EntryKind::Reset.number())).await;
        }
        if consumed == 0 && carried == 0 {
            open.transaction.rollback().await?;
            return Ok(Posted::default());
        }
        open.append(row).await
    }
}

/// An account that is locked for one entry of the ledger's own.
struct OpenAccount {
    transaction: LedgerTransaction,
    id: i64,
    balances: AccountBalances,
}

impl OpenAccount {
    /// Locks an account and reads its sums from a period on, or from the last one with entries on. `None` if it has no entries, unless
    /// it is to be created.
    async fn lock(
        ledger: &Ledger,
        key: &AccountKey,
        period: Option<u64>,
        create: bool,
    ) -> Result<Option<Self>, LedgerError> {
        let keys = std::slice::from_ref(key);
        let mut transaction = if create { ledger.lock_accounts(keys).await?.0 } else { ledger.begin(true).await? };
        let Some(Some(account)) = transaction.find_accounts(keys, true).await?.pop() else {
            transaction.rollback().await?;
            return Ok(None);
        };
        let sql = "SELECT max(period) FROM balances WHERE account = $1";
        let last = transaction.fetch(sql, vec![Argument::Int(account.id)]).await?;
        let last = last.first().map_or(Ok(None), |row| row.maybe_int(0))?;
        if last.is_none() && !create {
            transaction.rollback().await?;
            return Ok(None);
        }
        let from = period.map(signed).into_iter().chain(last).min().unwrap_or_default();
        let mut balances = load_balances(&mut transaction, std::iter::once((account.id, from))).await?;
        Ok(Some(Self { transaction, id: account.id, balances: balances.remove(&account.id).unwrap_or_default() }))
    }

    /// The period to change: the given one, or the last one with entries. One that has not begun is a mistake.
    fn period(&self, key: &AccountKey, period: Option<u64>, at: Timestamp) -> Result<i64, LedgerError> {
        let last = self.balances.last_period();
        let Some(period) = period else {
            let none = || LedgerError::invalid("the account has no entries; say which period to correct");
            return last.ok_or_else(none);
        };
        let current = LimitName::from_key(key).period.map_or(0, |kind| Periods::utc(kind).bounds_at(at).index);
        let latest = signed(current + MAX_LEAD).max(last.unwrap_or_default());
        if signed(period) > latest {
            let (period, current) = (shown_period(key, period), shown_period(key, current));
            return Err(LedgerError::invalid(format!("{period} has not begun; the current period is {current}")));
        }
        Ok(signed(period))
    }

    /// The entry of a correction, without what it changes.
    fn row(&self, correction: &Correction, kind: EntryKind) -> EntryRow {
        EntryRow {
            author: Some(correction.author.clone()),
            reason: Some(correction.reason.clone()),
            ..EntryRow::new(row_id(correction.entry_id(), 0), self.id, signed(correction.at.as_micros()), kind)
        }
    }

    /// The kind and the amount of the entry with this id, if there is one.
    async fn posted(&mut self, id: &RowId) -> Result<Option<(i64, i64)>, LedgerError> {
        let sql = "SELECT CAST(kind AS BIGINT), amount FROM entries WHERE id = $1";
        let rows = self.transaction.fetch(sql, vec![Argument::Bytes(id.to_vec())]).await?;
        rows.first().map(|row| Ok((row.int(0)?, row.int(1)?))).transpose()
    }

    async fn append(mut self, row: EntryRow) -> Result<Posted, LedgerError> {
        self.transaction.insert_entries(std::slice::from_ref(&row)).await?;
        self.balances.add(row.period, row.change());
        write_balances(&mut self.transaction, &mut BalancesByAccount::from([(self.id, self.balances)])).await?;
        self.transaction.commit().await?;
        Ok(Posted { inserted: 1, repeated: 0 })
    }

    async fn end_repeated(self, is_same: bool) -> Result<Posted, LedgerError> {
        if is_same {
            self.transaction.rollback().await?;
            return Ok(Posted { inserted: 0, repeated: 1 });
        }
        self.refuse("the idempotency key was used for another correction or reset of this account; take a new one")
            .await
    }

    async fn refuse(self, message: &str) -> Result<Posted, LedgerError> {
        self.transaction.rollback().await?;
        Err(LedgerError::invalid(message))
    }
}

/// A period as it is shown and written everywhere else.
fn shown_period(key: &AccountKey, index: u64) -> String {
    LimitName::from_key(key).period.map_or_else(|| index.to_string(), |period| period_text(period, index))
}
