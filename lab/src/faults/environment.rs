//! `FaultEnvironment`: the servers of one fault, and how the fault is injected and repaired.

use std::sync::Arc;
use std::thread;

use tidegate::{Limiter, MemoryStore, Request};
use tokio::task::{JoinSet, block_in_place};

use super::fault::{Effect, Fault, POLICIES};
use super::load::{Instance, Load, Scale, TENANT, options, request};
use conformance::proxy::{NetworkFault, Proxy};
use conformance::server::{Kind, Server, free_port};
use conformance::suite::key_name;
use conformance::topology::{Cluster, SentinelGroup};

/// The servers and the proxy in front of them.
pub(super) struct FaultEnvironment {
    servers: Servers,
    /// The proxy between instances and server, for network faults.
    pub(super) proxy: Option<Proxy>,
    pub(super) url: String,
    /// The limit of each rule.
    pub(super) limit: u64,
}

enum Servers {
    One(Server),
    SentinelGroup(SentinelGroup),
    Cluster(Cluster),
}

/// Arguments of a server that loses nothing when it is killed.
const DURABLE_ARGUMENTS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
const FLOOD_SUBJECTS: u32 = 5_000;

impl FaultEnvironment {
    pub(super) async fn start(fault: Fault, kind: Kind, scale: &Scale) -> Self {
        let servers = block_in_place(|| match fault {
            Fault::Unavailable => Servers::One(Server::start_with(kind, &DURABLE_ARGUMENTS)),
            Fault::Loading => {
                let often = ["--loading-process-events-interval-bytes", "1024"];
                Servers::One(Server::start_with(kind, &[&DURABLE_ARGUMENTS[..], &often[..]].concat()))
            }
            Fault::Busy => Servers::One(Server::start_with(kind, &["--busy-reply-threshold", "5"])),
            Fault::ClusterDown => Servers::One(Server::start_alone_in_cluster(kind)),
            Fault::ClockJumps => Servers::One(Server::start_with_clock(kind)),
            Fault::Failover => {
                let group = SentinelGroup::start(kind, &[], &[]);
                group.wait_until_discovered();
                Servers::SentinelGroup(group)
            }
            Fault::SlotMove => Servers::Cluster(Cluster::start(kind, 3, false)),
            Fault::Promotion => Servers::Cluster(Cluster::start(kind, 3, true)),
            _ => Servers::One(Server::start(kind)),
        });
        let limit = if matches!(fault.effect(), Effect::Outage(_)) { scale.tight } else { scale.wide };
        let mut environment = Self { servers, proxy: None, url: String::new(), limit };
        environment.url = match &environment.servers {
            Servers::One(server) => server.url(),
            Servers::SentinelGroup(group) => group.url(),
            Servers::Cluster(cluster) => cluster.url(),
        };
        if fault.of_network().is_some() {
            let proxy = Proxy::start(environment.server().port(), &key(scale, limit)[..7]).await;
            environment.url = format!("redis://127.0.0.1:{}", proxy.port());
            environment.proxy = Some(proxy);
        }
        if fault == Fault::Loading {
            block_in_place(|| fill_for_loading(environment.server()));
        }
        environment
    }

    pub(super) async fn inject(&mut self, fault: Fault, scale: &Scale, instances: &[Arc<Instance>], load: &Load) {
        if let (Some(proxy), Some(fault)) = (&self.proxy, fault.of_network()) {
            proxy.inject(fault).await;
        }
        match fault {
            Fault::Hang => self.server().hang(),
            Fault::Unavailable | Fault::DataLost => block_in_place(|| self.server_mut().kill()),
            Fault::Loading => block_in_place(|| self.server_mut().restart_with(&["--key-load-delay", "20000"])),
            Fault::OutOfMemory => {
                self.command("CONFIG SET maxmemory-policy noeviction");
                self.command("CONFIG SET maxmemory 1");
            }
            Fault::ReadOnly => self.command(&format!("REPLICAOF 127.0.0.1 {}", free_port())),
            Fault::ClusterDown => self.command(&format!("CLUSTER DELSLOTS {}", self.other_slot(scale))),
            Fault::Busy => block_in_place(|| run_endless_script(self.server())),
            Fault::NoScript => {
                for _ in 0..10 {
                    self.command("SCRIPT FLUSH");
                    load.continue_for(2).await;
                }
            }
            Fault::ClockJumps => {
                for seconds in [600, -600, 0] {
                    block_in_place(|| self.server().move_clock(seconds));
                    load.continue_for(5).await;
                }
            }
            Fault::InstanceRestart => {
                instances[0].restart(&self.url, scale.rules(self.limit), options()).await;
            }
            Fault::Flood => flood(instances).await,
            Fault::SlotMove => self.move_slot(scale, load).await,
            Fault::Failover => block_in_place(|| self.server_mut().kill()),
            Fault::Promotion => {
                let slot = self.slot(scale);
                let Servers::Cluster(cluster) = &mut self.servers else { panic!("this fault needs a cluster") };
                let owner = cluster.first_owner(slot);
                block_in_place(|| cluster.servers[owner].kill());
            }
            _ => {}
        }
    }

