//! `RedisNode`: one server. It sends calls and plans through its connection, which never resends what may have run.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, Value};

use crate::call::Call;
use crate::connection::{Connection, Epilogue, RawCall};
use crate::connector::{Connector, Endpoint};
use crate::node_error::NodeError;
use crate::options::RedisOptions;
use crate::packed_plan::PackedPlan;
use crate::reply::PlanReply;
use crate::scripts::Script;
use crate::server_state::ServerState;
use crate::timeouts::Timeouts;

/// One server. Clones share its connection.
#[derive(Clone)]
pub(crate) struct RedisNode {
    address: Arc<str>,
    connection: Connection,
}

impl RedisNode {
    /// Does not connect yet: the first call does. Plans of several slots are combined if `combines_slots`.
    pub(crate) fn new(address: &str, endpoint: Endpoint, options: &RedisOptions, combines_slots: bool) -> Self {
        let connection = Connection::new(Connector::new(endpoint, options), options, combines_slots);
        Self { address: address.into(), connection }
    }

    /// Decides `plan`, together with others, and with `asking` alone, after an `ASKING`. If the caller goes away after the plan
    /// was sent, `epilogue` says what is done with its reply.
    pub(crate) async fn decide(
        &self,
        plan: &Arc<PackedPlan>,
        asking: bool,
        timeouts: Timeouts,
        epilogue: impl Fn() -> Option<Epilogue<PlanReply>> + Send,
    ) -> Result<PlanReply, NodeError> {
        self.connection.decide(plan, asking, timeouts, epilogue).await
    }

    /// Sends `call`, and with `asking` an `ASKING` before it, for a server that is importing the slot.
    pub(crate) async fn send(&self, call: &Call, asking: bool) -> Result<Value, NodeError> {
        let commands = call.command.get_packed_command();
        let replies =
            self.connection.call(RawCall { commands, replies: 1, script: call.script, asking }, call.timeouts);
        only_reply(replies.await?)
    }

    /// Sends all `commands` in one round trip. Each has a result of its own.
    pub(crate) async fn send_each(
        &self,
        commands: &[Cmd],
        timeouts: Timeouts,
    ) -> Result<Vec<Result<Value, NodeError>>, NodeError> {
        let mut packed = Vec::new();
        for command in commands {
            command.write_packed_command(&mut packed);
        }
        let call = RawCall { commands: packed, replies: commands.len(), script: None, asking: false };
        let replies = self.connection.call(call, timeouts).await?;
        Ok(replies.into_iter().map(|reply| reply.extract_error().map_err(NodeError::Failed)).collect())
    }

    /// Sends `command` and converts its reply.
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd, timeouts: Timeouts) -> Result<T, NodeError> {
        let commands = command.get_packed_command();
        let call = RawCall { commands, replies: 1, script: None, asking: false };
        let reply = only_reply(self.connection.call(call, timeouts).await?)?;
        redis::from_redis_value(reply).map_err(|error| NodeError::Failed(error.into()))
    }

    /// Loads `script` into the server.
    pub(crate) async fn load_script(&self, script: &Script, timeouts: Timeouts) -> Result<(), NodeError> {
        self.query::<Value>(&script.load_command(), timeouts).await.map(drop)
    }

    /// Reconnects in the background, since the host name may resolve to another server by now. Rate-limited.
    pub(crate) fn reconnect(&self) {
        self.connection.replace();
    }

    /// A snapshot for operators.
    pub(crate) fn state(&self) -> ServerState {
        self.connection.state(&self.address)
    }
}

fn only_reply(mut replies: Vec<Value>) -> Result<Value, NodeError> {
    replies.pop().unwrap_or(Value::Nil).extract_error().map_err(NodeError::Failed)
}
