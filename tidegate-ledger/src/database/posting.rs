//! `Ledger::post`: entries of outboxes, each counted once.
//!
//! ```text
//! lock the accounts ─▶ read their sums ─▶ append the entries ─▶ add those that were new to the sums and reservations ─▶ commit
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};

use tidegate::spi::{AccountKey, EntryKind, OutboxEntry, Subject};

use super::account_balances::{AccountBalances, Balance, BalanceRow};
use super::entry_row::EntryRow;
use super::hold::HoldRow;
use super::transaction::{AccountRow, Argument, LedgerTransaction};
use super::{Ledger, in_time};
use crate::{LedgerError, LedgerErrorKind};

/// What became of posted entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// Entries that the ledger did not have, and has now.
    pub inserted: u64,
    /// Entries that it had already. They count once.
    pub repeated: u64,
}

/// The sums of accounts that a transaction changes.
pub(super) type BalancesByAccount = BTreeMap<i64, AccountBalances>;

impl Ledger {
    /// Posts entries in one transaction. Entries that the ledger has already are left out, so a call can be repeated after any failure.
    ///
    /// An entry whose period was [rolled up](Self::roll_up) to a later time counts as repeated: whether it was posted is not known any more.
    pub async fn post(&self, entries: &[OutboxEntry]) -> Result<Posted, LedgerError> {
        if entries.is_empty() {
            return Ok(Posted::default());
        }
        let keys = account_keys(entries);
        self.repeat(|| self.post_once(entries, &keys)).await
    }

    async fn post_once(&self, entries: &[OutboxEntry], keys: &[AccountKey]) -> Result<Posted, LedgerError> {
        let (mut transaction, accounts) = self.lock_accounts(keys).await?;
        move_partitions(&mut transaction, keys, &accounts).await?;
        let ids: HashMap<(&str, Subject), i64> =
            keys.iter().zip(&accounts).map(|(key, account)| ((key.stem.as_str(), key.subject), account.id)).collect();
        let account_of = |entry: &OutboxEntry| ids[&(entry.stem.as_str(), entry.subject)];

        let mut rows: Vec<EntryRow> =
            entries.iter().flat_map(|entry| EntryRow::from_entry(entry, account_of(entry))).collect();
        let mut balances = load_balances(&mut transaction, rows.iter().map(|row| (row.account, row.period))).await?;
        rows.retain(|row| !is_rolled_up(&balances, row));
        // The same entry may be twice in a batch.
        rows.sort_unstable_by_key(|row| row.id);
        rows.dedup_by_key(|row| row.id);
        let inserted = transaction.insert_entries(&rows).await?;
        if inserted.is_empty() {
            transaction.commit().await?;
            return Ok(Posted { inserted: 0, repeated: entries.len() as u64 });
        }
        for row in rows.iter().filter(|row| inserted.contains(&row.id)) {
            if let Some(balances) = balances.get_mut(&row.account) {
                balances.add(row.period, row.change());
            }
        }
        write_balances(&mut transaction, &mut balances).await?;

        let mut counted = HashSet::new();
        let is_new = |entry: &&OutboxEntry| EntryRow::from_entry(entry, 0).any(|row| inserted.contains(&row.id));
        let new: Vec<&OutboxEntry> = entries.iter().filter(is_new).filter(|entry| counted.insert(entry.id)).collect();
        add_to_holds(&mut transaction, new.iter().map(|entry| (account_of(entry), *entry))).await?;
        transaction.commit().await?;
        Ok(Posted { inserted: new.len() as u64, repeated: (entries.len() - new.len()) as u64 })
    }

    /// Begins a transaction and locks the accounts with these keys. Accounts that do not exist are created first, in a transaction of
    /// their own: whoever waits for a lock holds no new account that others wait for.
    pub(super) async fn lock_accounts(
        &self,
        keys: &[AccountKey],
    ) -> Result<(LedgerTransaction, Vec<AccountRow>), LedgerError> {
        let mut transaction = self.begin(true).await?;
        let mut found = transaction.find_accounts(keys, true).await?;
        if found.iter().any(Option::is_none) {
            transaction.rollback().await?;
            let missing: Vec<AccountKey> =
                keys.iter().zip(&found).filter(|(_, account)| account.is_none()).map(|(key, _)| key.clone()).collect();
            transaction = self.begin(true).await?;
            transaction.create_accounts(&missing).await?;
            transaction.commit().await?;
            transaction = self.begin(true).await?;
            found = transaction.find_accounts(keys, true).await?;
        }
        let gone = || {
            LedgerError::new(LedgerErrorKind::Unexpected, "an account of the ledger is gone as soon as it was created")
        };
        Ok((transaction, found.into_iter().collect::<Option<Vec<AccountRow>>>().ok_or_else(gone)?))
    }

