//! Carries out the attacks, and counts what the attacker gets.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use super::attack::{Attack, Door, StoreState};
use super::scale::Scale;
use super::stream_resets::{STREAMS, send_and_reset};
use super::target::{Client, MIXED_ACTIONS, Target, check, request_text};
use crate::suite::{Answer, AnswerCounts};
use conformance::suite::wait_until;

/// The API key of the attacker. What passes with it, or with a key that begins with it, counts against the bound.
const ATTACKER: &str = "attacker";
/// A key that the store does not know before it is full.
pub(super) const UNKNOWN_ATTACKER: &str = "attacker-unknown";
/// The prefix of API keys that only make noise.
const NOISE: &str = "noise";
/// Calls of a burst that is dropped.
const DROPPED_CALLS: usize = 20;
/// Connections with streams that are reset.
const RESET_CONNECTIONS: usize = 8;
/// Requests of the patient client, in limits: enough to see that none passes beyond one.
const PATIENT_LIMITS: u64 = 3;
/// Requests with each key of the attacker after the store has become full.
const REQUESTS_TO_FULL_STORE: usize = 30;
/// The memory that the store has left, and the keys and connections with which the attacker fills it, again and again.
const FREE_BYTES: u64 = 128 << 10;
const MADE_UP_KEYS: usize = 1_000;
const MADE_UP_CONNECTIONS: usize = 50;

/// Requests on each connection of a flood of addresses.
const FLOOD_REQUESTS: usize = 50;

#[derive(Debug, Default)]
pub(super) struct AttackerCounts {
    pub(super) answers: AnswerCounts,
    /// Requests whose answers nobody waited for.
    pub(super) unanswered: u64,
    /// Requests that passed, for each limit that the attacker wants to exceed.
    pub(super) passed: BTreeMap<String, u64>,
}

pub(super) struct Assault {
    attack: Attack,
    target: Arc<Target>,
    scale: Scale,
    counts: AttackerCounts,
    background: JoinSet<()>,
}

impl AttackerCounts {
    fn record(&mut self, subject: &str, answer: Answer) {
        self.answers.record(answer);
        if answer == Answer::Allowed && !subject.starts_with(NOISE) {
            *self.passed.entry(subject.to_owned()).or_default() += 1;
        }
    }

    async fn send_requests(&mut self, client: &mut Client, keys: impl IntoIterator<Item = String>) {
        for key in keys {
            self.record(&key, client.send(&key).await);
        }
    }

    fn add(&mut self, other: &Self) {
        self.answers.add(&other.answers);
        self.unanswered += other.unanswered;
        for (subject, passed) in &other.passed {
            *self.passed.entry(subject.clone()).or_default() += passed;
        }
    }
}

impl Assault {
    /// Prepares `attack` while the store is well: the attacker is known to it, and where the attack needs that, its limits are
    /// used up.
    pub(super) async fn prepare(attack: Attack, target: &Arc<Target>, scale: &Scale) -> Self {
        let (target, counts) = (Arc::clone(target), AttackerCounts::default());
        let mut assault = Self { attack, target, scale: *scale, counts, background: JoinSet::new() };
        let limit = attack.limit() as usize;
        match attack {
            Attack::MixedBurst => assault.burst(MIXED_ACTIONS.len()).await,
            Attack::ExhaustedClients => assault.flood(limit, |client, _| format!("{ATTACKER}-{client}")).await,
            Attack::MadeUpKeys => assault.send_requests(ATTACKER, limit + 1).await,
            _ => assault.send_requests(ATTACKER, 1).await,
        }
        assault
    }

    pub(super) async fn launch(&mut self, state: StoreState) {
        let Scale { requests, burst, .. } = self.scale;
        match self.attack {
            Attack::ConnectionFlood => self.flood(requests, |_, _| ATTACKER.to_owned()).await,
            Attack::LibraryBurst | Attack::MixedBurst => self.burst(burst).await,
            Attack::HangUps => self.hang_up(state).await,
            Attack::StreamResets => self.reset_streams(state).await,
            Attack::HeldFutures => self.hold_futures().await,
            Attack::MadeUpKeys => self.fill_store().await,
            Attack::ExhaustedClients => self.flood(requests, |client, _| format!("{ATTACKER}-{client}")).await,
            Attack::SubjectFlood => self.flood(FLOOD_REQUESTS, flood_address).await,
            Attack::SlowReads => self.send_without_reading(),
        }
    }

