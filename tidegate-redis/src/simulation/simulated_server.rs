//! `SimulatedServer`: a server that exists only in the simulation. It uses the Redis protocol over an in-memory pipe, so
//! that the client side is real down to the bytes, and behaves as the scenario sets it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError, RedisResult};
use tidegate::Limit;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::args::micros;
use crate::scripts::SCRIPTS;
use crate::timer;

/// The connection timeout of the client library.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Size of the in-memory pipe of one connection.
const PIPE_BYTES: usize = 1 << 20;

/// The time of the simulated server, which does not advance.
const NOW_MICROS: u64 = 1_800_000_000_000_000;

/// How the server treats connections and commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerBehavior {
    /// Replies after up to this many milliseconds.
    Responds(u64),
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

/// A server with one fixed window, and a record of all calls. Every call has a cost of its own, which identifies it.
pub(crate) struct SimulatedServer {
    state: Mutex<SimulatedState>,
    changed: Notify,
    limit: u64,
    window_micros: u64,
}

struct SimulatedState {
    behavior: ServerBehavior,
    healthy_since: Option<Instant>,
    connected_at: Option<Instant>,
    rng: Rng,
    /// Incremented when all connections are lost.
    incarnation: u64,
    has_script: bool,
    taken: u64,
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
    pub(crate) lost_connections: u64,
}

/// A call that the server has run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedCall {
    pub(crate) admitted: bool,
    /// When the reply was sent.
    pub(crate) replied_at: Option<Instant>,
}

/// What happens to a connection after a command.
enum NextStep {
    Reply(Vec<u8>),
    Ignore,
    /// Closes after sending these bytes.
    Close(Vec<u8>),
}

/// Control and inspection
impl SimulatedServer {
    pub(crate) fn new(seed: u64, limit: &Limit) -> Arc<Self> {
        let Limit::FixedWindow(window) = limit else { panic!("only fixed windows are simulated") };
        let (limit, window_micros) = (window.limit(), micros(window.window().duration().unwrap_or_default()));
        let state = SimulatedState {
            behavior: HEALTHY,
            healthy_since: Some(timer::now()),
            connected_at: None,
            rng: Rng::with_seed(seed),
            incarnation: 0,
            has_script: false,
            taken: 0,
            calls: BTreeMap::new(),
            counters: ServerCounters::default(),
            violation: None,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new(), limit, window_micros })
    }

    pub(crate) fn set_behavior(&self, behavior: ServerBehavior) {
        let mut state = self.lock();
        if matches!(behavior, ServerBehavior::Down | ServerBehavior::Unreachable) {
            state.incarnation += 1;
            state.counters.lost_connections += 1;
            state.has_script = false;
        }
        state.healthy_since = (behavior == HEALTHY).then(|| state.healthy_since.unwrap_or_else(timer::now));
        state.behavior = behavior;
        self.changed.notify_waiters();
    }

    pub(crate) fn flush_scripts(&self) {
        self.lock().has_script = false;
    }

    /// The call of this cost, if the server has run it.
    pub(crate) fn served_call(&self, cost: u64) -> Option<ServedCall> {
        self.lock().calls.get(&cost).copied()
    }

    /// The sum of the admitted costs.
    pub(crate) fn taken(&self) -> u64 {
        self.lock().taken
    }

    pub(crate) fn counters(&self) -> ServerCounters {
        self.lock().counters
    }

    /// Whether it has been healthy since before the last connection, for long enough to have answered its `PING`.
    pub(crate) fn is_healthy_since_connect(&self) -> bool {
        let state = self.lock();
        let answered_ping = |connected: Instant| connected.elapsed() > Duration::from_millis(2);
        let since = state.healthy_since.zip(state.connected_at);
        since.is_some_and(|(healthy, connected)| healthy < connected && answered_ping(connected))
    }

    /// A violation that the server itself has noticed, such as a call that ran twice.
    pub(crate) fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }
}

/// Serving
impl SimulatedServer {
    pub(crate) async fn connect(
        self: &Arc<Self>,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let connection = async {
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
            let info = RedisConnectionInfo::default();
            let (connection, driver) =
                MultiplexedConnection::new_with_config(&info, client_end, config.clone()).await?;
            tokio::spawn(driver);
            let mut state = self.lock();
            state.counters.connections += 1;
            state.connected_at = Some(timer::now());
            Ok(connection)
        };
        let timed_out = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        timer::timeout(CONNECT_TIMEOUT, connection).await.unwrap_or_else(timed_out)
    }