    /// The accounts with these keys, which are created if they do not exist.
    pub(super) async fn ensure_accounts(&self, keys: &[AccountKey]) -> Result<Vec<AccountRow>, LedgerError> {
        in_time(async {
            let (transaction, accounts) = self.lock_accounts(keys).await?;
            transaction.commit().await?;
            Ok(accounts)
        })
        .await
    }
}

/// The accounts of entries, sorted, each in the partition of its latest entry.
fn account_keys(entries: &[OutboxEntry]) -> Vec<AccountKey> {
    let mut latest: BTreeMap<(&str, Subject), &OutboxEntry> = BTreeMap::new();
    for entry in entries {
        let slot = latest.entry((&entry.stem, entry.subject)).or_insert(entry);
        if entry.at >= slot.at {
            *slot = entry;
        }
    }
    latest.into_values().map(OutboxEntry::account).collect()
}

/// An account is in another partition once its rule is partitioned by something else.
async fn move_partitions(
    transaction: &mut LedgerTransaction,
    keys: &[AccountKey],
    accounts: &[AccountRow],
) -> Result<(), LedgerError> {
    for (key, account) in keys.iter().zip(accounts) {
        let partition = i64::from(key.partition);
        if partition != account.partition {
            let sql = "UPDATE accounts SET partition = CAST($2 AS SMALLINT) WHERE id = $1";
            transaction.execute(sql, vec![Argument::Int(account.id), Argument::Int(partition)]).await?;
        }
    }
    Ok(())
}

/// Reads the sums of accounts, from the first of the given periods of each on.
pub(super) async fn load_balances(
    transaction: &mut LedgerTransaction,
    periods: impl Iterator<Item = (i64, i64)>,
) -> Result<BalancesByAccount, LedgerError> {
    let mut from = BTreeMap::new();
    for (account, period) in periods {
        let first = from.entry(account).or_insert(period);
        *first = period.min(*first);
    }
    let from: Vec<(i64, i64)> = from.into_iter().collect();
    let mut rows: BTreeMap<i64, Vec<(i64, Balance)>> = from.iter().map(|(account, _)| (*account, Vec::new())).collect();
    for row in transaction.load_balances(&from).await? {
        rows.entry(row.account).or_default().push((row.period, row.balance));
    }
    Ok(rows.into_iter().map(|(account, rows)| (account, AccountBalances::new(rows))).collect())
}

/// Whether the entry may have been posted and rolled up. Then it must not count again.
fn is_rolled_up(balances: &BalancesByAccount, row: &EntryRow) -> bool {
    let balance = balances.get(&row.account).and_then(|balances| balances.get(row.period));
    balance.is_some_and(|balance| row.time < balance.rolled_before)
}

/// Writes the sums that changed, in the order of accounts and periods.
pub(super) async fn write_balances(
    transaction: &mut LedgerTransaction,
    balances: &mut BalancesByAccount,
) -> Result<(), LedgerError> {
    let mut rows = Vec::new();
    for (&account, balances) in balances {
        balances.carry();
        rows.extend(balances.changed().map(|(period, balance)| BalanceRow { account, period, balance }));
    }
    if rows.is_empty() { Ok(()) } else { transaction.write_balances(&rows).await }
}

async fn add_to_holds(
    transaction: &mut LedgerTransaction,
    entries: impl Iterator<Item = (i64, &OutboxEntry)>,
) -> Result<(), LedgerError> {
    use EntryKind::{Commit, Expire, Release, Reserve};
    let of_holds: Vec<(i64, &OutboxEntry)> = entries
        .filter(|(_, entry)| entry.owner > 0 && matches!(entry.kind, Reserve | Commit | Release | Expire))
        .collect();
    if of_holds.is_empty() {
        return Ok(());
    }
    let key_of = |account: i64, entry: &OutboxEntry| (account, entry.owner.cast_signed());
    let mut holds: BTreeMap<(i64, i64), HoldRow> = of_holds
        .iter()
        .map(|(account, entry)| key_of(*account, entry))
        .map(|(account, owner)| ((account, owner), HoldRow::new(account, owner)))
        .collect();
    let keys: Vec<(i64, i64)> = holds.keys().copied().collect();
    for stored in transaction.load_holds(&keys).await? {
        holds.insert((stored.account, stored.owner), stored);
    }
    for (account, entry) in of_holds {
        if let Some(hold) = holds.get_mut(&key_of(account, entry)) {
            hold.add(entry);
        }
    }
    let rows: Vec<HoldRow> = holds.into_values().collect();
    transaction.write_holds(&rows).await
}
