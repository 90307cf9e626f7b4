//! `Simulation`: what all clients of a phase share: connections to the gateways, the time, and the request log.

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
use super::options::Scenario;
use super::request_log::{ClientKind, RequestLog, RequestOutcome, SentRequest};
use crate::traffic::{Connection, Protocol, RequestError};

const USER_ID_HEADER: HeaderName = HeaderName::from_static("x-user-id");

/// Requests in flight per TCP connection: a usual server default.
const MAX_STREAMS_PER_CONNECTION: u16 = 200;

/// What the clients of a phase share.
pub(crate) struct Simulation {
    gateways: Vec<GatewayClient>,
    next_gateway: AtomicUsize,
    pub(crate) timer: Arc<dyn Timer>,
    request_log: Mutex<RequestLog>,
    pub(crate) scenario: Scenario,
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
}

/// The connections to one gateway.
struct GatewayClient {
    authority: String,
    uris: [Uri; Endpoint::ALL.len()],
    idle: Mutex<Vec<Connection>>,
}

/// The outcome of a request, as its client sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestResult {
    pub(crate) at: Timestamp,
    pub(crate) outcome: RequestOutcome,
    /// The `Retry-After` of the response.
    pub(crate) retry_after: Option<Duration>,
}

impl Simulation {
    /// A simulation that starts now.
    pub(crate) fn new(addresses: &[SocketAddr], timer: Arc<dyn Timer>, scenario: Scenario) -> Self {
        let start = timer.now();
        Self {
            gateways: addresses.iter().map(GatewayClient::new).collect(),
            next_gateway: AtomicUsize::new(0),
            timer,
            request_log: Mutex::new(RequestLog::new(start, scenario.phase_duration, scenario.users)),
            scenario,
            start,
            end: start.plus(scenario.phase_duration),
        }
    }

    /// Moves the start, and empties the request log.
    pub(crate) fn start_at(&mut self, start: Timestamp) {
        *self.request_log() = RequestLog::new(start, self.scenario.phase_duration, self.scenario.users);
        (self.start, self.end) = (start, start.plus(self.scenario.phase_duration));
    }

    /// Connects to each gateway, so that no request waits for it.
    pub(crate) async fn connect(&self) -> Result<(), RequestError> {
        for gateway in &self.gateways {
            let connections = gateway.connect().await?;
            gateway.idle().extend(connections);
        }
        Ok(())
    }

    /// Waits until `due`. Returns `false` if the simulation has ended by then.
    pub(crate) async fn wait_until(&self, due: Timestamp) -> bool {
        self.timer.sleep(due.since(self.timer.now())).await;
        due < self.end
    }

    /// Sends a request to the next gateway, and waits for the response.
    pub(crate) async fn send(
        &self,
        client: ClientKind,
        user: &HeaderValue,
        endpoint: Endpoint,
        due: Timestamp,
        timeout: Duration,
    ) -> RequestResult {
        let gateway = &self.gateways[self.next_gateway.fetch_add(1, Ordering::Relaxed) % self.gateways.len()];
        let id = self.request_log().begin(SentRequest { client, endpoint, due, sent: self.timer.now() });
        let (outcome, retry_after) = gateway.send(user, endpoint, timeout).await;
        let at = self.timer.now();
        self.request_log().end(id, at, outcome);
        RequestResult { at, outcome, retry_after }
    }

    pub(crate) fn request_log(&self) -> MutexGuard<'_, RequestLog> {
        self.request_log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GatewayClient {
    fn new(address: &SocketAddr) -> Self {
        // An address and a path always form a valid URI.
        let uri = |endpoint: Endpoint| format!("http://{address}{}", endpoint.path()).parse().unwrap_or_default();
        let mut uris: [Uri; Endpoint::ALL.len()] = Default::default();
        for endpoint in Endpoint::ALL {
            uris[endpoint as usize] = uri(endpoint);
        }
        Self { authority: address.to_string(), uris, idle: Mutex::default() }
    }

    async fn connect(&self) -> Result<Vec<Connection>, RequestError> {
        Connection::open_many(Protocol::Http2, &self.authority, MAX_STREAMS_PER_CONNECTION).await
    }

    async fn send(
        &self,
        user: &HeaderValue,
        endpoint: Endpoint,
        timeout: Duration,
    ) -> (RequestOutcome, Option<Duration>) {
        let Some(mut connection) = self.idle_connection().await else { return (RequestOutcome::Failed, None) };
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.method_mut() = endpoint.method();
        *request.uri_mut() = self.uris[endpoint as usize].clone();
        request.headers_mut().insert(USER_ID_HEADER, user.clone());
        match connection.send(request, timeout).await {
            Ok(response) => {
                self.idle().push(connection);
                let retry_after = response.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                let outcome = match response.status {
                    StatusCode::OK => RequestOutcome::Served,
                    StatusCode::TOO_MANY_REQUESTS => RequestOutcome::Refused,
                    _ => RequestOutcome::Failed,
                };
                (outcome, retry_after.map(Duration::from_secs))
            }
            Err(RequestError::TimedOut) => (RequestOutcome::TimedOut, None),
            Err(RequestError::Unreachable | RequestError::Broken) => (RequestOutcome::Failed, None),
        }
    }

    /// An idle connection, or a new one; `None` if connecting fails.
    async fn idle_connection(&self) -> Option<Connection> {
        let idle = self.idle().pop();
        if idle.is_some() {
            return idle;
        }
        let mut connections = self.connect().await.ok()?;
        let connection = connections.pop();
        self.idle().extend(connections);
        connection
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