    async fn serve(self: Arc<Self>, mut stream: DuplexStream) {
        let incarnation = self.lock().incarnation;
        let (mut bytes, mut ignores) = (Vec::new(), false);
        loop {
            while let (false, Some(command)) = (ignores, take_command(&mut bytes)) {
                let (reply, closes) = match self.run(incarnation, &command).await {
                    NextStep::Reply(reply) => (reply, false),
                    NextStep::Ignore => (Vec::new(), false),
                    NextStep::Close(reply) => (reply, true),
                };
                ignores = reply.is_empty();
                self.lock().counters.replies += u64::from(!ignores && !closes);
                self.lock().counters.lost_connections += u64::from(closes);
                if stream.write_all(&reply).await.is_err() || closes {
                    return;
                }
            }
            let lost = async {
                loop {
                    let changed = self.changed.notified();
                    if self.lock().incarnation != incarnation {
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

    async fn run(&self, incarnation: u64, command: &[Vec<u8>]) -> NextStep {
        let delay = match self.behavior() {
            ServerBehavior::Responds(max_millis) => self.lock().rng.u64(..=max_millis),
            _ => 0,
        };
        timer::sleep(Duration::from_millis(delay)).await;
        loop {
            let changed = self.changed.notified();
            if self.behavior() != ServerBehavior::Hangs {
                break;
            }
            changed.await;
        }
        let mut state = self.lock();
        if state.incarnation != incarnation {
            return NextStep::Close(Vec::new());
        }
        let is_call = command[0] == b"EVALSHA";
        match state.behavior {
            ServerBehavior::Ignores => return NextStep::Ignore,
            ServerBehavior::RepliesError(code) if is_call => {
                return NextStep::Reply(format!("-{code} not now\r\n").into_bytes());
            }
            ServerBehavior::ClosesBeforeCall if is_call => return NextStep::Close(Vec::new()),
            _ => {}
        }
        let reply = self.reply(&mut state, command);
        match state.behavior {
            ServerBehavior::ClosesAfterCall if is_call => NextStep::Close(Vec::new()),
            ServerBehavior::ClosesWithinReply if is_call => NextStep::Close(reply[..reply.len() / 2].to_vec()),
            _ => {
                let call = cost_of(command).and_then(|cost| state.calls.get_mut(&cost));
                if let (true, Some(call)) = (is_call, call) {
                    call.replied_at = Some(timer::now());
                }
                NextStep::Reply(reply)
            }
        }
    }

    fn reply(&self, state: &mut SimulatedState, command: &[Vec<u8>]) -> Vec<u8> {
        match command[0].as_slice() {
            b"PING" => b"+PONG\r\n".to_vec(),
            b"SCRIPT" => {
                state.has_script = true;
                bulk_string(SCRIPTS.all().nth(2).expect("the script of a fixed window").get_hash().as_bytes())
            }
            b"EVALSHA" if !state.has_script => b"-NOSCRIPT no such script\r\n".to_vec(),
            b"EVALSHA" => {
                let cost = cost_of(command).expect("a cost");
                // The same as decide_one.lua with a fixed window.
                let before = state.taken;
                let admitted = before + cost <= self.limit;
                state.taken += if admitted { cost } else { 0 };
                if state.calls.insert(cost, ServedCall { admitted, replied_at: None }).is_some() {
                    state.violation = Some(format!("the call of cost {cost} ran twice"));
                }
                let letter = if admitted { b";a" } else { b";A" };
                let window = NOW_MICROS / self.window_micros;
                let stored = if before == 0 { String::new() } else { format!("{before}{window:010}") };
                bulk_string(&[&(NOW_MICROS as f64).to_le_bytes()[..], letter, stored.as_bytes()].concat())
            }
            _ => b"+OK\r\n".to_vec(),
        }
    }

    fn behavior(&self) -> ServerBehavior {
        self.lock().behavior
    }

    fn lock(&self) -> MutexGuard<'_, SimulatedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cost of a call: the first of the packed numbers.
fn cost_of(command: &[Vec<u8>]) -> Option<u64> {
    let numbers = command.get(4)?.first_chunk()?;
    Some(f64::from_le_bytes(*numbers) as u64)
}

fn bulk_string(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Takes the next complete command from the front of `bytes`.
fn take_command(bytes: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let count = take_number(bytes, &mut at)?;
    let mut arguments = Vec::with_capacity(count);
    for _ in 0..count {
        let length = take_number(bytes, &mut at)?;
        arguments.push(bytes.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= bytes.len()).then(|| drop(bytes.drain(..at)))?;
    Some(arguments)
}

/// Reads the number of a line such as `*3` or `$11`.
fn take_number(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let end = *at + bytes.get(*at..)?.windows(2).position(|pair| pair == b"\r\n")?;
    let number = std::str::from_utf8(&bytes[*at + 1..end]).ok()?.parse().ok()?;
    *at = end + 2;
    Some(number)
}
