//! `Call`: one command with its script and its timeouts, as the router sends it; and `CallError`, if that fails.

use std::future::Future;

use redis::{Cmd, Value};
use tidegate::StoreError;

use crate::node::RedisNode;
use crate::node_error::NodeError;
use crate::scripts::Script;
use crate::timeouts::Timeouts;

/// A command, the script that it runs, if any, and its timeouts.
pub(crate) struct Call {
    pub(crate) command: Cmd,
    pub(crate) script: Option<&'static Script>,
    pub(crate) timeouts: Timeouts,
}

/// A call that failed.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) error: StoreError,
    /// The slot is being migrated, and the keys of the call are on two servers. Nothing ran; calls with one key each work.
    pub(crate) mid_migration: bool,
    /// The server responded that the user lacks a permission.
    pub(crate) missing_permission: bool,
    /// The server is out of memory. Nothing ran.
    pub(crate) out_of_memory: bool,
}

impl Call {
    /// A call of `script` with `verb` (`EVALSHA` or `EVALSHA_RO`). Keys and arguments are appended later.
    pub(crate) fn script(verb: &str, script: &'static Script, timeouts: Timeouts) -> Self {
        let mut command = redis::cmd(verb);
        command.arg(script.hash());
        Self { command, script: Some(script), timeouts }
    }

    /// A call of a plain command.
    pub(crate) const fn command(command: Cmd, timeouts: Timeouts) -> Self {
        Self { command, script: None, timeouts }
    }
}

/// Something that can be sent to one server.
pub(crate) trait NodeRequest: Sync {
    type Reply: Send;

    fn timeouts(&self) -> Timeouts;

    /// Sends it to `node`, and with `asking` an `ASKING` before it, for a server that is importing the slot.
    fn send_to(&self, node: &RedisNode, asking: bool) -> impl Future<Output = Result<Self::Reply, NodeError>> + Send;
}

impl NodeRequest for Call {
    type Reply = Value;

    fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    async fn send_to(&self, node: &RedisNode, asking: bool) -> Result<Value, NodeError> {
        node.send(self, asking).await
    }
}

impl From<&NodeError> for CallError {
    fn from(error: &NodeError) -> Self {
        Self {
            error: error.into(),
            mid_migration: error.is_mid_migration(),
            missing_permission: error.code() == Some("NOPERM"),
            out_of_memory: error.code() == Some("OOM"),
        }
    }
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        Self { error, mid_migration: false, missing_permission: false, out_of_memory: false }
    }
}

impl From<CallError> for StoreError {
    fn from(failure: CallError) -> Self {
        failure.error
    }
}
