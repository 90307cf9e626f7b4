//! `Target`: a store, the instances on it, and the service behind their gateways.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::limits::Penalty;
use tidegate::{Limiter, Request, Rule, RuleMode, RuleSet};
use tidegate_redis::{BreakerState, RedisOptions, RedisStore, ServerState};
use tidegate_rules::RuleFile;
use tidegate_tower::LimitLayer;
use tokio::task::{AbortHandle, block_in_place};

use super::attack::{Attack, Door, StoreState};
use super::scale::TIMEOUT;
use crate::suite::Answer;
use crate::traffic::Upstream;
use conformance::http_client::HttpClient;
use conformance::proxy::{NetworkFault, Proxy};
use conformance::server::{Kind, Server};
use conformance::suite::{connect_store, limits_of_every_kind, one_limit_of_each_kind, start_gateway, wait_until};

/// The header with the API key, as the rules and the gateway know it.
pub(super) const KEY_HEADER: &str = "x-api-key";
const KEY_ATTRIBUTE: &str = "header:x-api-key";

/// The actions of [`Attack::MixedBurst`]: a rule for each kind of limit, all kinds in one plan, a rule beside a
/// shadow rule, and one with a penalty.
pub(super) const MIXED_ACTIONS: [&str; 10] = [
    "token_bucket",
    "leaky_bucket",
    "fixed_window",
    "sliding_log",
    "sliding_window",
    "quota",
    "concurrency",
    "several",
    "shadowed",
    "penalized",
];

/// The addresses that the store remembers under [`Attack::SubjectFlood`].
pub(super) const MAX_SUBJECTS: u64 = 1_000;

/// A store, the instances on it, and the service behind their gateways.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) instances: Vec<Instance>,
    pub(super) attack: Attack,
    pub(super) proxy: Proxy,
    server: Server,
    /// The requests that reached the service, by API key.
    reached: Arc<Mutex<BTreeMap<String, u64>>>,
    /// The service and the gateways.
    running: Vec<AbortHandle>,
}

/// An instance: its limiter, and its gateway.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) limiter: Arc<Limiter<RedisStore>>,
    pub(super) gateway: SocketAddr,
}

#[derive(Debug)]
pub(super) enum Client {
    Library(Arc<Limiter<RedisStore>>),
    Http(HttpClient, SocketAddr),
}

impl Target {
    pub(super) async fn start(attack: Attack, kind: Kind) -> Self {
        let server = block_in_place(|| Server::start(kind));
        let proxy = Proxy::start(server.port(), b"EVALSHA\r\n").await;
        let (service, reached) = (Upstream::bind().unwrap(), Arc::<Mutex<BTreeMap<String, u64>>>::default());
        let (upstream, counting) = (service.address().unwrap(), Arc::clone(&reached));
        let serving = service.serve(move |headers| {
            let key = headers.get(KEY_HEADER).and_then(|key| key.to_str().ok()).unwrap_or_default();
            *counting.lock().unwrap().entry(key.to_owned()).or_default() += 1;
        });
        let (mut running, mut instances) = (vec![tokio::spawn(serving).abort_handle()], Vec::new());
        for _ in 0..attack.instances() {
            let url = format!("redis://127.0.0.1:{}", proxy.port());
            let store = connect_store(&url, &RedisOptions::new().with_timeout(TIMEOUT)).await;
            let layer = LimitLayer::new(Limiter::new(rules(attack), store));
            let limiter = layer.handle().limiter();
            let (gateway, serving) = start_gateway(upstream, layer).await;
            instances.push(Instance { limiter, gateway });
            running.push(serving);
        }
        Self { instances, attack, proxy, server, reached, running }
    }

    pub(super) const fn door(&self) -> Door {
        self.attack.row().1
    }

    pub(super) async fn enter(&self, state: StoreState) {
        match state {
            StoreState::Well => {}
            StoreState::Slow(millis) => {
                self.proxy.inject(NetworkFault::DelayReplies(Duration::from_millis(millis))).await;
            }
            StoreState::Silent => self.proxy.inject(NetworkFault::Blackhole).await,
            StoreState::Full => self.set_maxmemory("1"),
        }
    }

    /// Makes the store well again, and waits until every instance uses it.
    pub(super) async fn recover(&self) {
        self.proxy.inject(NetworkFault::None).await;
        self.set_maxmemory("0");
        let are_used = || self.server_states().all(|server| server.breaker == BreakerState::Closed);
        let details = || format!("{:?}", self.server_states().collect::<Vec<_>>());
        wait_until("the instances do not use the store again", are_used, details).await;
    }

    /// Leaves the store room for about `bytes` more.
    pub(super) fn leave_room(&self, bytes: u64) {
        let used = block_in_place(|| self.server.number("INFO memory", "used_memory:"));
        self.set_maxmemory(&(used + bytes).to_string());
    }

    /// Whether the store has refused a command because its memory is full.
    pub(super) fn was_full(&self) -> bool {
        block_in_place(|| self.server.errors("OOM")) > 0
    }

