//! `AccountNames`: names of tenants on their way to the ledger, each once.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate::spi::AccountKey;
use tidegate::sync::Mutex;

/// Names that are remembered as sent. Beyond, they are sent again.
const MAX_SENT_NAMES: usize = 100_000;

/// Names that wait. Beyond, they are learned at a later request.
const MAX_WAITING_NAMES: usize = 10_000;

/// Names of tenants on their way to the ledger. They are no entries: losing one loses no units.
#[derive(Debug, Default)]
pub(super) struct AccountNames(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    waiting: BTreeMap<AccountKey, String>,
    /// Hashes of the names that were sent.
    sent: BTreeMap<AccountKey, u64>,
}

impl AccountNames {
    pub(super) fn learn(&self, account: AccountKey, name: &str) {
        let mut names = self.0.lock();
        if names.sent.get(&account) == Some(&hash(name)) || names.waiting.len() >= MAX_WAITING_NAMES {
            return;
        }
        names.waiting.insert(account, name.to_owned());
    }

    pub(super) fn take(&self) -> Vec<(AccountKey, String)> {
        std::mem::take(&mut self.0.lock().waiting).into_iter().collect()
    }

    pub(super) fn record_sent(&self, sent: Vec<(AccountKey, String)>) {
        let mut names = self.0.lock();
        if names.sent.len() + sent.len() > MAX_SENT_NAMES {
            names.sent.clear();
        }
        names.sent.extend(sent.into_iter().map(|(account, name)| (account, hash(&name))));
    }

    pub(super) fn put_back(&self, unsent: Vec<(AccountKey, String)>) {
        let mut names = self.0.lock();
        for (account, name) in unsent {
            names.waiting.entry(account).or_insert(name);
        }
    }
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}
