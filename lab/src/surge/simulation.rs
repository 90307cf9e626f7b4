//! `Simulation`: what all clients of a phase share: connections to the gateways, the time, and the request log.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use tidegate::{Timer, Timestamp};

use super::endpoint::Endpoint;
use super::options::Scenario;
use super::request_log::{ClientKind, RequestLog, RequestOutcome, SentRequest};
use crate::traffic::{Connection, HttpResponse, Protocol, RequestError};

const USER_ID_HEADER: HeaderName = HeaderName::from_static("x-user-id");

/// Requests in flight per TCP connection: the maximum of the gateway.
const MAX_STREAMS_PER_CONNECTION: u16 = 100;

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

/// A connection that one client keeps for itself, over HTTP/1.1.
pub(crate) struct OwnConnection {
    /// The index of its gateway.
    gateway: usize,
    connection: Connection,
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
        self.log(client, endpoint, due, gateway.send(user, endpoint, timeout)).await
    }

    /// Opens a connection of its own to a gateway; the numbers of connections spread them over all gateways.
    pub(crate) async fn open_own_connection(&self, number: usize) -> Result<OwnConnection, RequestError> {
        let gateway = number % self.gateways.len();
        let connections = Connection::open_many(Protocol::Http1, &self.gateways[gateway].authority, 1).await?;
        let connection = connections.into_iter().next().ok_or(RequestError::Unreachable)?;
        Ok(OwnConnection { gateway, connection })
    }

    /// Sends a request over a connection of its own, and waits for the response.
    pub(crate) async fn send_over(
        &self,
        connection: &mut OwnConnection,
        client: ClientKind,
        user: &HeaderValue,
        endpoint: Endpoint,
        due: Timestamp,
        timeout: Duration,
    ) -> RequestResult {
        let request = self.gateways[connection.gateway].http1_request(user, endpoint);
        let exchange = async { outcome(&connection.connection.send(request, timeout).await) };
        self.log(client, endpoint, due, exchange).await
    }

    /// Records an exchange in the request log.
    async fn log(
        &self,
        client: ClientKind,
        endpoint: Endpoint,
        due: Timestamp,
        exchange: impl Future<Output = (RequestOutcome, Option<Duration>)>,
    ) -> RequestResult {
        let id = self.request_log().begin(SentRequest { client, endpoint, due, sent: self.timer.now() });
        let (outcome, retry_after) = exchange.await;
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
        let result = connection.send(request(user, endpoint, self.uris[endpoint as usize].clone()), timeout).await;
        if result.is_ok() {
            self.idle().push(connection);
        }
        outcome(&result)
    }

    /// A request for HTTP/1.1, which has the host in a header.
    fn http1_request(&self, user: &HeaderValue, endpoint: Endpoint) -> Request<Full<Bytes>> {
        let mut request = request(user, endpoint, Uri::from_static(endpoint.path()));
        // A socket address is always a valid header value.
        request.headers_mut().extend(HeaderValue::from_str(&self.authority).ok().map(|host| (HOST, host)));
        request
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

fn request(user: &HeaderValue, endpoint: Endpoint, uri: Uri) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.method_mut() = endpoint.method();
    *request.uri_mut() = uri;
    request.headers_mut().insert(USER_ID_HEADER, user.clone());
    request
}

/// The outcome of a request, and the `Retry-After` of its response.
fn outcome(result: &Result<HttpResponse, RequestError>) -> (RequestOutcome, Option<Duration>) {
    match result {
        Ok(response) => {
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
