//! `SimulatedServer`: a server that exists only in the simulation. It uses the Redis protocol over an in-memory pipe, so
//! that the client side is real down to the bytes, and behaves as the scenario sets it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use redis::{RedisError, RedisResult};
use tidegate::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::script_call::{DecidedCheck, ScriptCall, bulk_string, take_command};
use crate::server_stream::ServerStream;
use crate::timer;

/// Size of the in-memory pipe of one connection.
const PIPE_BYTES: usize = 1 << 20;

/// How the server treats connections and commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerBehavior {
    /// Replies after up to this many milliseconds.
    Responds(u64),
    /// Likewise, and half of each reply comes half of that time before the rest.
    Drips(u64),
    /// Sends one byte of a reply every ten milliseconds.
    Trickles,
    /// Runs the script, and answers only some of its plans.
    AnswersSome,
    /// Stops, and continues with the commands it has received when its behavior changes.
    Hangs,
    /// Reads commands, but neither runs them nor replies, for as long as the connection lasts.
    Ignores,
    /// Closes the connection instead of running a script.
    ClosesBeforeCall,
    /// Runs the script, and closes the connection instead of replying.
    ClosesAfterCall,
    /// Runs the script, and closes the connection in the middle of the reply.
    ClosesWithinReply,
    /// Replies to scripts with an error of this code.
    RepliesError(&'static str),
    /// Refuses connections, and loses those that exist.
    Down,
    /// Does not react to connection attempts, and loses the connections that exist.
    Unreachable,
}

/// A server that responds in time, even to all callers at once.
pub(crate) const HEALTHY: ServerBehavior = ServerBehavior::Responds(1);

/// A server with fixed windows, and a record of all plans. Every plan has a cost of its own, which identifies it.
pub(crate) struct SimulatedServer {
    state: Mutex<SimulatedState>,
    changed: Notify,
}

struct SimulatedState {
    behavior: ServerBehavior,
    healthy_since: Option<Instant>,
    connected_at: Option<Instant>,
    rng: Rng,
    /// Incremented when all connections are lost.
    incarnation: u64,
    /// The hashes of the scripts that it knows.
    scripts: BTreeSet<String>,
    /// The sum of the admitted costs, by key.
    taken: BTreeMap<Vec<u8>, u64>,
    /// By cost.
    calls: BTreeMap<u64, ServedCall>,
    counters: ServerCounters,
    violation: Option<String>,
}

/// How often something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerCounters {
    pub(crate) connections: u64,
    pub(crate) replies: u64,
    /// Parts of replies.
    pub(crate) parts: u64,
    pub(crate) lost_connections: u64,
}

/// A plan that the server has decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedCall {
    pub(crate) admitted: bool,
    /// When the whole reply was sent.
    pub(crate) replied_at: Option<Instant>,
}

/// What happens to a connection after a command.
enum NextStep {
    /// Sends the parts of a reply, each after a pause. The reply answers the plans of these costs.
    Reply(Vec<(Duration, Vec<u8>)>, Vec<u64>),
    Ignore,
    /// Closes after sending these bytes.
    Close(Vec<u8>),
}

/// Control and inspection
impl SimulatedServer {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let state = SimulatedState {
            behavior: HEALTHY,
            healthy_since: Some(timer::now()),
            connected_at: None,
            rng: Rng::with_seed(seed),
            incarnation: 0,
            scripts: BTreeSet::new(),
            taken: BTreeMap::new(),
            calls: BTreeMap::new(),
            counters: ServerCounters::default(),
            violation: None,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    pub(crate) fn set_behavior(&self, behavior: ServerBehavior) {
        let mut state = self.state.lock();
        if matches!(behavior, ServerBehavior::Down | ServerBehavior::Unreachable) {
            state.incarnation += 1;
            state.counters.lost_connections += 1;
            state.scripts.clear();
        }
        state.healthy_since = (behavior == HEALTHY).then(|| state.healthy_since.unwrap_or_else(timer::now));
        state.behavior = behavior;
        self.changed.notify_waiters();
    }