    /// A client of the instance number `index`, modulo their number.
    pub(super) fn client(&self, index: usize) -> Client {
        let instance = &self.instances[index % self.instances.len()];
        match self.door() {
            Door::Gateway => Client::Http(HttpClient::default(), instance.gateway),
            Door::Library => Client::Library(Arc::clone(&instance.limiter)),
        }
    }

    /// The requests that reached the service, by API key, of those keys that begin with `prefix`.
    pub(super) fn reached(&self, prefix: &str) -> BTreeMap<String, u64> {
        let counts = self.reached.lock().unwrap();
        counts.iter().filter(|(key, _)| key.starts_with(prefix)).map(|(key, count)| (key.clone(), *count)).collect()
    }

    pub(super) fn server_states(&self) -> impl Iterator<Item = ServerState> {
        self.instances.iter().flat_map(|instance| instance.limiter.store().server_states())
    }

    fn set_maxmemory(&self, bytes: &str) {
        block_in_place(|| {
            self.server.command::<()>("CONFIG SET maxmemory-policy noeviction");
            self.server.command::<()>(&format!("CONFIG SET maxmemory {bytes}"));
        });
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.running.iter().for_each(AbortHandle::abort);
    }
}

/// A request with this API key. If the key is an address, the request comes from that, through a proxy.
pub(super) fn request_text(key: &str) -> String {
    let forwarded = if key.parse::<IpAddr>().is_ok() { format!("x-forwarded-for: {key}\r\n") } else { String::new() };
    format!("GET / HTTP/1.1\r\nhost: a\r\n{KEY_HEADER}: {key}\r\n{forwarded}\r\n")
}

impl Client {
    pub(super) async fn connect(&mut self) {
        if let Self::Http(client, gateway) = self {
            // Without a connection, the first request opens one.
            let _ = client.connect(*gateway).await;
        }
    }

    pub(super) async fn send(&mut self, key: &str) -> Answer {
        match self {
            Self::Library(limiter) => check(limiter, "", key).await,
            Self::Http(client, gateway) => {
                let response = client.send(*gateway, request_text(key).as_bytes()).await;
                match response.map(|response| response.status) {
                    Ok(200) => Answer::Allowed,
                    Ok(429) => Answer::Denied,
                    _ => Answer::Refused,
                }
            }
        }
    }
}

pub(super) async fn check(limiter: &Limiter<RedisStore>, action: &str, key: &str) -> Answer {
    match limiter.check(&Request::new(action).with_attribute(KEY_ATTRIBUTE, key)).await {
        Ok(decision) if decision.is_allowed() => Answer::Allowed,
        Ok(_) => Answer::Denied,
        Err(_) => Answer::Refused,
    }
}

/// A rule for addresses behind a proxy, of which the store remembers [`MAX_SUBJECTS`].
fn rules_by_address(limit: u64) -> RuleSet {
    let text = format!(
        "version: 1\nidentify: {{ trusted_proxies: [127.0.0.0/8] }}\nrules:\n- {{ id: api, per: ip, token_bucket: {{ capacity: {limit}, \
         refill: 1/h }}, anonymous: {{ most: {MAX_SUBJECTS} }} }}\n"
    );
    RuleFile::parse("rules.yaml", &text).unwrap_or_else(|report| panic!("{report}")).rules().clone()
}

/// One rule for all clients, and those of [`MIXED_ACTIONS`]. All leave their failure policy at its default. In the library, the denial
/// cache is off, so that every call reaches the store.
fn rules(attack: Attack) -> RuleSet {
    if attack == Attack::SubjectFlood {
        return rules_by_address(attack.limit());
    }
    let kinds = limits_of_every_kind(attack.limit());
    let caches = attack.row().1 == Door::Gateway;
    let rule = |rule: Rule, action: &str| rule.with_action(action).with_per([KEY_ATTRIBUTE]).with_denial_cache(caches);
    let mut rules = vec![rule(Rule::new("api", kinds[0]), "")];
    for (limit, action) in kinds.into_iter().zip(MIXED_ACTIONS) {
        rules.push(rule(Rule::new(action, limit), action));
    }
    let named = kinds.map(|limit| (limit.algorithm().as_str(), limit));
    rules.push(rule(Rule::from_limits("several", named), "several"));
    rules.push(rule(Rule::new("beside", kinds[0]), "several"));
    rules.push(rule(Rule::new("shadowed", kinds[0]), "shadowed"));
    rules.push(Rule::new("shadow", one_limit_of_each_kind(1)[0]).with_action("shadowed").with_mode(RuleMode::Shadow));
    let penalty = Penalty::new(3, Duration::from_mins(1), 2, Duration::from_hours(1)).unwrap();
    let penalized = Rule::new("penalized", kinds[0]).with_security().with_penalty(penalty);
    rules.push(rule(penalized, "penalized"));
    RuleSet::new(rules).unwrap()
}
