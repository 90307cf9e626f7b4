//! `Ledger::set_names` and `Ledger::tenant_names`: the names of tenants, for rules that say so.

use std::collections::BTreeMap;

use tidegate::spi::AccountKey;

use super::transaction::{Argument, LedgerTransaction};
use super::{Ledger, in_time};
use crate::LedgerError;

impl Ledger {
    /// Notes the names of the tenants of accounts, which are created if they do not exist. The last name of an account counts.
    pub async fn set_names(&self, names: &[(AccountKey, String)]) -> Result<(), LedgerError> {
        let names: BTreeMap<&AccountKey, String> = names.iter().map(|(key, name)| (key, stored_text(name))).collect();
        let keys: Vec<AccountKey> = names.keys().map(|key| (*key).clone()).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let accounts = self.ensure_accounts(&keys).await?;
        let known = in_time(async {
            let mut transaction = self.begin(false).await?;
            let known = known_names(&mut transaction, accounts.iter().map(|account| account.id).collect()).await?;
            transaction.commit().await?;
            Ok(known)
        });
        let known = known.await?;
        let named = accounts.iter().map(|account| account.id).zip(names.into_values());
        let changed: Vec<(i64, String)> = named.filter(|(id, name)| known.get(id) != Some(name)).collect();
        if changed.is_empty() {
            return Ok(());
        }
        self.repeat(|| self.write_names(&changed)).await
    }

    /// The names of tenants that the ledger has, each once and in order, at most `limit` of them.
    pub async fn tenant_names(&self, limit: u32) -> Result<Vec<String>, LedgerError> {
        in_time(async {
            let mut transaction = self.begin(false).await?;
            let sql = "SELECT DISTINCT name FROM accounts WHERE name IS NOT NULL ORDER BY name LIMIT $1";
            let rows = transaction.fetch(sql, vec![Argument::Int(limit.into())]).await?;
            transaction.commit().await?;
            rows.iter().map(|row| row.text(0)).collect()
        })
        .await
    }

    async fn write_names(&self, names: &[(i64, String)]) -> Result<(), LedgerError> {
        let mut transaction = self.begin(true).await?;
        transaction.lock_ids(names.iter().map(|(id, _)| *id).collect()).await?;
        for (id, name) in names {
            let arguments = vec![Argument::Int(*id), Argument::Text(name.clone())];
            transaction.execute("UPDATE accounts SET name = $2 WHERE id = $1", arguments).await?;
        }
        transaction.commit().await
    }
}

/// A text as it is stored and looked for: PostgreSQL refuses the character 0.
pub(super) fn stored_text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

async fn known_names(transaction: &mut LedgerTransaction, ids: Vec<i64>) -> Result<BTreeMap<i64, String>, LedgerError> {
    let condition = transaction.is_one_of("id", 1);
    let sql = format!("SELECT id, name FROM accounts WHERE name IS NOT NULL AND {condition}");
    let rows = transaction.fetch(sql, vec![Argument::Ints(ids)]).await?;
    rows.iter().map(|row| Ok((row.int(0)?, row.text(1)?))).collect()
}
