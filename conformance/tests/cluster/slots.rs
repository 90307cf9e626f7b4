//! The slots of keys in a real cluster, and what its servers say about them.

use conformance::server::Server;
use conformance::suite::key_name;
use conformance::topology::Cluster;

use super::{RedisLimiter, request_of};

pub(crate) fn slot_of(cluster: &Cluster, limiter: &RedisLimiter, user: &str) -> u16 {
    slot_from_server(&cluster.servers[0], limiter, user)
}

pub(crate) fn slot_from_server(server: &Server, limiter: &RedisLimiter, user: &str) -> u16 {
    let name = key_name(limiter.plan(&request_of(user)).checks()[0].key());
    redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut server.connection()).unwrap()
}

pub(crate) fn redirections(cluster: &Cluster) -> u64 {
    (0..cluster.servers.len()).map(|index| cluster.servers[index].errors("MOVED")).sum()
}

/// Waits until each replica has every key of its primary.
pub(crate) fn wait_for_replicas(cluster: &Cluster, limiter: &RedisLimiter, users: &[String]) {
    for index in 0..3 {
        let mut connection = cluster.servers[index].connection();
        let mine = users.iter().find(|user| cluster.first_owner(slot_of(cluster, limiter, user)) == index);
        let name = key_name(limiter.plan(&request_of(mine.unwrap())).checks()[0].key());
        // A write of this connection after all others, in a slot of this server.
        let _: () = redis::cmd("SET").arg([&name[..7], b"last"].concat()).arg(1).query(&mut connection).unwrap();
        let reached: u64 = redis::cmd("WAIT").arg(1).arg(60_000).query(&mut connection).unwrap();
        assert_eq!(reached, 1);
    }
}
