//! `Sentinel`: sends calls to the primary that the sentinels name, and asks them again when it is gone or demoted. What may
//! have been carried out is not sent again.

use std::sync::atomic::{AtomicUsize, Ordering};

use redis::{ErrorKind, RedisError, RedisResult, Value};
use tidegate::{StoreError, StoreErrorKind};

use crate::error::{Failed, is_unsent, store_error, unapplied};
use crate::known::{Known, Round};
use crate::node::{Call, Dial, Node};
use crate::target::Address;

/// The sentinels, and the primary that they name.
pub(crate) struct Sentinel {
    /// For the primary.
    dial: Dial,
    /// For the sentinels, which have users and passwords of their own.
    watchers: Dial,
    sentinels: Vec<Address>,
    /// The one that answered last, which is asked first.
    first: AtomicUsize,
    name: String,
    primary: Known<Primary>,
}

#[derive(Clone)]
struct Primary {
    address: Address,
    node: Node,
}

impl Sentinel {
    /// The primary `name` of these sentinels. Nothing is connected to yet.
    pub(crate) fn new(dial: Dial, watchers: Dial, sentinels: Vec<Address>, name: String) -> Self {
        Self { dial, watchers, sentinels, first: AtomicUsize::new(0), name, primary: Known::nothing() }
    }

    /// Sends `call` to the primary.
    pub(crate) async fn send(&self, call: &Call) -> Result<Value, Failed> {
        let (primary, round) = self.primary().await?;
        let reply = primary.node.send(call, false).await;
        if !self.must_go_elsewhere(&reply, round) {
            return reply.map_err(|error| Failed::by(&error));
        }
        let (primary, round) = self.primary().await?;
        let reply = primary.node.send(call, false).await;
        self.must_go_elsewhere(&reply, round);
        reply.map_err(|error| Failed::by(&error))
    }

    /// Sends all `calls` in one round trip. One that fails does not touch the others.
    pub(crate) async fn send_each(&self, calls: &[(u16, Call)]) -> Vec<Result<Value, Failed>> {
        let calls: Vec<&Call> = calls.iter().map(|(_, call)| call).collect();
        let all_fail = |error: StoreError| {
            let same = |_| Err(Failed::from(StoreError::new(error.kind(), error.to_string())));
            calls.iter().map(same).collect()
        };
        let (primary, round) = match self.primary().await {
            Ok(found) => found,
            Err(error) => return all_fail(error),
        };
        let replies = match primary.node.send_each(&calls).await {
            Ok(replies) => replies,
            Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut answers = Vec::with_capacity(calls.len());
        for (reply, call) in replies.into_iter().zip(calls) {
            let elsewhere = self.must_go_elsewhere(&reply, round);
            answers.push(if elsewhere { self.send(call).await } else { reply.map_err(|error| Failed::by(&error)) });
        }
        answers
    }

    /// The primary, as the sentinels name it.
    pub(crate) async fn primaries(&self) -> Result<Vec<(Address, Node)>, StoreError> {
        self.primary().await.map(|(primary, _)| vec![(primary.address, primary.node)])
    }

    /// Whether the call was not carried out and another server may be the primary. Also doubts the primary if it should be.
    fn must_go_elsewhere(&self, reply: &RedisResult<Value>, round: Round) -> bool {
        let Err(error) = reply else { return false };
        let demoted = is_demoted(error);
        if demoted || error.is_io_error() {
            self.primary.doubt(round);
        }
        demoted || is_unsent(error)
    }

    async fn primary(&self) -> Result<(Primary, Round), StoreError> {
        self.primary.take(async |before| self.ask(before).await).await
    }

    /// Asks one sentinel after the other, until one names a server that says itself that it is a primary.
    async fn ask(&self, before: Option<Primary>) -> Result<Primary, StoreError> {
        let mut failure = None;
        let first = self.first.load(Ordering::Relaxed);
        for offset in 0..self.sentinels.len() {
            let index = (first + offset) % self.sentinels.len();
            match self.ask_one(&self.sentinels[index], before.as_ref()).await {
                Ok(primary) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(primary);
                }
                // What somebody must change is told rather than what may pass by itself.
                Err(error) if failure.as_ref().is_none_or(StoreError::is_transient) => failure = Some(error),
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or_else(|| unavailable("no sentinel has an address")))
    }

    async fn ask_one(&self, sentinel: &Address, before: Option<&Primary>) -> Result<Primary, StoreError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let named = self.watchers.at(sentinel)?.query::<Option<(String, u16)>>(&question).await;
        let named = named.map_err(|error| told_by_sentinel(&error))?;
        let Some((host, port)) = named else {
            let message = "the sentinels know no primary of this name; it stands in the URL after the addresses";
            return Err(StoreError::new(StoreErrorKind::Refused, message));
        };
        let address = Address { host, port };
        let mut reason = None;
        if let Some(known) = before.filter(|known| known.address == address) {
            match role(&known.node).await {
                Ok(true) => return Ok(known.clone()),
                Ok(false) => return Err(demoted()),
                Err(error) => reason = Some(error),
            }
        }
        // A connection that was refused before may be made now: the server may have come back.
        if reason.as_ref().is_some_and(RedisError::is_timeout) {
            return Err(unavailable("the primary that the sentinels name does not answer in time"));
        }
        let node = self.dial.at(&address)?;
        match role(&node).await {
            Ok(true) => Ok(Primary { address, node }),
            Ok(false) => Err(demoted()),
            Err(error) => Err(unapplied(&store_error(&error))),
        }
    }
}

/// Whether the server says that it is a primary.
async fn role(node: &Node) -> RedisResult<bool> {
    let reply = node.query::<Value>(&redis::cmd("ROLE")).await?;
    let Value::Array(fields) = reply else { return Ok(false) };
    Ok(matches!(fields.first(), Some(Value::BulkString(role)) if role == b"master"))
}

/// Whether the answer says that the server is not the primary any more. Nothing was carried out.
fn is_demoted(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

fn demoted() -> StoreError {
    let message = "the server that the sentinels name is not a primary (yet); a failover is going on";
    StoreError::new(StoreErrorKind::Refused, message)
}

fn told_by_sentinel(error: &RedisError) -> StoreError {
    let message = match error.code() {
        Some("NOAUTH") => "a sentinel wants a password of its own; add ?sentinel_password=… to the URL",
        _ if error.kind() == ErrorKind::AuthenticationFailed => "a sentinel refuses its user or password",
        Some("NOPERM") => {
            "the user of the sentinels may not ask for the primary; allow it +sentinel|get-master-addr-by-name"
        }
        Some("ERR") if error.detail().is_some_and(|detail| detail.contains("unknown command")) => {
            let message = "there is no sentinel at an address of the URL, but a server: write redis:// for that";
            return StoreError::new(StoreErrorKind::Unsupported, message);
        }
        None if error.is_io_error() && store_error(error).kind() == StoreErrorKind::Unavailable => {
            return unavailable("no sentinel answers at the addresses of the URL");
        }
        _ => return unapplied(&store_error(error)),
    };
    StoreError::new(StoreErrorKind::Denied, message)
}

fn unavailable(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, message)
}