    /// Ends `fault`, unless it ends by itself.
    pub(super) async fn repair(&mut self, fault: Fault, scale: &Scale) {
        if let Some(proxy) = &self.proxy {
            proxy.inject(NetworkFault::None).await;
        }
        match fault {
            Fault::Hang => self.server().resume(),
            Fault::Unavailable | Fault::DataLost => block_in_place(|| self.server_mut().restart_with(&[])),
            Fault::Loading => self.command("CONFIG SET key-load-delay 0"),
            Fault::OutOfMemory => self.command("CONFIG SET maxmemory 0"),
            Fault::ReadOnly => self.command("REPLICAOF NO ONE"),
            Fault::ClusterDown => self.command(&format!("CLUSTER ADDSLOTS {}", self.other_slot(scale))),
            Fault::Busy => self.command("SCRIPT KILL"),
            _ => {}
        }
    }
}

impl FaultEnvironment {
    /// The ports of the servers that decide.
    pub(super) fn ports(&self) -> Vec<u16> {
        match (&self.servers, &self.proxy) {
            (_, Some(proxy)) => vec![proxy.port()],
            (Servers::Cluster(cluster), _) => cluster.servers.iter().map(Server::port).collect(),
            _ => vec![self.server().port()],
        }
    }

    /// The tenant of requests that hold slots: that of all others, so that they meet the fault in a cluster; or another one, so that the
    /// proxy does not count them.
    pub(super) const fn lease_tenant(&self) -> &'static str {
        if self.proxy.is_some() { "globex" } else { TENANT }
    }

    fn server(&self) -> &Server {
        match &self.servers {
            Servers::One(server) => server,
            Servers::SentinelGroup(group) => &group.primary,
            Servers::Cluster(cluster) => &cluster.servers[0],
        }
    }

    fn server_mut(&mut self) -> &mut Server {
        match &mut self.servers {
            Servers::One(server) => server,
            Servers::SentinelGroup(group) => &mut group.primary,
            Servers::Cluster(cluster) => &mut cluster.servers[0],
        }
    }

    fn command(&self, words: &str) {
        block_in_place(|| self.server().command::<redis::Value>(words));
    }

    fn slot(&self, scale: &Scale) -> u16 {
        let name = key(scale, self.limit);
        redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut self.server().connection()).unwrap()
    }

    fn other_slot(&self, scale: &Scale) -> u16 {
        (self.slot(scale) + 1) % 16_384
    }

    async fn move_slot(&self, scale: &Scale, load: &Load) {
        let Servers::Cluster(cluster) = &self.servers else { panic!("this fault needs a cluster") };
        let slot = self.slot(scale);
        let home = cluster.first_owner(slot);
        let away = (home + 1) % 3;
        let met = |code: &str| (0..3).map(|index| cluster.servers[index].errors(code)).sum::<u64>();
        let before = (met("ASK"), met("MOVED"));
        for (source, target) in [(home, away), (away, home), (home, away), (away, home)] {
            block_in_place(|| cluster.start_slot_move(slot, source, target));
            load.continue_for(2).await;
            block_in_place(|| cluster.move_keys(slot, source, target));
            load.continue_for(2).await;
            block_in_place(|| cluster.finish_slot_move(slot, target));
            load.continue_for(2).await;
        }
        assert!(met("ASK") > before.0 && met("MOVED") > before.1, "nobody noticed that the slot moved");
    }
}

/// The key name of the first policy. The keys of the others have the same prefix, since all belong to one tenant.
fn key(scale: &Scale, limit: u64) -> Vec<u8> {
    let limiter = Limiter::new(scale.rules(limit), MemoryStore::new());
    let name = |policy| key_name(limiter.plan(&request(policy)).checks()[0].key());
    let names = POLICIES.map(name);
    assert!(names.iter().all(|name| name[..7] == names[0][..7]), "one tenant, one slot");
    names[0].clone()
}

/// Gives the server a thousand keys to load at its next start.
fn fill_for_loading(server: &Server) {
    let (mut connection, value) = (server.connection(), "x".repeat(2_000));
    let mut pipeline = redis::pipe();
    for number in 0..1_000 {
        pipeline.set(format!("foreign:{number}"), &value).ignore();
    }
    pipeline.query::<()>(&mut connection).unwrap();
    server.command::<redis::Value>("BGREWRITEAOF");
    server.wait_for("INFO", "persistence", "aof_rewrite_in_progress:0");
    server.wait_for("INFO", "persistence", "aof_rewrite_scheduled:0");
}

/// Runs a script that ends only when it is killed.
fn run_endless_script(server: &Server) {
    let mut connection = server.connection();
    thread::spawn(move || redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut connection));
}

/// Sends one request of each of many new anonymous subjects.
async fn flood(instances: &[Arc<Instance>]) {
    let mut running = JoinSet::new();
    for (place, instance) in instances.iter().cycle().take(8).enumerate() {
        let limiter = instance.now();
        running.spawn(async move {
            for number in 0..FLOOD_SUBJECTS / 8 {
                let address = format!("{place}/{number}");
                let decision = limiter.check(&Request::new("flood").with_attribute("address", &address)).await.unwrap();
                assert!(decision.is_allowed(), "{decision:?}");
            }
        });
    }
    running.join_all().await;
}
