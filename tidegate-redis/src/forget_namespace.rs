//! `RedisStore::forget_namespace`: deletes all keys of a namespace, for test runs and simulations that had one of their own.

use redis::{Cmd, Value};
use tidegate::StoreError;

use crate::node::RedisNode;
use crate::store::RedisStore;
use crate::timeouts::Timeouts;

/// How many keys one `SCAN` inspects; other clients are served in between.
const SCAN_COUNT: u32 = 1000;

/// Deleting everything
impl RedisStore {
    /// Deletes every key of the [namespace](crate::RedisOptions::with_namespace) of this store, and returns how many there were.
    ///
    /// Scans all keys of the servers, 1000 at a time.
    pub async fn forget_namespace(&self) -> Result<u64, StoreError> {
        let (pattern, timeouts) = (self.options.namespace.key_pattern(), Timeouts::for_startup(&self.options));
        let _change = self.denial_cache.begin_change_of_all();
        let mut deleted = 0;
        for (_, node) in self.router.primaries(timeouts).await? {
            let mut cursor = 0;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
                let reply = node.query::<(u64, Vec<Vec<u8>>)>(&scan, timeouts).await;
                let (next_cursor, keys) = reply.map_err(|error| StoreError::from(&error))?;
                deleted += unlink(&node, &keys, timeouts).await?;
                cursor = next_cursor;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(deleted)
    }
}

/// Deletes `keys` in one round trip, with a command for each, since in a cluster they are in many slots.
async fn unlink(node: &RedisNode, keys: &[Vec<u8>], timeouts: Timeouts) -> Result<u64, StoreError> {
    if keys.is_empty() {
        return Ok(0);
    }
    let unlink = |key: &Vec<u8>| {
        let mut command = redis::cmd("UNLINK");
        command.arg(key);
        command
    };
    let commands: Vec<Cmd> = keys.iter().map(unlink).collect();
    let replies = node.send_each(&commands, timeouts).await.map_err(|error| StoreError::from(&error))?;
    let mut deleted = 0;
    for reply in replies {
        deleted += u64::from(reply.map_err(|error| StoreError::from(&error))? == Value::Int(1));
    }
    Ok(deleted)
}
