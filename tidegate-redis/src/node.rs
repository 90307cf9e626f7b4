//! `Node`: one server. It sends, loads a script that is missing, and never sends anything twice that may have been carried
//! out. `Dial` knows how to reach servers of one store.

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::io::tcp::TcpSettings;
use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, Pipeline, RedisConnectionInfo, Script,
    TlsCertificates, Value,
};
use tidegate::{StoreError, StoreErrorKind};

use crate::error::{NodeError, store_error};
use crate::line::Line;
use crate::options::RedisOptions;
use crate::patience::Patience;
use crate::state::ServerState;
use crate::target::{Address, Target};
use crate::way::{Destination, Way};

/// How often one call gives a server a script that it has forgotten.
const MOST_LOADS: u32 = 3;

/// One server.
#[derive(Clone)]
pub(crate) struct Node {
    address: Arc<str>,
    line: Line,
}

/// How to reach the servers of one store: what they have in common.
#[derive(Clone)]
pub(crate) struct Dial {
    info: ConnectionInfo,
    /// The certificates to trust, as PEM; none trusts those of the system.
    ca: Option<Arc<[u8]>>,
    options: RedisOptions,
}

/// A command, with the script that it calls, and how long it waits.
pub(crate) struct Call {
    pub(crate) command: Cmd,
    pub(crate) script: Option<&'static Script>,
    pub(crate) patience: Patience,
}

impl Dial {
    /// What `target` and `options` say.
    pub(crate) fn new(target: &Target, options: &RedisOptions) -> Result<Self, StoreError> {
        let info = target.info.clone().set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let ca = target.ca.as_deref().map(read_ca).transpose()?;
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            // The client library takes the provider of the process, and panics if it finds two and none is chosen. Who
            // has chosen one keeps it.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(Self { info, ca, options: options.clone() })
    }

    /// The same, with other credentials.
    pub(crate) fn with_credentials(mut self, credentials: RedisConnectionInfo) -> Self {
        self.info = self.info.set_redis_settings(credentials);
        self
    }

    /// The server that the URL names first. It is connected to when it is first spoken to.
    pub(crate) fn first(&self) -> Result<Node, StoreError> {
        self.node(self.info.clone())
    }

    /// The server at `address`. It is connected to when it is first spoken to.
    pub(crate) fn at(&self, address: &Address) -> Result<Node, StoreError> {
        let (host, port) = (address.host.clone(), address.port);
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { .. } => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.node(self.info.clone().set_addr(addr))
    }

    /// How long questions about the topology wait.
    pub(crate) fn learning(&self) -> Patience {
        Patience::learning(&self.options)
    }

    fn node(&self, info: ConnectionInfo) -> Result<Node, StoreError> {
        let address = info.addr().to_string();
        let client = match &self.ca {
            Some(ca) => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(ca.to_vec()) };
                Client::build_with_tls(info, certificates)
            }
            None => Client::open(info),
        };
        let client = client.map_err(|error| store_error(&error))?;
        Ok(Node::new(&address, Destination::Server(Box::new(client)), &self.options))
    }
}

impl Node {
    /// The server there, which is called `address`.
    pub(crate) fn new(address: &str, to: Destination, options: &RedisOptions) -> Self {
        Self { address: address.into(), line: Line::new(Way::new(to, options), options) }
    }

    /// Sends `call`; first `ASKING`, to a server that is about to become the owner of the slot.
    pub(crate) async fn send(&self, call: &Call, asking: bool) -> Result<Value, NodeError> {
        let mut reply = self.send_once(&call.command, call.patience, asking).await;
        for _ in 0..MOST_LOADS {
            match (&reply, call.script) {
                // Nothing ran, so that it may be sent again. Between the two, somebody may have flushed it once more.
                (Err(error), Some(script)) if error.is_noscript() => {
                    self.load(script, call.patience).await?;
                    reply = self.send_once(&call.command, call.patience, asking).await;
                }
                _ => break,
            }
        }
        reply
    }

    /// Sends all `calls` in one round trip. One that fails does not touch the others.
    pub(crate) async fn send_each(&self, calls: &[&Call]) -> Result<Vec<Result<Value, NodeError>>, NodeError> {
        let Some(first) = calls.first() else { return Ok(Vec::new()) };
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(call.command.clone());
        }
        let mut turn = self.line.begin(first.patience).await?;
        let replies = turn.wire.req_packed_commands(&pipeline, 0, calls.len()).await;
        let replies = turn.end(replies)?;
        let mut answers = Vec::with_capacity(calls.len());
        for (reply, call) in replies.into_iter().zip(calls) {
            answers.push(match (reply.extract_error().map_err(NodeError::Told), call.script) {
                (Err(error), Some(_)) if error.is_noscript() => self.send(call, false).await,
                (reply, _) => reply,
            });
        }
        Ok(answers)
    }

    /// Sends `command` and reads the answer.
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd, patience: Patience) -> Result<T, NodeError> {
        let reply = self.send_once(command, patience, false).await?;
        redis::from_redis_value(reply).map_err(|error| NodeError::Told(error.into()))
    }

    /// Gives the server `script`.
    pub(crate) async fn load(&self, script: &Script, patience: Patience) -> Result<(), NodeError> {
        let mut turn = self.line.begin(patience).await?;
        let loaded = script.load_async(&mut turn.wire).await;
        turn.end(loaded).map(drop)
    }

    /// The server is not what it should be: its name is looked up anew, though not for each call that finds that out.
    pub(crate) fn renew(&self) {
        self.line.renew();
    }

    /// How the connection is.
    pub(crate) fn state(&self) -> ServerState {
        self.line.state(&self.address)
    }

    async fn send_once(&self, command: &Cmd, patience: Patience, asking: bool) -> Result<Value, NodeError> {
        let mut turn = self.line.begin(patience).await?;
        if !asking {
            let reply = turn.wire.req_packed_command(command).await.and_then(Value::extract_error);
            return turn.end(reply);
        }
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command.clone());
        let replies = turn.wire.req_packed_commands(&pipeline, 0, 2).await;
        turn.end(replies.and_then(|mut replies| replies.pop().unwrap_or(Value::Nil).extract_error()))
    }
}

impl Call {
    /// A call of `script` by `verb`, to which keys and arguments are to be appended.
    pub(crate) fn of(verb: &str, script: &'static Script, patience: Patience) -> Self {
        let mut command = redis::cmd(verb);
        command.arg(script.get_hash());
        Self { command, script: Some(script), patience }
    }
}
fn read_ca(path: &str) -> Result<Arc<[u8]>, StoreError> {
    let wrong = |why: String| {
        let message = format!("the CA file of the store, {path:?}, cannot be used: {why}");
        StoreError::new(StoreErrorKind::Unexpected, message)
    };
    let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    if !pem.windows(27).any(|window| window == b"-----BEGIN CERTIFICATE-----") {
        return Err(wrong("there is no certificate in it; it must be PEM".to_owned()));
    }
    Ok(pem.into())
}
