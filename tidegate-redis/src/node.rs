//! `Node`: one server. It sends calls, loads scripts that the server lacks, and never resends a call that may have run.

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Cmd, FromRedisValue, Pipeline, Script, Value};

use crate::call::Call;
use crate::connection::Connection;
use crate::connector::{Connector, Endpoint};
use crate::node_error::NodeError;
use crate::options::RedisOptions;
use crate::server_state::ServerState;
use crate::timeouts::Timeouts;

/// How often one call loads its script: scripts may be flushed again between loading and calling.
const MAX_SCRIPT_LOADS: u32 = 3;

/// One server. Clones share its connection.
#[derive(Clone)]
pub(crate) struct Node {
    address: Arc<str>,
    connection: Connection,
}

impl Node {
    /// Does not connect yet: the first call does.
    pub(crate) fn new(address: &str, endpoint: Endpoint, options: &RedisOptions) -> Self {
        Self { address: address.into(), connection: Connection::new(Connector::new(endpoint, options), options) }
    }

    /// Sends `call`, and with `asking` an `ASKING` before it, for a server that is importing the slot.
    pub(crate) async fn send(&self, call: &Call, asking: bool) -> Result<Value, NodeError> {
        let mut reply = self.send_once(&call.command, call.timeouts, asking).await;
        for _ in 0..MAX_SCRIPT_LOADS {
            match (&reply, call.script) {
                // Nothing ran, so the call may be sent again.
                (Err(error), Some(script)) if error.is_noscript() => {
                    self.load_script(script, call.timeouts).await?;
                    reply = self.send_once(&call.command, call.timeouts, asking).await;
                }
                _ => break,
            }
        }
        reply
    }

    /// Sends all `calls` in one round trip. Each has a result of its own.
    pub(crate) async fn send_each(&self, calls: &[&Call]) -> Result<Vec<Result<Value, NodeError>>, NodeError> {
        let Some(first) = calls.first() else { return Ok(Vec::new()) };
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(call.command.clone());
        }
        let mut active = self.connection.begin_call(first.timeouts).await?;
        let replies = active.connection.req_packed_commands(&pipeline, 0, calls.len()).await;
        let replies = active.finish(replies)?;
        let mut results = Vec::with_capacity(calls.len());
        for (reply, call) in replies.into_iter().zip(calls) {
            results.push(match (reply.extract_error().map_err(NodeError::Failed), call.script) {
                (Err(error), Some(_)) if error.is_noscript() => self.send(call, false).await,
                (result, _) => result,
            });
        }
        Ok(results)
    }

    /// Sends `command` and converts its reply.
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd, timeouts: Timeouts) -> Result<T, NodeError> {
        let reply = self.send_once(command, timeouts, false).await?;
        redis::from_redis_value(reply).map_err(|error| NodeError::Failed(error.into()))
    }

    /// Loads `script` into the server.
    pub(crate) async fn load_script(&self, script: &Script, timeouts: Timeouts) -> Result<(), NodeError> {
        let mut active = self.connection.begin_call(timeouts).await?;
        let loaded = script.load_async(&mut active.connection).await;
        active.finish(loaded).map(drop)
    }

    /// Reconnects in the background, since the host name may resolve to another server by now. Rate-limited.
    pub(crate) fn reconnect(&self) {
        self.connection.replace();
    }

    /// A snapshot for operators.
    pub(crate) fn state(&self) -> ServerState {
        self.connection.state(&self.address)
    }

    async fn send_once(&self, command: &Cmd, timeouts: Timeouts, asking: bool) -> Result<Value, NodeError> {
        let mut active = self.connection.begin_call(timeouts).await?;
        if !asking {
            let reply = active.connection.req_packed_command(command).await.and_then(Value::extract_error);
            return active.finish(reply);
        }
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command.clone());
        let replies = active.connection.req_packed_commands(&pipeline, 0, 2).await;
        active.finish(replies.and_then(|mut replies| replies.pop().unwrap_or(Value::Nil).extract_error()))
    }
}
