//! `Town`: what everybody in it shares: the way to the gateways, the time, and the ledger. It plans nothing.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use tidegate::{Timer, Timestamp};

use super::endpoint::Endpoint;
use super::ledger::{Begun, Ended, Ledger, Party};
use super::options::Shape;
use crate::traffic::{Line, NoAnswer, Protocol};

const USER: HeaderName = HeaderName::from_static("x-user-id");

/// How many requests go over one connection at a time: as many as servers usually take.
const STREAMS: u16 = 200;

/// The town of a phase.
pub(crate) struct Town {
    gateways: Vec<Gate>,
    next: AtomicUsize,
    pub(crate) timer: Arc<dyn Timer>,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) shape: Shape,
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
}

/// The way to one gateway: lines that wait for their next request.
struct Gate {
    authority: String,
    uris: [Uri; Endpoint::ALL.len()],
    free: Mutex<Vec<Line>>,
}

/// What somebody was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) at: Timestamp,
    pub(crate) ended: Ended,
    /// When to come back, if it was said.
    pub(crate) retry_after: Option<Duration>,
}

impl Town {
    /// A town in which everything begins now.
    pub(crate) fn new(addresses: &[SocketAddr], timer: Arc<dyn Timer>, shape: Shape) -> Self {
        let start = timer.now();
        Self {
            gateways: addresses.iter().map(Gate::new).collect(),
            next: AtomicUsize::new(0),
            timer,
            ledger: Mutex::new(Ledger::new(start, shape.span, shape.users)),
            shape,
            start,
            end: start.plus(shape.span),
        }
    }

    /// Lets everything begin at `start`.
    pub(crate) fn begin(&mut self, start: Timestamp) {
        *self.ledger() = Ledger::new(start, self.shape.span, self.shape.users);
        (self.start, self.end) = (start, start.plus(self.shape.span));
    }

    /// Opens a connection to each gateway, so that nobody waits for the first.
    pub(crate) async fn open(&self) -> Result<(), NoAnswer> {
        for gate in &self.gateways {
            let lines = gate.open().await?;
            gate.free().extend(lines);
        }
        Ok(())
    }

    /// Waits until then, and says when it was. Whether there is still something to do is told, too.
    pub(crate) async fn until(&self, due: Timestamp) -> bool {
        self.timer.sleep(due.since(self.timer.now())).await;
        due < self.end
    }

    /// Sends a request that is due, through the next gateway, and waits for the answer.
    pub(crate) async fn ask(
        &self,
        party: Party,
        user: &HeaderValue,
        endpoint: Endpoint,
        due: Timestamp,
        patience: Duration,
    ) -> Told {
        let gate = &self.gateways[self.next.fetch_add(1, Ordering::Relaxed) % self.gateways.len()];
        let number = self.ledger().begin(Begun { party, endpoint, due, sent: self.timer.now() });
        let (ended, retry_after) = gate.ask(user, endpoint, patience).await;
        let at = self.timer.now();
        self.ledger().end(number, at, ended);
        Told { at, ended, retry_after }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    fn new(address: &SocketAddr) -> Self {
        // An address and a path always make a URI.
        let uri = |endpoint: Endpoint| format!("http://{address}{}", endpoint.path()).parse().unwrap_or_default();
        let mut uris: [Uri; Endpoint::ALL.len()] = Default::default();
        for endpoint in Endpoint::ALL {
            uris[endpoint as usize] = uri(endpoint);
        }
        Self { authority: address.to_string(), uris, free: Mutex::default() }
    }

    async fn open(&self) -> Result<Vec<Line>, NoAnswer> {
        Line::open(Protocol::Http2, &self.authority, STREAMS).await
    }

    async fn ask(&self, user: &HeaderValue, endpoint: Endpoint, patience: Duration) -> (Ended, Option<Duration>) {
        let free = self.free().pop();
        let mut line = match free {
            Some(line) => line,
            None => match self.open().await.ok().and_then(|mut lines| Some((lines.pop()?, lines))) {
                Some((line, others)) => {
                    self.free().extend(others);
                    line
                }
                None => return (Ended::Failed, None),
            },
        };
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.method_mut() = endpoint.method();
        *request.uri_mut() = self.uris[endpoint as usize].clone();
        request.headers_mut().insert(USER, user.clone());
        match line.ask(request, patience).await {
            Ok(answer) => {
                self.free().push(line);
                let retry_after = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                let ended = match answer.status {
                    StatusCode::OK => Ended::Served,
                    StatusCode::TOO_MANY_REQUESTS => Ended::Refused,
                    _ => Ended::Failed,
                };
                (ended, retry_after.map(Duration::from_secs))
            }
            Err(NoAnswer::Late) => (Ended::TimedOut, None),
            Err(NoAnswer::Unreachable | NoAnswer::Broken) => (Ended::Failed, None),
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Line>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
