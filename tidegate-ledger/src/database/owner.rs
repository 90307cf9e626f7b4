//! `Ledger::verify_owner`: a ledger belongs to one secret and one namespace. Accounts are found by hashes of their subjects, so all instances
//! must hash with the same secret, for ever; and two deployments would each admit the whole quota.

use tidegate::Secret;
use tidegate::spi::Namespace;

use super::transaction::Argument;
use super::{Ledger, in_time};
use crate::{LedgerError, LedgerErrorKind};

impl Ledger {
    /// Checks that the ledger belongs to this secret and this namespace, which the first call decides. With another secret, every tenant would
    /// begin again with an empty account. A ledger from before there were namespaces belongs to the default one.
    pub async fn verify_owner(&self, secret: &Secret, namespace: &Namespace) -> Result<(), LedgerError> {
        let fingerprint = fingerprint(secret, namespace);
        let stored = in_time(async {
            let mut transaction = self.begin(true).await?;
            let insert = "INSERT INTO secret_fingerprint (only_row, fingerprint) VALUES (1, $1) ON CONFLICT DO NOTHING";
            transaction.execute(insert, vec![Argument::Int(fingerprint)]).await?;
            let rows = transaction.fetch("SELECT fingerprint FROM secret_fingerprint", Vec::new()).await?;
            transaction.commit().await?;
            rows.first().map(|row| row.int(0)).transpose()
        });
        let message = match stored.await? {
            Some(stored) if stored == fingerprint => return Ok(()),
            Some(stored) if stored >> 32 == fingerprint >> 32 => format!(
                "the ledger belongs to another namespace than `{namespace}`, and is the truth about the quotas of that one alone; start with the \
                 --namespace from before (`{}` without the flag), or with a ledger of its own",
                Namespace::DEFAULT
            ),
            _ => "the ledger was written with another secret, and under this one every tenant would begin again at nothing; use the \
                  secret from before. If that was a mistake and no account is needed, empty the table secret_fingerprint"
                .to_owned(),
        };
        Err(LedgerError::new(LedgerErrorKind::Invalid, message))
    }
}

/// Half of a hash: enough to tell owners apart, and nothing that finds a secret. The first half of it depends on the secret alone, so that the
/// error says what differs.
fn fingerprint(secret: &Secret, namespace: &Namespace) -> i64 {
    let of_namespace = match namespace.as_str() {
        Namespace::DEFAULT => 0,
        name => half_hash(secret, &format!("ledger of {name}")) >> 32,
    };
    (secret_fingerprint(secret).cast_unsigned() ^ of_namespace).cast_signed()
}

/// Half of a hash: enough to tell secrets apart, and nothing that finds one.
pub(crate) fn secret_fingerprint(secret: &Secret) -> i64 {
    half_hash(secret, "ledger").cast_signed()
}

fn half_hash(secret: &Secret, text: &str) -> u64 {
    (secret.hasher(["fingerprint"]).subject([Some(text)].into_iter()).hash() >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fingerprint that ledgers had before there were namespaces.
    #[test]
    fn the_fingerprint_of_the_default_namespace_is_that_of_the_secret() {
        let secret = Secret::new("a");
        let before = (secret.hasher(["fingerprint"]).subject([Some("ledger")].into_iter()).hash() >> 64) as u64;
        assert_eq!(fingerprint(&secret, &Namespace::default()), before.cast_signed());
    }
}