    /// What the attacker got. What passed a gateway is what its service received.
    pub(super) fn finish(mut self) -> AttackerCounts {
        self.background.abort_all();
        if self.target.door() == Door::Gateway {
            self.counts.passed = self.target.reached(ATTACKER);
        }
        self.counts
    }
}

/// Requests that are answered
impl Assault {
    async fn send_requests(&mut self, key: &str, requests: usize) {
        let keys = std::iter::repeat_n(key.to_owned(), requests);
        self.counts.send_requests(&mut self.target.client(0), keys).await;
    }

    async fn join(&mut self, running: JoinSet<AttackerCounts>) {
        running.join_all().await.iter().for_each(|counts| self.counts.add(counts));
    }

    /// Opens many connections, and then sends `requests` on each, all connections at once. `key` has the number of the connection
    /// and of the request.
    async fn flood(&mut self, requests: usize, key: fn(usize, usize) -> String) {
        let (all, mut running) = (Arc::new(Barrier::new(self.scale.connections)), JoinSet::new());
        for connection in 0..self.scale.connections {
            let (mut client, all) = (self.target.client(connection), Arc::clone(&all));
            running.spawn(async move {
                let mut counts = AttackerCounts::default();
                client.connect().await;
                all.wait().await;
                counts.send_requests(&mut client, (0..requests).map(|number| key(connection, number))).await;
                counts
            });
        }
        self.join(running).await;
    }

    /// Starts `checks` checks at the same moment, spread over the instances.
    async fn burst(&mut self, checks: usize) {
        let actions: &[&str] = if self.attack == Attack::MixedBurst { &MIXED_ACTIONS } else { &[""] };
        let (mut running, instances) = (JoinSet::new(), self.target.instances.len());
        for (index, instance) in self.target.instances.iter().enumerate() {
            let limiter = Arc::clone(&instance.limiter);
            let actions: Vec<_> = actions.iter().copied().cycle().take(checks).skip(index).step_by(instances).collect();
            running.spawn(async move {
                let mut counts = AttackerCounts::default();
                // Polls every one of them before the first is answered.
                let answers = join_all(actions.iter().map(|action| check(&limiter, action, ATTACKER))).await;
                for (action, answer) in actions.iter().zip(answers) {
                    let limit = if action.is_empty() { ATTACKER.to_owned() } else { format!("{ATTACKER} {action}") };
                    counts.record(&limit, answer);
                }
                counts
            });
        }
        self.join(running).await;
    }

    /// Fills the store with new keys, and then sends requests with one that was used up before, and with one that is new.
    async fn fill_store(&mut self) {
        self.target.leave_room(FREE_BYTES);
        let mut rounds = 0;
        while !self.target.was_full() {
            assert!(rounds < 100, "made-up keys do not fill the store");
            rounds += 1;
            let new: Vec<String> = (0..MADE_UP_KEYS).map(|number| format!("{NOISE}-{rounds}-{number}")).collect();
            let clients = new.chunks(MADE_UP_KEYS / MADE_UP_CONNECTIONS).enumerate().map(|(index, keys)| {
                let mut client = self.target.client(index);
                async move {
                    let mut counts = AttackerCounts::default();
                    counts.send_requests(&mut client, keys.iter().cloned()).await;
                    counts
                }
            });
            join_all(clients).await.iter().for_each(|counts| self.counts.add(counts));
        }
        self.send_requests(ATTACKER, REQUESTS_TO_FULL_STORE).await;
        self.send_requests(UNKNOWN_ATTACKER, REQUESTS_TO_FULL_STORE).await;
    }
}

/// Requests that the attacker does not wait for
impl Assault {
    /// Drops bursts of calls after a while, on all instances.
    async fn hang_up(&mut self, state: StoreState) {
        let (bursts, mut running) = (self.scale.bursts, JoinSet::new());
        for (index, instance) in self.target.instances.iter().enumerate() {
            let limiter = Arc::clone(&instance.limiter);
            running.spawn(async move {
                for burst in 0..bursts {
                    let key = format!("{NOISE}-{index}-{burst}");
                    let calls = join_all((0..DROPPED_CALLS).map(|_| check(&limiter, "", &key)));
                    let _ = timeout(patience(state, burst), calls).await;
                }
            });
        }
        self.wait_patiently(running).await;
        self.counts.unanswered += (self.target.instances.len() * bursts * DROPPED_CALLS) as u64;
    }

