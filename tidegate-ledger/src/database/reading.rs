//! What a gate must know of its accounts: `gate_states`, `gate_states_of`, `accounts_of`; and `has_subject`.

use std::collections::HashMap;

use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{AccountKey, GateHold, GateState, Subject};

use super::account_balances::{AccountBalances, Balance};
use super::hold::{HoldEnd, HoldRow, HoldStart};
use super::transaction::{AccountRow, Argument, LedgerRow, LedgerTransaction};
use super::{Ledger, in_time};
use crate::LedgerError;

/// The sums and reservations of accounts, by the id of the account.
#[derive(Default)]
struct AccountStates {
    balances: HashMap<i64, Vec<(i64, Balance)>>,
    holds: HashMap<i64, Vec<GateHold>>,
}

impl Ledger {
    /// The states of every account of a partition, as of one moment.
    pub async fn gate_states(&self, partition: u16) -> Result<Vec<GateState>, LedgerError> {
        in_time(async {
            let mut transaction = self.begin(false).await?;
            let argument = || vec![Argument::Int(partition.into())];
            let accounts = fetch_accounts(&mut transaction, partition).await?;
            let states = AccountStates::load(&mut transaction, "a.partition = $1", &argument).await?;
            transaction.commit().await?;
            Ok(accounts.into_iter().filter_map(|(id, key)| states.known(id, key)).collect())
        })
        .await
    }

    /// The states of these accounts, one for each key in their order, as of one moment. An unknown account has an empty state.
    pub async fn gate_states_of(&self, keys: &[AccountKey]) -> Result<Vec<GateState>, LedgerError> {
        in_time(async {
            let mut transaction = self.begin(false).await?;
            let accounts = transaction.find_accounts(keys, false).await?;
            let ids: Vec<i64> = accounts.iter().flatten().map(|account: &AccountRow| account.id).collect();
            let condition = transaction.is_one_of("a.id", 1);
            let argument = || vec![Argument::Ints(ids.clone())];
            let states = AccountStates::load(&mut transaction, &condition, &argument).await?;
            transaction.commit().await?;
            let state = |(key, account): (&AccountKey, Option<AccountRow>)| {
                states.get(account.map(|account| account.id), key.clone())
            };
            Ok(keys.iter().zip(accounts).map(state).collect())
        })
        .await
    }

    /// Whether a subject has an account, under any limit.
    pub async fn has_subject(&self, subject: Subject) -> Result<bool, LedgerError> {
        in_time(async {
            let mut transaction = self.begin(false).await?;
            // By the index of limit and subject: limits are few.
            let sql = "SELECT a.id FROM limits l JOIN accounts a ON a.limit_id = l.id AND a.subject = $1 LIMIT 1";
            let subject = Argument::Bytes(subject.hash().to_be_bytes().to_vec());
            let rows = transaction.fetch(sql, vec![subject]).await?;
            transaction.commit().await?;
            Ok(!rows.is_empty())
        })
        .await
    }

    /// The accounts of a partition.
    pub async fn accounts_of(&self, partition: u16) -> Result<Vec<AccountKey>, LedgerError> {
        in_time(async {
            let mut transaction = self.begin(false).await?;
            let accounts = fetch_accounts(&mut transaction, partition).await?;
            transaction.commit().await?;
            Ok(accounts.into_iter().map(|(_, key)| key).collect())
        })
        .await
    }
}

async fn fetch_accounts(
    transaction: &mut LedgerTransaction,
    partition: u16,
) -> Result<Vec<(i64, AccountKey)>, LedgerError> {
    let sql = "SELECT a.id, l.stem, a.subject FROM accounts a JOIN limits l ON l.id = a.limit_id WHERE a.partition = $1 \
               ORDER BY a.id";
    let rows = transaction.fetch(sql, vec![Argument::Int(partition.into())]).await?;
    let account = |row: &LedgerRow| {
        Ok((row.int(0)?, AccountKey { partition, stem: row.text(1)?, subject: subject_from_bytes(&row.bytes(2)?) }))
    };
    rows.iter().map(account).collect()
}

/// The subject in its sixteen bytes.
pub(super) fn subject_from_bytes(bytes: &[u8]) -> Subject {
    Subject::from_hash(bytes.try_into().map_or(0, u128::from_be_bytes))
}

impl AccountStates {
    /// Reads the last two balances, and the reservations, of the accounts that fulfil `condition`.
    async fn load(
        transaction: &mut LedgerTransaction,
        condition: &str,
        arguments: &(dyn Fn() -> Vec<Argument> + Sync),
    ) -> Result<Self, LedgerError> {
        let mut states = Self::default();
        let sql = format!(
            "SELECT a.id, b.period, b.consumed, b.carried, b.forgiven, b.hard_limit, b.rolled_before FROM accounts a{} \
             WHERE {condition}",
            transaction.join_last_balances()
        );
        for row in transaction.fetch(sql, arguments()).await? {
            let balance = Balance {
                consumed: row.int(2)?,
                carried: row.int(3)?,
                forgiven: row.int(4)?,
                hard_limit: row.int(5)?,
                rolled_before: row.int(6)?,
            };
            states.balances.entry(row.int(0)?).or_default().push((row.int(1)?, balance));
        }
        let sql = format!(
            "SELECT h.account, h.owner, h.reserved_at, h.expires_at, h.units, h.period, h.ended_at, h.ended_kind, h.cost \
             FROM accounts a JOIN holds h ON h.account = a.id WHERE {condition} AND h.reserved_at IS NOT NULL \
             ORDER BY h.reserved_at, h.owner"
        );
        for row in transaction.fetch(sql, arguments()).await? {
            let hold = hold_row(&row)?;
            if let Some(gate_hold) = hold.gate_hold() {
                states.holds.entry(hold.account).or_default().push(gate_hold);
            }
        }
        Ok(states)
    }

    fn get(&self, id: Option<i64>, key: AccountKey) -> GateState {
        id.and_then(|id| self.known(id, key.clone())).unwrap_or(GateState {
            key,
            state: QuotaState::default(),
            hard_limit: 0,
            holds: Vec::new(),
        })
    }

    /// The state of an account that has entries.
    fn known(&self, id: i64, key: AccountKey) -> Option<GateState> {
        let balances = self.balances.get(&id)?;
        let (state, hard_limit) = AccountBalances::new(balances.iter().copied()).gate();
        Some(GateState { key, state, hard_limit, holds: self.holds.get(&id).cloned().unwrap_or_default() })
    }
}

fn hold_row(row: &LedgerRow) -> Result<HoldRow, LedgerError> {
    let start =
        |at| Ok::<_, LedgerError>(HoldStart { at, expires_at: row.int(3)?, units: row.int(4)?, period: row.int(5)? });
    let end = |at| Ok::<_, LedgerError>(HoldEnd { at, kind: row.int(7)?, cost: row.int(8)? });
    Ok(HoldRow {
        account: row.int(0)?,
        owner: row.int(1)?,
        start: row.maybe_int(2)?.map(start).transpose()?,
        end: row.maybe_int(6)?.map(end).transpose()?,
    })
}
