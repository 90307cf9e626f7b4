//! `Cluster` and `SentinelGroup`: several real servers on free ports, killed on drop.

use crate::poll;
use crate::server::{Kind, Server};

/// The name of the primary at its sentinels.
pub const PRIMARY_NAME: &str = "limits";

#[derive(Debug)]
pub struct Cluster {
    /// The primaries, then their replicas, if there are any.
    pub servers: Vec<Server>,
    primaries: usize,
}

/// A primary, its replica, and three sentinels that watch them.
#[derive(Debug)]
pub struct SentinelGroup {
    pub primary: Server,
    /// The replica, which a failover promotes.
    pub replica: Server,
    pub sentinels: Vec<Server>,
}

impl Cluster {
    /// Starts this many primaries, each with a replica or none, and waits until the cluster is consistent.
    pub fn start(kind: Kind, primaries: usize, with_replicas: bool) -> Self {
        let count = if with_replicas { 2 * primaries } else { primaries };
        let cluster = Self { servers: (0..count).map(|_| Server::start_in_cluster(kind)).collect(), primaries };
        let (first, slot) = (&cluster.servers[0], |index: usize| 16_384 * index / primaries);
        for (index, server) in cluster.servers.iter().enumerate() {
            if index < primaries {
                server.command::<()>(&format!("CLUSTER ADDSLOTSRANGE {} {}", slot(index), slot(index + 1) - 1));
            }
            server.command::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
            if index > 0 {
                server.command::<()>(&format!("CLUSTER MEET 127.0.0.1 {} {}", first.port(), first.bus()));
            }
        }
        for server in &cluster.servers {
            server.wait_for("CLUSTER", "INFO", &format!("cluster_known_nodes:{count}"));
        }
        for index in primaries..count {
            let primary = cluster.id(index - primaries);
            // A server that has not heard of the primary's slots yet refuses.
            let mut connection = cluster.servers[index].connection();
            poll::wait_for("the server does not become a replica", || {
                redis::cmd("CLUSTER").arg("REPLICATE").arg(&primary).query::<()>(&mut connection).is_ok()
            });
        }
        for (index, server) in cluster.servers.iter().enumerate() {
            server.wait_for("CLUSTER", "INFO", "cluster_state:ok");
            if index >= primaries {
                server.wait_for("INFO", "replication", "master_link_status:up");
            }
        }
        cluster
    }

    /// The URL, with the address of every server.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", addresses(&self.servers))
    }

    /// The index of the primary that owns `slot` at the start.
    pub fn first_owner(&self, slot: u16) -> usize {
        (0..self.primaries).rev().find(|index| 16_384 * index / self.primaries <= usize::from(slot)).unwrap()
    }

    pub fn id(&self, index: usize) -> String {
        self.servers[index].command("CLUSTER MYID")
    }
}

/// Resharding, step by step
impl Cluster {
    /// Starts to move `slot`: the source redirects (ASK) keys that it does not have.
    pub fn start_slot_move(&self, slot: u16, source: usize, target: usize) {
        let import = format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.id(source));
        self.servers[target].command::<()>(&import);
        let export = format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.id(target));
        self.servers[source].command::<()>(&export);
    }

    /// Migrates all remaining keys.
    pub fn move_keys(&self, slot: u16, source: usize, target: usize) {
        loop {
            let names: Vec<Vec<u8>> = self.servers[source].command(&format!("CLUSTER GETKEYSINSLOT {slot} 100"));
            if names.is_empty() {
                return;
            }
            self.migrate(source, target, &names);
        }
    }

    pub fn migrate(&self, source: usize, target: usize, names: &[Vec<u8>]) {
        let port = self.servers[target].port();
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(port).arg("").arg(0).arg(60_000).arg("KEYS").arg(names);
        migrate.query::<()>(&mut self.servers[source].connection()).unwrap();
    }

    /// Assigns the slot to the target at every server.
    pub fn finish_slot_move(&self, slot: u16, target: usize) {
        let assign = format!("CLUSTER SETSLOT {slot} NODE {}", self.id(target));
        let others = (0..self.primaries).filter(|index| *index != target);
        for index in [target].into_iter().chain(others) {
            self.servers[index].command::<()>(&assign);
        }
        // Until all servers have this epoch, another change could get the same one and conflict with it.
        let number = |index: usize, field: &str| self.servers[index].number("CLUSTER INFO", field);
        let epoch = number(target, "cluster_my_epoch:");
        let agree = || (0..self.primaries).all(|index| number(index, "cluster_current_epoch:") == epoch);
        poll::wait_for("the servers do not agree", agree);
    }
}

impl SentinelGroup {
    /// Starts all servers, with further settings for the data servers and for the sentinels.
    pub fn start(kind: Kind, server_settings: &[&str], sentinel_settings: &[&str]) -> Self {
        let primary = Server::start_with(kind, &[&["--repl-diskless-sync-delay", "0"], server_settings].concat());
        let port = primary.port().to_string();
        let replica = Server::start_with(kind, &[&["--replicaof", "127.0.0.1", &port], server_settings].concat());
        replica.wait_for("INFO", "replication", "master_link_status:up");
        let mut settings = vec![
            format!("sentinel monitor {PRIMARY_NAME} 127.0.0.1 {port} 2"),
            format!("sentinel down-after-milliseconds {PRIMARY_NAME} 500"),
            format!("sentinel failover-timeout {PRIMARY_NAME} 2000"),
        ];
        settings.extend(sentinel_settings.iter().map(|setting| (*setting).to_owned()));
        let sentinels: Vec<_> = (0..3).map(|_| Server::start_sentinel(kind, &settings)).collect();
        Self { primary, replica, sentinels }
    }

    /// Waits until every sentinel has discovered the replica and the other sentinels.
    pub fn wait_until_discovered(&self) {
        for sentinel in &self.sentinels {
            sentinel.wait_for("INFO", "sentinel", "slaves=1,sentinels=3");
        }
    }

    /// The URL, with the address of every sentinel.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{PRIMARY_NAME}", addresses(&self.sentinels))
    }
}

fn addresses(servers: &[Server]) -> String {
    let addresses: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    addresses.join(",")
}