    /// Sends requests on HTTP/2 streams and resets them after a while.
    async fn reset_streams(&mut self, state: StoreState) {
        let (rounds, mut running) = (self.scale.bursts, JoinSet::new());
        let gateway = self.target.instances[0].gateway;
        for connection in 0..RESET_CONNECTIONS {
            running.spawn(async move {
                for round in 0..rounds {
                    let key = format!("{NOISE}-{connection}-{round}");
                    // The gateway may end a connection with many streams that are reset at once.
                    let _ = send_and_reset(gateway, &key, patience(state, round)).await;
                }
            });
        }
        self.wait_patiently(running).await;
        self.counts.unanswered += (RESET_CONNECTIONS * rounds) as u64 * u64::from(STREAMS);
    }

    /// Starts calls, polls each once, and keeps them until the end.
    async fn hold_futures(&mut self) {
        let (held, most) = (Arc::new(AtomicUsize::new(0)), self.scale.held);
        let limiters: Vec<_> = self.target.instances.iter().map(|instance| Arc::clone(&instance.limiter)).collect();
        let count = Arc::clone(&held);
        self.background.spawn(async move {
            let (mut calls, mut pace) = (Vec::new(), interval(Duration::from_millis(1)));
            loop {
                pace.tick().await;
                // Beyond that, the newest ones replace the oldest: a breaker may try the server with any call.
                for limiter in limiters.iter().cycle().take(20) {
                    let (limiter, key) =
                        (Arc::clone(limiter), format!("{NOISE}-{}", count.fetch_add(1, Ordering::SeqCst)));
                    let mut call: Pin<Box<dyn Future<Output = Answer> + Send>> =
                        Box::pin(async move { check(&limiter, "", &key).await });
                    if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                        calls.push(call);
                    }
                }
                let surplus = calls.len().saturating_sub(most);
                drop(calls.drain(..surplus));
            }
        });
        let mut starting = JoinSet::new();
        let count = Arc::clone(&held);
        starting.spawn(async move {
            wait_until("no calls are started", || count.load(Ordering::SeqCst) >= most, String::new).await;
        });
        self.wait_patiently(starting).await;
        self.counts.unanswered += held.load(Ordering::SeqCst) as u64;
    }

    /// Sends many requests on each connection and reads no response.
    fn send_without_reading(&mut self) {
        let Scale { connections, requests, .. } = self.scale;
        let gateway = self.target.instances[0].gateway;
        for _ in 0..connections {
            self.background.spawn(async move {
                let Ok(mut stream) = TcpStream::connect(gateway).await else { return };
                if stream.write_all(request_text(ATTACKER).repeat(requests).as_bytes()).await.is_ok() {
                    std::future::pending::<()>().await;
                }
            });
        }
        self.counts.unanswered += (connections * requests) as u64;
    }

    /// Sends requests with the key of the attacker, and waits for each, until `running` has ended.
    async fn wait_patiently(&mut self, running: JoinSet<()>) {
        let (ended, mut client) = (Arc::new(AtomicBool::new(false)), self.target.client(0));
        let (least, others_ended) = (PATIENT_LIMITS * self.attack.limit(), Arc::clone(&ended));
        let patient = async move {
            let (mut counts, mut pace) = (AttackerCounts::default(), interval(Duration::from_millis(1)));
            while counts.answers.total() < least || !others_ended.load(Ordering::SeqCst) {
                pace.tick().await;
                counts.record(ATTACKER, client.send(ATTACKER).await);
            }
            counts
        };
        let patient = tokio::spawn(patient);
        running.join_all().await;
        ended.store(true, Ordering::SeqCst);
        self.counts.add(&patient.await.unwrap());
    }
}

/// An address of a flood: all are of one /48, each in a /64 of its own.
fn flood_address(connection: usize, number: usize) -> String {
    format!("2001:db8:1:{:x}::1", connection * FLOOD_REQUESTS + number)
}

/// How long the attacker waits before it hangs up: not at all, or until shortly before, at or after the reply. For other states of the
/// store up to 19 ms.
fn patience(state: StoreState, number: usize) -> Duration {
    let millis = match state {
        StoreState::Slow(delay) => [0, delay / 2, delay.saturating_sub(2), delay, delay + 1][number % 5],
        _ => number as u64 % 20,
    };
    Duration::from_millis(millis)
}
