//! What is looked at when the store is opened: what stops us, and what somebody should know. In words that say what to do.

use tidegate::{Clock, StoreError, StoreErrorKind, SystemClock};

use crate::error::IN_A_CLUSTER;
use crate::node::Node;
use crate::patience::Patience;
use crate::version;

/// By how much the clocks of a server and of this host may differ without a word, in microseconds.
const TOLERATED_SKEW: u64 = 1_000_000;

/// What one server says of itself.
#[derive(Default)]
pub(crate) struct Found {
    /// The answer to `INFO`.
    info: String,
    /// The settings `save` and `appendfsync`: empty where the user may not look at them.
    save: String,
    appendfsync: String,
    /// By how much the clock of the server is ahead of ours (or behind, if negative), in microseconds.
    ahead: i64,
}

impl Found {
    /// Asks `node`, and refuses one that cannot serve. Without the clock of this `host`, clocks are not compared.
    pub(crate) async fn ask(
        node: &Node,
        as_cluster: bool,
        host: Option<&SystemClock>,
        patience: Patience,
    ) -> Result<Self, StoreError> {
        let failed = |error| StoreError::from(&error);
        let info = node.query::<String>(redis::cmd("INFO").arg(SECTIONS), patience).await.map_err(failed)?;
        let mut found = Self { info, ..Self::default() };
        found.check(as_cluster)?;
        let before = host.map(|clock| clock.now().as_micros());
        let (seconds, micros) = node.query::<(u64, u64)>(&redis::cmd("TIME"), patience).await.map_err(failed)?;
        if let (Some(before), Some(after)) = (before, host.map(|clock| clock.now().as_micros())) {
            found.ahead = ahead(seconds * 1_000_000 + micros, before, after);
        }
        found.save = setting(node, "save", patience).await;
        found.appendfsync = setting(node, "appendfsync", patience).await;
        Ok(found)
    }

    /// Refuses a server that cannot serve: too old, a replica, or part of a cluster that is not spoken to as one.
    fn check(&self, as_cluster: bool) -> Result<(), StoreError> {
        version::check(&self.info)?;
        if !as_cluster && self.field("cluster_enabled") == Some("1") {
            return Err(StoreError::new(StoreErrorKind::Unsupported, IN_A_CLUSTER));
        }
        if self.field("role") == Some("slave") {
            let message = "the server is a replica; connect to its primary, or to the sentinels with redis+sentinel://";
            return Err(StoreError::new(StoreErrorKind::Refused, message));
        }
        Ok(())
    }

    /// What somebody should change, or at least know.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(policy) = self.field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
            warnings.push(format!(
                "the server drops keys when its memory is full (maxmemory-policy {policy}), which silently resets limits; \
                 set it to noeviction, on a server that holds nothing else"
            ));
        }
        if self.field("maxmemory") == Some("0") {
            warnings.push(
                "the server has no memory limit (maxmemory 0): when the machine is out of memory, the server is killed \
                 and every limit starts afresh; set maxmemory below what the machine has"
                    .to_owned(),
            );
        }
        if self.field("aof_enabled") == Some("1") && self.appendfsync == "always" {
            warnings.push(
                "every check waits for the server's disk (appendfsync always); limits need no such care: set it to \
                 everysec, or appendonly to no"
                    .to_owned(),
            );
        }
        if !self.save.is_empty() {
            warnings.push(format!(
                "the server saves everything to disk now and then (save {}): while it forks for that, all checks wait, and \
                 memory may double; limits do not live long enough to need it: set save to \"\"",
                self.save
            ));
        }
        if self.ahead.unsigned_abs() > TOLERATED_SKEW {
            let (seconds, side) =
                (self.ahead.unsigned_abs() / 1_000_000, if self.ahead > 0 { "ahead of" } else { "behind" });
            warnings.push(format!(
                "the server's clock is {seconds} s {side} this host's; limits go by the server's, so windows begin and end by \
                 it: let both follow the same time server"
            ));
        }
        warnings
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

/// The sections of `INFO` that are read.
const SECTIONS: &[&str] = &["server", "memory", "persistence", "replication", "cluster"];

/// What `CONFIG GET` says; nothing where it is forbidden, as many providers do.
async fn setting(node: &Node, name: &str, patience: Patience) -> String {
    let answer = node.query::<Vec<String>>(redis::cmd("CONFIG").arg("GET").arg(name), patience).await;
    answer.ok().and_then(|pair| pair.into_iter().nth(1)).unwrap_or_default()
}

/// By how much `server` lies outside of what this host's clock showed before and after the question.
fn ahead(server: u64, before: u64, after: u64) -> i64 {
    let signed = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX);
    if server > after { signed(server - after) } else { -signed(before.saturating_sub(server)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(info: &str) -> Found {
        Found { info: info.replace(' ', "\r\n"), ..Found::default() }
    }

    #[test]
    fn a_server_as_it_should_be_is_not_talked_about() {
        let good = found("redis_version:7.0.15 maxmemory:100 maxmemory_policy:noeviction aof_enabled:1 role:master");
        assert!(good.check(false).is_ok());
        assert!(good.warnings().is_empty(), "{:?}", good.warnings());
    }

    #[test]
    fn each_warning_says_what_to_set() {
        let told = |found: Found, what: &str, remedy: &str| {
            let told = found.warnings();
            assert!(told.len() == 1 && told[0].contains(what) && told[0].contains(remedy), "{told:?}");
        };
        told(found("maxmemory:1 maxmemory_policy:allkeys-lru"), "allkeys-lru", "set it to noeviction");
        told(found("maxmemory:0"), "no memory limit", "set maxmemory");
        told(
            Found { appendfsync: "always".into(), ..found("aof_enabled:1") },
            "waits for the server's disk",
            "everysec",
        );
        told(Found { save: "3600 1".into(), ..found("") }, "save 3600 1", "set save to \"\"");
        told(Found { ahead: -3_500_000, ..found("") }, "3 s behind", "same time server");
        assert!(
            Found { appendfsync: "always".into(), ahead: 1_000_000, ..found("aof_enabled:0") }.warnings().is_empty()
        );
    }

    #[test]
    fn a_server_that_cannot_serve_is_refused() {
        let told = |found: &Found| found.check(false).unwrap_err();
        let replica = found("redis_version:7.0.15 role:slave");
        assert!(told(&replica).to_string().contains("redis+sentinel://") && told(&replica).is_transient());
        let member = found("redis_version:7.0.15 role:master cluster_enabled:1");
        assert!(told(&member).to_string().contains("redis+cluster://"));
        assert!(member.check(true).is_ok());
        assert_eq!(told(&found("redis_version:6.2.1 role:master")).kind(), StoreErrorKind::Unsupported);
    }

    #[test]
    fn the_time_that_a_question_takes_is_no_skew() {
        assert_eq!((ahead(15, 10, 20), ahead(10, 10, 20), ahead(20, 10, 20)), (0, 0, 0));
        assert_eq!((ahead(25, 10, 20), ahead(3, 10, 20)), (5, -7));
    }
}
