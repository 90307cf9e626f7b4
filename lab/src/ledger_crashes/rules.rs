//! The rules of the crash suite, and the accounts that requests have in the ledger.

use serde_json::{Value, json};
use tidegate::spi::AccountKey;
use tidegate::{Limiter, MemoryStore, Secret};
use tidegate_rules::{RequestDescription, RuleFile};

pub(super) const SECRET: &str = "crash suite";

pub(super) const SLOTS: usize = 3;

/// Units of a tenant under [`Account::Sync`] and [`Account::Async`]. Some tenants use them up within a few rounds.
pub(super) const AMOUNT: u64 = 400;

/// Units of a tenant under the other quotas. They are not used up: the last check of a round takes slots, and without the store every instance
/// would allow all of them.
const LARGE_AMOUNT: u64 = 1_000_000;

/// A quota of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quota {
    /// Durable before a request is allowed.
    Sync,
    /// Durable soon after.
    Async,
    /// Durable before, and taken together with a slot.
    Export,
    /// Durable soon after. Without the store, each instance decides by itself, and writes what it allows to its journal.
    Local,
}

/// A quota of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Account {
    /// The quota.
    pub quota: Quota,
    /// The tenant.
    pub tenant: String,
}

/// Finds the accounts of tenants in the ledger, where subjects are hashes.
pub(super) struct AccountIndex(Limiter<MemoryStore>);

pub(super) fn rule_file() -> String {
    format!(
        "\
version: 1
rules:
  - id: sync-units
    match: {{ action: sync }}
    per: [tenant]
    quota: {{ amount: {AMOUNT}, period: year, ledger: sync }}
  - id: async-units
    match: {{ action: async }}
    per: [tenant]
    quota: {{ amount: {AMOUNT}, period: year, ledger: async }}
  - id: export-slots
    match: {{ action: export }}
    per: [tenant]
    cost: 1
    concurrency: {{ max: {SLOTS}, lease: 1s }}
    on_failure: closed
  - id: export-units
    match: {{ action: export }}
    per: [tenant]
    quota: {{ amount: {LARGE_AMOUNT}, period: year, ledger: sync }}
  - id: local-units
    match: {{ action: local }}
    per: [tenant]
    quota: {{ amount: {LARGE_AMOUNT}, period: year, ledger: async }}
    on_failure: local
"
    )
}

impl Quota {
    /// Every quota.
    pub const ALL: [Self; 4] = [Self::Sync, Self::Async, Self::Export, Self::Local];

    /// The action of requests that it applies to.
    pub(super) const fn action(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
            Self::Export => "export",
            Self::Local => "local",
        }
    }

    /// The id of its rule.
    pub(super) fn rule(self) -> String {
        format!("{}-units", self.action())
    }

    pub(super) const fn amount(self) -> u64 {
        match self {
            Self::Sync | Self::Async => AMOUNT,
            Self::Export | Self::Local => LARGE_AMOUNT,
        }
    }

    /// Whether what is acknowledged may be lost with the store.
    pub(super) const fn may_lag(self) -> bool {
        matches!(self, Self::Async | Self::Local)
    }
}

impl Account {
    /// A request of the tenant to which the quota applies, with further fields.
    pub(super) fn request(&self, mut fields: Value) -> Value {
        fields["action"] = json!(self.quota.action());
        fields["tenant"] = json!(self.tenant);
        fields
    }
}

impl AccountIndex {
    pub(super) fn new() -> Self {
        let rules = RuleFile::parse("rules.yaml", &rule_file()).unwrap_or_else(|report| panic!("{report}"));
        Self(Limiter::new(rules.rules().clone(), MemoryStore::new()).with_secret(&Secret::new(SECRET)))
    }

    /// The account as stores and the ledger know it.
    pub(super) fn key(&self, account: &Account) -> AccountKey {
        let mut description = RequestDescription::new();
        description.action = Some(account.quota.action().to_owned());
        description.tenant = Some(account.tenant.clone());
        let attributes = description.attributes().expect("a valid request");
        let plan = self.0.plan(&attributes.request());
        let recorded = plan.checks().iter().find(|check| check.gate().ledger().is_some());
        AccountKey::from_key(recorded.expect("a quota with a ledger").key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quota_of_every_tenant_is_an_account_of_its_own() {
        let index = AccountIndex::new();
        let accounts = ["ann", "bob"]
            .map(|tenant| Quota::ALL.map(|quota| index.key(&Account { quota, tenant: tenant.to_owned() })));
        let distinct: std::collections::BTreeSet<_> = accounts.iter().flatten().collect();
        assert_eq!(distinct.len(), 8);
        let parsed = accounts[0].each_ref().map(|key| key.parse().unwrap().0);
        assert_eq!(parsed, Quota::ALL.map(Quota::rule).each_ref().map(String::as_str));
    }
}
