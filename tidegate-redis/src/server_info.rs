//! `ServerInfo`: what one server reports about itself at startup. Rejects servers that cannot work, and warns about
//! settings that an operator should change.

use tidegate::{Clock, StoreError, StoreErrorKind, SystemClock};

use crate::error::CLUSTER_MODE;
use crate::node::RedisNode;
use crate::node_error::NodeError;
use crate::timeouts::Timeouts;
use crate::version;

/// The sections of `INFO` that are read.
const INFO_SECTIONS: &[&str] = &["server", "memory", "persistence", "replication", "cluster"];

/// A larger difference between the clocks of the server and of this host causes a warning.
const MAX_CLOCK_SKEW_MICROS: u64 = 1_000_000;

/// What one server reports about itself.
#[derive(Default)]
pub(crate) struct ServerInfo {
    /// The reply to `INFO`.
    info: String,
    /// The setting `save`; empty where the user may not read it.
    save: String,
    /// The setting `appendfsync`; empty where the user may not read it.
    appendfsync: String,
    /// How far the server's clock is ahead of this host's; negative if it is behind.
    skew_micros: i64,
}

impl ServerInfo {
    /// Queries `node`, and rejects a server that cannot work. Without `host_clock`, clocks are not compared.
    pub(crate) async fn query(
        node: &RedisNode,
        is_cluster: bool,
        host_clock: Option<&SystemClock>,
        timeouts: Timeouts,
    ) -> Result<Self, StoreError> {
        let store_error = |error: NodeError| StoreError::from(&error);
        let info = node.query::<String>(redis::cmd("INFO").arg(INFO_SECTIONS), timeouts).await.map_err(store_error)?;
        let mut server = Self { info, ..Self::default() };
        server.require_usable(is_cluster)?;
        let before = host_clock.map(|clock| clock.now().as_micros());
        let (seconds, micros) = node.query::<(u64, u64)>(&redis::cmd("TIME"), timeouts).await.map_err(store_error)?;
        if let (Some(before), Some(after)) = (before, host_clock.map(|clock| clock.now().as_micros())) {
            server.skew_micros = skew_micros(seconds * 1_000_000 + micros, before, after);
        }
        server.save = setting(node, "save", timeouts).await;
        server.appendfsync = setting(node, "appendfsync", timeouts).await;
        Ok(server)
    }

    /// Rejects a server that is too old, a replica, or in cluster mode although the URL says otherwise.
    fn require_usable(&self, is_cluster: bool) -> Result<(), StoreError> {
        version::require_supported(&self.info)?;
        if !is_cluster && self.field("cluster_enabled") == Some("1") {
            return Err(StoreError::new(StoreErrorKind::Unsupported, CLUSTER_MODE));
        }
        if self.field("role") == Some("slave") {
            let message = "the server is a replica; connect to its primary, or to the sentinels with redis+sentinel://";
            return Err(StoreError::new(StoreErrorKind::Refused, message));
        }
        Ok(())
    }

    /// Settings that an operator should change, one sentence each.
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
                 and every limit is reset; set maxmemory below what the machine has"
                    .to_owned(),
            );
        }
        if self.field("aof_enabled") == Some("1") && self.appendfsync == "always" {
            warnings.push(
                "every check waits for the server's disk (appendfsync always), which limits do not need: set it to \
                 everysec, or appendonly to no"
                    .to_owned(),
            );
        }
        if !self.save.is_empty() {
            warnings.push(format!(
                "the server saves snapshots to disk (save {}): while it forks for one, all checks wait, and its memory \
                 may double; limits are too short-lived to need snapshots: set save to \"\"",
                self.save
            ));
        }
        if self.skew_micros.unsigned_abs() > MAX_CLOCK_SKEW_MICROS {
            let seconds = self.skew_micros.unsigned_abs() / 1_000_000;
            let direction = if self.skew_micros > 0 { "ahead of" } else { "behind" };
            warnings.push(format!(
                "the server's clock is {seconds} s {direction} this host's; windows begin and end by the server's clock: \
                 synchronize both with the same time server"
            ));
        }
        warnings
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

/// The value of a setting; empty where `CONFIG GET` is forbidden, as by many hosting providers.
async fn setting(node: &RedisNode, name: &str, timeouts: Timeouts) -> String {
    let reply = node.query::<Vec<String>>(redis::cmd("CONFIG").arg("GET").arg(name), timeouts).await;
    reply.ok().and_then(|pair| pair.into_iter().nth(1)).unwrap_or_default()
}

/// How far `server` is outside of the interval between this host's clock before and after the query.
fn skew_micros(server: u64, before: u64, after: u64) -> i64 {
    let signed = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX);
    if server > after { signed(server - after) } else { -signed(before.saturating_sub(server)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(info: &str) -> ServerInfo {
        ServerInfo { info: info.replace(' ', "\r\n"), ..ServerInfo::default() }
    }

    #[test]
    fn a_well_configured_server_causes_no_warning() {
        let server = server("redis_version:7.0.15 maxmemory:100 maxmemory_policy:noeviction aof_enabled:1 role:master");
        assert!(server.require_usable(false).is_ok());
        assert!(server.warnings().is_empty(), "{:?}", server.warnings());
    }

    #[test]
    fn each_warning_names_the_problem_and_the_setting_to_change() {
        let assert_warning = |server: ServerInfo, problem: &str, remedy: &str| {
            let warnings = server.warnings();
            assert!(
                warnings.len() == 1 && warnings[0].contains(problem) && warnings[0].contains(remedy),
                "{warnings:?}"
            );
        };
        assert_warning(server("maxmemory:1 maxmemory_policy:allkeys-lru"), "allkeys-lru", "set it to noeviction");
        assert_warning(server("maxmemory:0"), "no memory limit", "set maxmemory");
        assert_warning(
            ServerInfo { appendfsync: "always".into(), ..server("aof_enabled:1") },
            "waits for the server's disk",
            "everysec",
        );
        assert_warning(ServerInfo { save: "3600 1".into(), ..server("") }, "save 3600 1", "set save to \"\"");
        assert_warning(ServerInfo { skew_micros: -3_500_000, ..server("") }, "3 s behind", "same time server");
        let harmless = ServerInfo { appendfsync: "always".into(), skew_micros: 1_000_000, ..server("aof_enabled:0") };
        assert!(harmless.warnings().is_empty());
    }

    #[test]
    fn a_server_that_cannot_work_is_rejected() {
        let error = |server: &ServerInfo| server.require_usable(false).unwrap_err();
        let replica = server("redis_version:7.0.15 role:slave");
        assert!(error(&replica).to_string().contains("redis+sentinel://") && error(&replica).is_transient());
        let member = server("redis_version:7.0.15 role:master cluster_enabled:1");
        assert!(error(&member).to_string().contains("redis+cluster://"));
        assert!(member.require_usable(true).is_ok());
        assert_eq!(error(&server("redis_version:6.2.1 role:master")).kind(), StoreErrorKind::Unsupported);
    }

    #[test]
    fn the_duration_of_the_query_does_not_count_as_clock_skew() {
        assert_eq!((skew_micros(15, 10, 20), skew_micros(10, 10, 20), skew_micros(20, 10, 20)), (0, 0, 0));
        assert_eq!((skew_micros(25, 10, 20), skew_micros(3, 10, 20)), (5, -7));
    }
}
