//! `Node`: one server and its connection. It sends, loads a script that is missing, and never sends anything twice that may
//! have been carried out. `Dial` knows how to reach servers of one store.

use std::sync::Arc;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, Pipeline, RedisConnectionInfo, RedisResult, Script,
    TlsCertificates, Value,
};
use tidegate::{StoreError, StoreErrorKind};

use crate::error::{is_noscript, store_error};
use crate::store::RedisOptions;
use crate::target::{Address, Target};

/// One server.
#[derive(Clone)]
pub(crate) struct Node {
    connection: ConnectionManager,
}

/// How to reach the servers of one store: what they have in common.
#[derive(Clone)]
pub(crate) struct Dial {
    info: ConnectionInfo,
    /// The certificates to trust, as PEM; none trusts those of the system.
    ca: Option<Arc<[u8]>>,
    config: ConnectionManagerConfig,
}

/// A command, with the script that it calls.
pub(crate) struct Call {
    pub(crate) command: Cmd,
    pub(crate) script: Option<&'static Script>,
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
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(options.response_timeout))
            .set_connection_timeout(Some(options.connection_timeout))
            .set_number_of_retries(1)
            .set_pipeline_buffer_size(1024);
        Ok(Self { info, ca, config })
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

    fn node(&self, info: ConnectionInfo) -> Result<Node, StoreError> {
        let client = match &self.ca {
            Some(ca) => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(ca.to_vec()) };
                Client::build_with_tls(info, certificates)
            }
            None => Client::open(info),
        };
        let connection = client.and_then(|client| ConnectionManager::new_lazy_with_config(client, self.config.clone()));
        connection.map(|connection| Node { connection }).map_err(|error| store_error(&error))
    }
}

impl Node {
    /// Sends `call`; first `ASKING`, to a server that is about to become the owner of the slot.
    pub(crate) async fn send(&self, call: &Call, asking: bool) -> RedisResult<Value> {
        let reply = self.send_once(&call.command, asking).await;
        match (reply, call.script) {
            // Nothing ran, so that it may be sent again.
            (Err(error), Some(script)) if is_noscript(&error) => {
                self.load(script).await?;
                self.send_once(&call.command, asking).await
            }
            (reply, _) => reply,
        }
    }

    /// Sends all `calls` in one round trip. One that fails does not touch the others.
    pub(crate) async fn send_each(&self, calls: &[&Call]) -> RedisResult<Vec<RedisResult<Value>>> {
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(call.command.clone());
        }
        let replies = self.connection.clone().req_packed_commands(&pipeline, 0, calls.len()).await?;
        let mut answers = Vec::with_capacity(calls.len());
        for (reply, call) in replies.into_iter().zip(calls) {
            answers.push(match (reply.extract_error(), call.script) {
                (Err(error), Some(_)) if is_noscript(&error) => self.send(call, false).await,
                (reply, _) => reply,
            });
        }
        Ok(answers)
    }

    /// Sends `command` and reads the answer.
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        command.query_async(&mut self.connection.clone()).await
    }

    /// Gives the server `script`.
    pub(crate) async fn load(&self, script: &Script) -> RedisResult<()> {
        script.load_async(&mut self.connection.clone()).await.map(drop)
    }

    async fn send_once(&self, command: &Cmd, asking: bool) -> RedisResult<Value> {
        let mut connection = self.connection.clone();
        if !asking {
            return connection.req_packed_command(command).await.and_then(Value::extract_error);
        }
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command.clone());
        let mut replies = connection.req_packed_commands(&pipeline, 0, 2).await?;
        replies.pop().unwrap_or(Value::Nil).extract_error()
    }
}

impl Call {
    /// A call of `script` by `verb`, to which keys and arguments are to be appended.
    pub(crate) fn of(verb: &str, script: &'static Script) -> Self {
        let mut command = redis::cmd(verb);
        command.arg(script.get_hash());
        Self { command, script: Some(script) }
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
