//! The names of the keys of an outbox, and of the accounts in it. The grammar of keys is in `tidegate`.

use tidegate::spi::{AccountKey, Key, KeyStem, Subject};

use crate::args::key_name;

/// The stream of entries, after the partition.
const STREAM: &[u8] = b"@ledger";
/// The generation.
const MARKER: &[u8] = b"@generation";
/// The lock of the instance that rebuilds the partition.
const LOCK: &[u8] = b"@rebuild";

/// The names of the keys of the outbox of one partition. They are in the slot of the partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutboxKeys {
    pub(crate) stream: Vec<u8>,
    pub(crate) marker: Vec<u8>,
    pub(crate) lock: Vec<u8>,
}

impl OutboxKeys {
    pub(crate) fn new(namespace: &str, partition: u16) -> Self {
        let stem = KeyStem::from_text(String::new());
        let mut start = key_name(namespace, &Key::new(&stem, partition, Subject::from_hash(0)));
        start.truncate(start.len() - SUBJECT_BYTES);
        let name = |end: &[u8]| [&start, end].concat();
        Self { stream: name(STREAM), marker: name(MARKER), lock: name(LOCK) }
    }
}

/// The bytes of a subject, at the end of a name.
pub(super) const SUBJECT_BYTES: usize = 16;

/// The name of the key of an account.
pub(super) fn account_name(namespace: &str, account: &AccountKey) -> Vec<u8> {
    let stem = KeyStem::from_text(account.stem.clone());
    key_name(namespace, &Key::new(&stem, account.partition, account.subject))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Limit;
    use tidegate::limits::{Period, Periods};
    use tidegate::spi::{Check, Gate};

    #[test]
    fn names_are_in_the_partition() {
        let keys = OutboxKeys::new("tg", 33);
        assert_eq!(keys.stream, b"tg1{11}@ledger");
        assert_eq!((&keys.marker[..], &keys.lock[..]), (&b"tg1{11}@generation"[..], &b"tg1{11}@rebuild"[..]));
    }

    #[test]
    fn an_account_has_the_name_of_its_key() {
        let gate = Gate::for_rule("a:b", Limit::quota(1, Periods::utc(Period::Month)).unwrap());
        let check = Check::new(&gate, Subject::from_hash((1023 << 96) + 5), 1);
        let account = AccountKey::from_key(check.key());
        assert_eq!(account_name("x", &account), key_name("x", check.key()));
    }
}
