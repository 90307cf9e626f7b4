//! Forgetting all keys of a prefix: for a run that had one of its own. It decides nothing, and looks at names only.

use redis::Value;
use tidegate::StoreError;

use crate::RedisStore;
use crate::node::{Call, Node};
use crate::patience::Patience;

/// How many keys a server looks at before others have their turn.
const AT_A_TIME: u32 = 1000;

impl RedisStore {
    /// Deletes every key that begins with the [prefix](crate::RedisOptions::prefix) of this store, and says how many there
    /// were: for a run that had a prefix of its own. Whoever else uses the prefix, or one that begins with it, starts afresh.
    ///
    /// It looks at the name of every key on the servers, some at a time.
    pub async fn forget_prefix(&self) -> Result<u64, StoreError> {
        let (pattern, patience) = (all_with(&self.options.prefix), Patience::starting(&self.options));
        let mut forgotten = 0;
        for (_, node) in self.link.primaries(patience).await? {
            let mut cursor = 0;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(AT_A_TIME);
                let found = node.query::<(u64, Vec<Vec<u8>>)>(&scan, patience).await;
                let found = found.map_err(|error| StoreError::from(&error))?;
                forgotten += unlink(&node, &found.1, patience).await?;
                cursor = found.0;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(forgotten)
    }
}

/// Deletes these, one by one, since in a cluster they lie in many slots; but in one round trip.
async fn unlink(node: &Node, keys: &[Vec<u8>], patience: Patience) -> Result<u64, StoreError> {
    let failed = |error| StoreError::from(&error);
    if keys.is_empty() {
        return Ok(0);
    }
    let call = |key: &Vec<u8>| {
        let mut command = redis::cmd("UNLINK");
        command.arg(key);
        Call { command, script: None, patience }
    };
    let calls: Vec<Call> = keys.iter().map(call).collect();
    let replies = node.send_each(&calls.iter().collect::<Vec<_>>()).await.map_err(failed)?;
    let mut forgotten = 0;
    for reply in replies {
        forgotten += u64::from(reply.map_err(failed)? == Value::Int(1));
    }
    Ok(forgotten)
}

/// The pattern of all names that begin with `prefix`; nothing in that stands for anything but itself.
fn all_with(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for character in prefix.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_a_pattern_means_itself_in_a_prefix() {
        assert_eq!(all_with("surge7"), "surge7*");
        assert_eq!(all_with("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\*");
    }
}
