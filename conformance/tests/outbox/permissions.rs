//! The permissions of a user of the server for rules with a ledger.

use conformance::server::{KINDS, Server};
use conformance::suite::long_timeout_options;
use tidegate::spi::{AccountKey, Check, Outbox, Plan, Store};
use tidegate::{StoreError, StoreErrorKind};
use tidegate_redis::RedisStore;

use crate::outbox::PARTITION;
use crate::outbox::fixture::{GENERATION, flush, gate, gate_state, subject};

/// The error names exactly the permissions that rules with a ledger need beside the others; none can be left out.
#[tokio::test]
async fn the_permissions_for_a_ledger_are_sufficient_and_necessary() {
    for kind in KINDS {
        let server = Server::start(kind);
        let url = server.url().replace("redis://", "redis://gate:key@");
        allow(&server, &["+info"]);
        let error = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap_err().to_string();
        let (basic, ledger) = error.split_once("for rules with a ledger").unwrap();
        let (basic, ledger) = (permissions(basic.split("; behind").next().unwrap()), permissions(ledger));
        allow(&server, &[&basic[..], &ledger[..]].concat());
        let store = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap();
        do_everything(&server, &store).await.unwrap();
        for without in &ledger {
            let rest: Vec<&str> = ledger.iter().filter(|word| *word != without).copied().collect();
            allow(&server, &[&basic[..], &rest[..]].concat());
            let error =
                do_everything(&server, &store).await.expect_err(&format!("{kind:?} is content without {without}"));
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{kind:?} without {without}: {error}");
            assert!(error.to_string().contains(without), "{kind:?} without {without}: {error}");
        }
    }
}

/// Loses, rebuilds, decides, reads and repairs a partition.
async fn do_everything(server: &Server, store: &RedisStore) -> Result<(), StoreError> {
    flush(server);
    let gate = gate("api");
    let check = Check::new(&gate, subject(PARTITION.into()), 3);
    store.rebuild_partition(PARTITION, GENERATION, &[gate_state(&check)]).await?;
    let granted = store.decide(&Plan::new([check]).unwrap()).await?.granted();
    assert_eq!(granted, 1);
    let batch = store.read_outbox(PARTITION, 10).await?;
    let ids: Vec<_> = batch.entries.iter().map(|entry| entry.id).collect();
    assert_eq!(ids.len(), 1);
    store.acknowledge(PARTITION, &ids).await?;
    let key = AccountKey::from_key(check.key());
    let (position, _) = store.read_states(PARTITION, &[key]).await?.unwrap();
    assert!(store.repair_states(PARTITION, &position, &[gate_state(&check)]).await?);
    store.discard_generation(PARTITION, GENERATION).await
}

/// Gives the user `gate` exactly these permissions, on all keys.
fn allow(server: &Server, permissions: &[&str]) {
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("gate").arg(&["reset", "on", ">key", "~*"]).arg(permissions);
    user.query::<()>(&mut server.connection()).unwrap();
}

fn permissions(message: &str) -> Vec<&str> {
    message.split_whitespace().filter(|word| word.starts_with('+')).collect()
}
