//! `World`: a server that only exists in a simulation. It speaks the protocol over a pipe in memory, so that everything up to
//! the bytes is the real client; what becomes of them is fate.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError, RedisResult};
use tidegate::Limit;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::draw::Draw;
use crate::patience;
use crate::scripts::SCRIPTS;

/// What becomes of what a server is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It answers after up to so many milliseconds.
    Answers(u64),
    /// It stands still, and goes on with what it has been sent when its fate changes.
    Hangs,
    /// It reads, and neither does nor says anything, for as long as the connection lasts.
    Swallows,
    /// It closes the connection instead of carrying out a call,
    BreaksBefore,
    /// after having carried it out,
    BreaksAfter,
    /// or in the middle of the answer.
    BreaksMidway,
    /// It says that it cannot.
    Refuses(&'static str),
    /// Nobody is there.
    Dead,
    /// Nobody is there, and nobody says so.
    Unreachable,
}

/// The fate of a server that is well: it answers soon enough, even if everybody asks at once.
pub(crate) const WELL: Fate = Fate::Answers(1);

/// The server, and everything that was seen there.
pub(crate) struct World {
    state: Mutex<State>,
    changed: Notify,
    limit: u64,
    window: u64,
}

struct State {
    fate: Fate,
    well_since: Option<Instant>,
    connected_at: Option<Instant>,
    draw: Draw,
    /// Bumped when connections die.
    life: u64,
    knows_script: bool,
    taken: u64,
    calls: BTreeMap<u64, Seen>,
    past: Past,
    wrong: Option<String>,
}

/// How often something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) connections: u64,
    pub(crate) replies: u64,
    pub(crate) breaks: u64,
}

/// What was seen of one call, which is known by its cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) admitted: bool,
    /// When a verdict was sent back.
    pub(crate) told: Option<Instant>,
}

/// What to do with a connection after a command.
enum Next {
    Reply(Vec<u8>),
    Nothing,
    Close(Vec<u8>),
}

