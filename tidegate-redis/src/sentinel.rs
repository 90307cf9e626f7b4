//! `Sentinel`: sends calls to the primary that the sentinels name, and asks them again when it is gone or demoted. What may
//! have been carried out is not sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::Value;
use tidegate::{StoreError, StoreErrorKind};

use crate::error::{Failed, NodeError, store_error, unapplied};
use crate::known::{Asked, Known, Round};
use crate::node::{Call, Dial, Node};
use crate::patience::Patience;
use crate::target::Address;

/// The sentinels, and the primary that they name.
pub(crate) struct Sentinel {
    /// For the primary.
    dial: Dial,
    sentinels: Vec<Node>,
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
    /// The primary `name` of the sentinels at these addresses, which have users and passwords of their own and are reached by
    /// `watchers`. Nothing is connected to yet.
    pub(crate) fn new(dial: Dial, watchers: &Dial, sentinels: &[Address], name: String) -> Result<Self, StoreError> {
        let sentinels = sentinels.iter().map(|address| watchers.at(address)).collect::<Result<_, _>>()?;
        Ok(Self { dial, sentinels, first: AtomicUsize::new(0), name, primary: Known::nothing() })
    }

    /// Sends `call` to the primary.
    pub(crate) async fn send(self: &Arc<Self>, call: &Call) -> Result<Value, Failed> {
        let (primary, round) = self.primary(call.patience).await?;
        let reply = primary.node.send(call, false).await;
        self.or_elsewhere(call, round, reply).await
    }

    /// Sends all `calls` in one round trip; what becomes of each is `told`. One that fails does not touch the others.
    pub(crate) async fn send_each(
        self: &Arc<Self>,
        calls: &[(u16, Call)],
        told: &(impl Fn(usize, Result<Value, Failed>) + Sync),
    ) {
        let Some((_, first)) = calls.first() else { return };
        let calls: Vec<&Call> = calls.iter().map(|(_, call)| call).collect();
        let (primary, round) = match self.primary(first.patience).await {
            Ok(found) => found,
            Err(error) => return (0..calls.len()).for_each(|index| told(index, Err(unapplied(&error).into()))),
        };
        let replies = match primary.node.send_each(&calls).await {
            Ok(replies) => replies,
            Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
        };
        for (index, (reply, call)) in replies.into_iter().zip(calls).enumerate() {
            told(index, self.or_elsewhere(call, round, reply).await);
        }
    }

    /// The primary, as the sentinels name it.
    pub(crate) async fn primaries(self: &Arc<Self>, patience: Patience) -> Result<Vec<(Address, Node)>, StoreError> {
        self.primary(patience).await.map(|(primary, _)| vec![(primary.address, primary.node)])
    }

    /// The primary, as far as is known.
    pub(crate) fn known(&self) -> Vec<Node> {
        self.primary.now().into_iter().map(|primary| primary.node).collect()
    }

    /// The reply of the primary of `round`; if it was not carried out there and another server is the primary now, that one's.
    async fn or_elsewhere(
        self: &Arc<Self>,
        call: &Call,
        round: Round,
        reply: Result<Value, NodeError>,
    ) -> Result<Value, Failed> {
        let error = match reply {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let found = if is_demoted(&error) {
            self.primary.renewed(round, call.patience, self.learn()).await
        } else if error.is_silence() {
            self.primary.doubt(round);
            self.primary(call.patience).await
        } else {
            return Err(Failed::by(&error));
        };
        match found {
            Ok((primary, later)) if later > round && (is_demoted(&error) || error.down().is_some()) => {
                let reply = primary.node.send(call, false).await;
                if reply.as_ref().is_err_and(|error| is_demoted(error) || error.is_silence()) {
                    self.primary.doubt(later);
                }
                reply.map_err(|error| Failed::by(&error))
            }
            _ => Err(Failed::by(&error)),
        }
    }

    async fn primary(self: &Arc<Self>, patience: Patience) -> Result<(Primary, Round), StoreError> {
        self.primary.take(patience, self.learn()).await
    }

    /// Asks in a task of its own, which keeps what it needs.
    fn learn(self: &Arc<Self>) -> impl Fn(Option<Primary>) -> Asked<Primary> {
        let sentinel = Arc::clone(self);
        move |before| {
            let sentinel = Arc::clone(&sentinel);
            Box::pin(async move { sentinel.ask(before).await })
        }
    }

    /// Asks one sentinel after the other, until one names a server that says itself that it is a primary. One that is known to
    /// be silent costs no time.
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

    async fn ask_one(&self, sentinel: &Node, before: Option<&Primary>) -> Result<Primary, StoreError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let named = sentinel.query::<Option<(String, u16)>>(&question, self.dial.learning()).await;
        let named = named.map_err(|error| told_by_sentinel(&error))?;
        let Some((host, port)) = named else {
            let message = "the sentinels know no primary of this name; it stands in the URL after the addresses";
            return Err(StoreError::new(StoreErrorKind::Refused, message));
        };
        let address = Address { host, port };
        // A server that is known already makes its own connections anew, whoever it is by then.
        let node = match before.filter(|known| known.address == address) {
            Some(known) => known.node.clone(),
            None => self.dial.at(&address)?,
        };
        match self.role(&node).await {
            Ok(true) => Ok(Primary { address, node }),
            Ok(false) => Err(demoted()),
            Err(error) => Err(unapplied(&StoreError::from(&error))),
        }
    }

    /// Whether the server says that it is a primary.
    async fn role(&self, node: &Node) -> Result<bool, NodeError> {
        let reply = node.query::<Value>(&redis::cmd("ROLE"), self.dial.learning()).await?;
        let Value::Array(fields) = reply else { return Ok(false) };
        Ok(matches!(fields.first(), Some(Value::BulkString(role)) if role == b"master"))
    }
}

/// Whether the answer says that the server is not the primary any more. Nothing was carried out.
fn is_demoted(error: &NodeError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

fn demoted() -> StoreError {
    let message = "the server that the sentinels name is not a primary (yet); a failover is going on";
    StoreError::new(StoreErrorKind::Refused, message)
}

fn told_by_sentinel(error: &NodeError) -> StoreError {
    let denied = |message| StoreError::new(StoreErrorKind::Denied, message);
    let told = match error {
        NodeError::Told(told) => told,
        NodeError::Down(reason) if reason.is_authentication() => {
            return denied("a sentinel refuses its user or password");
        }
        NodeError::Down(reason) if reason.is_unresolved() => {
            return unavailable("the host name of a sentinel leads nowhere; is it right, and does DNS know it?");
        }
        NodeError::Down(reason) if reason.is_unavailable() => {
            return unavailable("no sentinel answers at the addresses of the URL");
        }
        NodeError::Down(_) | NodeError::Overloaded => return error.into(),
    };
    match told.code() {
        Some("NOAUTH") => denied("a sentinel wants a password of its own; add ?sentinel_password=… to the URL"),
        Some("NOPERM") => {
            denied("the user of the sentinels may not ask for the primary; allow it +sentinel|get-master-addr-by-name")
        }
        Some("ERR") if told.detail().is_some_and(|detail| detail.contains("unknown command")) => {
            let message = "there is no sentinel at an address of the URL, but a server: write redis:// for that";
            StoreError::new(StoreErrorKind::Unsupported, message)
        }
        None if store_error(told).kind() == StoreErrorKind::Unavailable => {
            unavailable("no sentinel answers at the addresses of the URL")
        }
        _ => unapplied(&store_error(told)),
    }
}

fn unavailable(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, message)
}