    pub(crate) fn flush_scripts(&self) {
        self.state.lock().scripts.clear();
    }

    /// The call of this cost, if the server has run it.
    pub(crate) fn served_call(&self, cost: u64) -> Option<ServedCall> {
        self.state.lock().calls.get(&cost).copied()
    }

    /// The sums of the admitted costs of each key.
    pub(crate) fn taken(&self) -> Vec<u64> {
        self.state.lock().taken.values().copied().collect()
    }

    pub(crate) fn counters(&self) -> ServerCounters {
        self.state.lock().counters
    }

    /// Whether it has been healthy since before the last connection, for long enough to have answered its trial.
    pub(crate) fn is_healthy_since_connect(&self) -> bool {
        let state = self.state.lock();
        let answered_trial = |connected: Instant| connected.elapsed() > Duration::from_millis(2);
        let since = state.healthy_since.zip(state.connected_at);
        since.is_some_and(|(healthy, connected)| healthy < connected && answered_trial(connected))
    }

    /// A violation that the server itself has noticed, such as a call that ran twice.
    pub(crate) fn violation(&self) -> Option<String> {
        self.state.lock().violation.clone()
    }
}

/// Serving
impl SimulatedServer {
    pub(crate) async fn connect(self: &Arc<Self>) -> RedisResult<ServerStream> {
        loop {
            let changed = self.changed.notified();
            match self.behavior() {
                ServerBehavior::Down => {
                    return Err(RedisError::from(io::Error::from(io::ErrorKind::ConnectionRefused)));
                }
                ServerBehavior::Unreachable => changed.await,
                _ => break,
            }
        }
        let (client_end, server_end) = tokio::io::duplex(PIPE_BYTES);
        tokio::spawn(Arc::clone(self).serve(server_end));
        let mut state = self.state.lock();
        state.counters.connections += 1;
        state.connected_at = Some(timer::now());
        Ok(ServerStream::Simulated(client_end))
    }

    async fn serve(self: Arc<Self>, mut stream: DuplexStream) {
        let incarnation = self.state.lock().incarnation;
        let (mut bytes, mut ignores) = (Vec::new(), false);
        loop {
            while let (false, Some(command)) = (ignores, take_command(&mut bytes)) {
                match self.run(incarnation, &command).await {
                    NextStep::Reply(parts, costs) => {
                        for (pause, part) in parts {
                            timer::sleep(pause).await;
                            if self.state.lock().incarnation != incarnation || stream.write_all(&part).await.is_err() {
                                return;
                            }
                            self.state.lock().counters.parts += 1;
                        }
                        self.record_replied(&costs);
                    }
                    NextStep::Ignore => ignores = true,
                    NextStep::Close(reply) => {
                        self.state.lock().counters.lost_connections += 1;
                        let _ = stream.write_all(&reply).await;
                        return;
                    }
                }
            }
            let lost = async {
                loop {
                    let changed = self.changed.notified();
                    if self.state.lock().incarnation != incarnation {
                        return;
                    }
                    changed.await;
                }
            };
            tokio::select! {
                biased;
                () = lost => return,
                read = stream.read_buf(&mut bytes) => if !read.is_ok_and(|read| read > 0) { return },
            }
        }
    }

    fn record_replied(&self, costs: &[u64]) {
        let mut state = self.state.lock();
        state.counters.replies += 1;
        for cost in costs {
            if let Some(call) = state.calls.get_mut(cost) {
                call.replied_at = Some(timer::now());
            }
        }
    }

