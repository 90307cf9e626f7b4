//! Quotas with a ledger while the slot of their partition moves to another server of a cluster.

use conformance::server::Kind;
use conformance::suite::{key_name, long_timeout_options};
use conformance::topology::Cluster;
use tidegate::spi::{Check, Outbox, Plan, Store};
use tidegate_redis::RedisStore;

use crate::outbox::PARTITION;
use crate::outbox::fixture::{GENERATION, drain_partition, gate, read_state, subject};

/// A state, its outbox and its generation are keys of one slot. While only some of them have moved, a plan is refused and changes nothing, and
/// so is a read. Afterwards everything is there.
#[tokio::test]
async fn a_plan_with_a_ledger_is_all_or_nothing_while_its_slot_moves() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
    store.rebuild_partition(PARTITION, GENERATION, &[]).await.unwrap();
    let gate = gate("api");
    let check = Check::new(&gate, subject(PARTITION.into()), 3);
    let plan = Plan::new([check]).unwrap();
    assert_eq!(store.decide(&plan).await.unwrap().granted(), 1);
    let name = key_name(check.key());
    let slot: u16 =
        redis::cmd("CLUSTER").arg("KEYSLOT").arg(&name).query(&mut cluster.servers[0].connection()).unwrap();
    let (source, target) = (cluster.first_owner(slot), (cluster.first_owner(slot) + 1) % 3);
    cluster.start_slot_move(slot, source, target);
    cluster.migrate(source, target, &[name]);
    let before = cluster.servers[source].errors("TRYAGAIN") + cluster.servers[target].errors("TRYAGAIN");
    let error = store.decide(&plan).await.unwrap_err();
    assert!(error.is_transient() && !error.is_possibly_applied(), "{error}");
    assert!(cluster.servers[source].errors("TRYAGAIN") + cluster.servers[target].errors("TRYAGAIN") > before);
    cluster.move_keys(slot, source, target);
    assert_eq!(store.decide(&plan).await.unwrap().granted(), 1, "all keys are at the target");
    cluster.finish_slot_move(slot, target);
    assert_eq!(store.decide(&plan).await.unwrap().granted(), 1);
    let entries = drain_partition(&store, PARTITION).await;
    assert_eq!(entries.iter().map(|entry| entry.amount).collect::<Vec<_>>(), [3, 3, 3]);
    assert_eq!(read_state(&store, &check).await.unwrap().used, 9);
}