impl World {
    pub(crate) fn new(seed: u64, limit: &Limit) -> Arc<Self> {
        let Limit::FixedWindow(window) = limit else { panic!("the world only counts windows") };
        let (limit, window) = (window.limit(), window.window_micros());
        let state = State {
            fate: WELL,
            well_since: Some(patience::now()),
            connected_at: None,
            draw: Draw::new(seed),
            life: 0,
            knows_script: false,
            taken: 0,
            calls: BTreeMap::new(),
            past: Past::default(),
            wrong: None,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new(), limit, window })
    }

    /// From now on its fate is another.
    pub(crate) fn meets(&self, fate: Fate) {
        let mut state = self.lock();
        if matches!(fate, Fate::Dead | Fate::Unreachable) {
            state.life += 1;
            state.past.breaks += 1;
            state.knows_script = false;
        }
        state.well_since = (fate == WELL).then(|| state.well_since.unwrap_or_else(patience::now));
        state.fate = fate;
        self.changed.notify_waiters();
    }

    pub(crate) fn forgets_scripts(&self) {
        self.lock().knows_script = false;
    }

    /// What was seen of the call of this cost.
    pub(crate) fn seen(&self, cost: u64) -> Option<Seen> {
        self.lock().calls.get(&cost).copied()
    }

    /// What was taken.
    pub(crate) fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// What happened so far.
    pub(crate) fn past(&self) -> Past {
        self.lock().past
    }

    /// Whether it was well when it was connected to last, and has been since, for long enough to have answered a PING.
    pub(crate) fn is_fine(&self) -> bool {
        let state = self.lock();
        let greeted = |connected: Instant| connected.elapsed() > Duration::from_millis(2);
        let since = state.well_since.zip(state.connected_at);
        since.is_some_and(|(well, connected)| well < connected && greeted(connected))
    }

    /// What should not have happened.
    pub(crate) fn wrong(&self) -> Option<String> {
        self.lock().wrong.clone()
    }

    pub(crate) async fn connect(
        self: &Arc<Self>,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let made = async {
            loop {
                let changed = self.changed.notified();
                match self.fate() {
                    Fate::Dead => return Err(RedisError::from(io::Error::from(io::ErrorKind::ConnectionRefused))),
                    Fate::Unreachable => changed.await,
                    _ => break,
                }
            }
            let (near, far) = tokio::io::duplex(1 << 20);
            tokio::spawn(Arc::clone(self).serve(far));
            let info = RedisConnectionInfo::default();
            let (wire, driver) = MultiplexedConnection::new_with_config(&info, near, config.clone()).await?;
            tokio::spawn(driver);
            let mut state = self.lock();
            state.past.connections += 1;
            state.connected_at = Some(patience::now());
            Ok(wire)
        };
        // As the client library does.
        let timed_out = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        patience::within(Duration::from_secs(1), made).await.unwrap_or_else(timed_out)
    }

    async fn serve(self: Arc<Self>, mut stream: DuplexStream) {
        let life = self.lock().life;
        let (mut bytes, mut deaf) = (Vec::new(), false);
        loop {
            while let (false, Some(command)) = (deaf, take_command(&mut bytes)) {
                let (reply, closes) = match self.carry_out(life, &command).await {
                    Next::Reply(reply) => (reply, false),
                    Next::Nothing => (Vec::new(), false),
                    Next::Close(reply) => (reply, true),
                };
                deaf = reply.is_empty();
                self.lock().past.replies += u64::from(!deaf && !closes);
                self.lock().past.breaks += u64::from(closes);
                if stream.write_all(&reply).await.is_err() || closes {
                    return;
                }
            }
            let died = async {
                loop {
                    let changed = self.changed.notified();
                    if self.lock().life != life {
                        return;
                    }
                    changed.await;
                }
            };
            tokio::select! {
                biased;
                () = died => return,
                read = stream.read_buf(&mut bytes) => if !read.is_ok_and(|read| read > 0) { return },
            }
        }
    }

    async fn carry_out(&self, life: u64, command: &[Vec<u8>]) -> Next {
        let delay = match self.fate() {
            Fate::Answers(most) => self.lock().draw.below(most + 1),
            _ => 0,
        };
        patience::rest(Duration::from_millis(delay)).await;
        loop {
            let changed = self.changed.notified();
            if self.fate() != Fate::Hangs {
                break;
            }
            changed.await;
        }
        let mut state = self.lock();
        if state.life != life {
            return Next::Close(Vec::new());
        }
        let is_call = command[0] == b"EVALSHA";
        match state.fate {
            Fate::Swallows => return Next::Nothing,
            Fate::Refuses(code) if is_call => return Next::Reply(format!("-{code} not now\r\n").into_bytes()),
            Fate::BreaksBefore if is_call => return Next::Close(Vec::new()),
            _ => {}
        }
        let reply = self.reply(&mut state, command);
        match state.fate {
            Fate::BreaksAfter if is_call => Next::Close(Vec::new()),
            Fate::BreaksMidway if is_call => Next::Close(reply[..reply.len() / 2].to_vec()),
            _ => {
                if let (true, Some(seen)) = (is_call, cost_of(command).and_then(|cost| state.calls.get_mut(&cost))) {
                    seen.told = Some(patience::now());
                }
                Next::Reply(reply)
            }
        }
    }

    fn reply(&self, state: &mut State, command: &[Vec<u8>]) -> Vec<u8> {
        match command[0].as_slice() {
            b"PING" => b"+PONG\r\n".to_vec(),
            b"SCRIPT" => {
                state.knows_script = true;
                bulk(SCRIPTS.all().nth(2).expect("that of a fixed window").get_hash().as_bytes())
            }
            b"EVALSHA" if !state.knows_script => b"-NOSCRIPT no such script\r\n".to_vec(),
            b"EVALSHA" => {
                let cost = cost_of(command).expect("a cost");
                // What decide_one.lua does with a fixed window.
                let before = state.taken;
                let admitted = before + cost <= self.limit;
                state.taken += if admitted { cost } else { 0 };
                if state.calls.insert(cost, Seen { admitted, told: None }).is_some() {
                    state.wrong = Some(format!("the call of cost {cost} was carried out twice"));
                }
                let now = 1_800_000_000_000_000_u64;
                let signed = if admitted { now as f64 } else { -(now as f64) };
                let found = if before == 0 { String::new() } else { format!("{before}{:010}", now / self.window) };
                bulk(&[&signed.to_le_bytes()[..], found.as_bytes()].concat())
            }
            _ => b"+OK\r\n".to_vec(),
        }
    }

    fn fate(&self) -> Fate {
        self.lock().fate
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first of the numbers that the script is told.
fn cost_of(command: &[Vec<u8>]) -> Option<u64> {
    let numbers = command.get(4)?.first_chunk()?;
    Some(f64::from_le_bytes(*numbers) as u64)
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// The next whole command, as its words.
fn take_command(bytes: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let count = take_number(bytes, &mut at)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = take_number(bytes, &mut at)?;
        words.push(bytes.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= bytes.len()).then(|| drop(bytes.drain(..at)))?;
    Some(words)
}

/// The number of a line such as `*3` or `$11`.
fn take_number(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let end = *at + bytes.get(*at..)?.windows(2).position(|pair| pair == b"\r\n")?;
    let number = std::str::from_utf8(&bytes[*at + 1..end]).ok()?.parse().ok()?;
    *at = end + 2;
    Some(number)
}