    async fn run(&self, incarnation: u64, command: &[Vec<u8>]) -> NextStep {
        let max_delay = match self.behavior() {
            ServerBehavior::Responds(millis) | ServerBehavior::Drips(millis) => millis,
            _ => 0,
        };
        let mut delay = Duration::from_millis(self.state.lock().rng.u64(..=max_delay));
        let drips = matches!(self.behavior(), ServerBehavior::Drips(_));
        if drips {
            delay /= 2;
        }
        timer::sleep(delay).await;
        loop {
            let changed = self.changed.notified();
            if self.behavior() != ServerBehavior::Hangs {
                break;
            }
            changed.await;
        }
        let mut state = self.state.lock();
        if state.incarnation != incarnation {
            return NextStep::Close(Vec::new());
        }
        let is_call = command[0] == b"EVALSHA";
        match state.behavior {
            ServerBehavior::Ignores => return NextStep::Ignore,
            ServerBehavior::RepliesError(code) if is_call => {
                let reply = format!("-{code} not now\r\n").into_bytes();
                return NextStep::Reply(vec![(Duration::ZERO, reply)], Vec::new());
            }
            ServerBehavior::ClosesBeforeCall if is_call => return NextStep::Close(Vec::new()),
            _ => {}
        }
        let (reply, costs) = state.reply(command);
        match state.behavior {
            ServerBehavior::ClosesAfterCall if is_call => NextStep::Close(Vec::new()),
            ServerBehavior::ClosesWithinReply if is_call => NextStep::Close(reply[..reply.len() / 2].to_vec()),
            // What is missing of its reply makes it malformed, so nobody gets it.
            ServerBehavior::AnswersSome if is_call => NextStep::Reply(vec![(Duration::ZERO, reply)], Vec::new()),
            ServerBehavior::Trickles => {
                let pause = Duration::from_millis(10);
                NextStep::Reply(reply.into_iter().map(|byte| (pause, vec![byte])).collect(), costs)
            }
            _ if drips => {
                let (first, rest) = reply.split_at(reply.len() / 2);
                NextStep::Reply(vec![(Duration::ZERO, first.to_vec()), (delay, rest.to_vec())], costs)
            }
            _ => NextStep::Reply(vec![(Duration::ZERO, reply)], costs),
        }
    }

    fn behavior(&self) -> ServerBehavior {
        self.state.lock().behavior
    }
}

impl SimulatedState {
    /// The reply to `command`, and the costs of the plans that it answers.
    fn reply(&mut self, command: &[Vec<u8>]) -> (Vec<u8>, Vec<u64>) {
        match command[0].as_slice() {
            b"SCRIPT" => {
                let hash = redis::Script::new(&String::from_utf8_lossy(&command[2])).get_hash().to_owned();
                let reply = bulk_string(hash.as_bytes());
                self.scripts.insert(hash);
                (reply, Vec::new())
            }
            b"EVALSHA" if !self.scripts.contains(&*String::from_utf8_lossy(&command[1])) => {
                (b"-NOSCRIPT no such script\r\n".to_vec(), Vec::new())
            }
            b"EVALSHA" => {
                let mut call = ScriptCall::decode(command);
                if self.behavior == ServerBehavior::AnswersSome {
                    call.answers_some = true;
                }
                let costs = call.plans.iter().map(|plan| plan.cost).collect();
                let decided = call.plans.iter().map(|plan| self.decide(&plan.key, plan.cost, plan.limit)).collect();
                (call.reply(decided), costs)
            }
            _ => (b"+OK\r\n".to_vec(), Vec::new()),
        }
    }

    /// The same as the scripts do with a fixed window.
    fn decide(&mut self, key: &[u8], cost: u64, limit: u64) -> DecidedCheck {
        let taken = self.taken.entry(key.to_vec()).or_insert(0);
        let before = *taken;
        let admitted = before + cost <= limit;
        *taken += if admitted { cost } else { 0 };
        if self.calls.insert(cost, ServedCall { admitted, replied_at: None }).is_some() {
            self.violation = Some(format!("the plan of cost {cost} ran twice"));
        }
        DecidedCheck { admitted, before }
    }
}
