//! `FileDescriptorBounds`: how the file descriptors of the process are shared. Each address has a part of its own, and some are reserved
//! for the admin address, the store and files, so that clients of one address cannot use up those of another.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for the admin address, the store, files and the runtime.
const MAX_RESERVED: usize = 128;

/// The share of the descriptors that is reserved if there are few.
const RESERVED_PART: usize = 4;

/// The share of the descriptors that connections to the upstream may have if there are few.
const UPSTREAM_PART: usize = 4;

/// The connections that each address may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileDescriptorBounds {
    /// Of each address for clients.
    pub(crate) connections: usize,
    /// Of the admin address.
    pub(crate) admin_connections: usize,
    /// To the upstream.
    pub(crate) upstream: usize,
    /// The limit of the process, if it has less than the flags ask for.
    pub(crate) shortage: Option<usize>,
}

/// Raises the limit of the process as far as the system allows. Returns it; `None` if there is none.
pub(crate) fn raise_limit() -> Option<usize> {
    let limit = getrlimit(Resource::Nofile);
    // A failure leaves the limit as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let limit = getrlimit(Resource::Nofile).current?;
    Some(usize::try_from(limit).unwrap_or(usize::MAX))
}

impl FileDescriptorBounds {
    /// Shares `limit` descriptors between `addresses` with up to `connections` each, and up to `upstream` connections.
    pub(crate) fn new(limit: Option<usize>, addresses: usize, connections: usize, upstream: usize) -> Self {
        let limit = limit.unwrap_or(usize::MAX);
        let reserved = MAX_RESERVED.min(limit / RESERVED_PART);
        let available = limit - reserved;
        let admin_connections = (reserved / 2).max(1);
        let wanted = connections.saturating_mul(addresses).saturating_add(upstream);
        if wanted <= available {
            return Self { connections, admin_connections, upstream, shortage: None };
        }
        let upstream = upstream.min(available / UPSTREAM_PART);
        let connections = connections.min((available - upstream) / addresses.max(1)).max(1);
        Self { connections, admin_connections, upstream, shortage: Some(limit) }
    }

    /// Logs a shortage.
    pub(crate) fn log(&self) {
        let Some(limit) = self.shortage else { return };
        let (connections, upstream) = (self.connections, self.upstream);
        tracing::warn!(
            target: "tidegate::server",
            limit,
            connections,
            upstream,
            "the process may open only {limit} files, so each address accepts {connections} connections. Raise the limit (ulimit -n, \
             LimitNOFILE=), or lower --max-connections"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_enough_descriptors_the_flags_count() {
        for limit in [None, Some(1_048_576), Some(31_024 + 128)] {
            let plan = FileDescriptorBounds::new(limit, 3, 10_000, 1024);
            assert_eq!((plan.connections, plan.upstream, plan.shortage), (10_000, 1024, None), "{limit:?}");
        }
    }

    #[test]
    fn with_few_descriptors_each_address_has_a_part_and_the_rest_is_reserved() {
        for limit in [16, 64, 256, 1024, 4096, 20_000] {
            for (addresses, upstream) in [(2, 0), (3, 1024)] {
                let plan = FileDescriptorBounds::new(Some(limit), addresses, 10_000, upstream);
                assert!(plan.connections >= 1 && plan.admin_connections >= 1, "{plan:?}");
                let used = plan.connections * addresses + plan.upstream + plan.admin_connections;
                assert!(used < limit, "{limit}: {plan:?}");
                assert_eq!(plan.shortage, Some(limit));
            }
        }
        let plan = FileDescriptorBounds::new(Some(1024), 3, 10_000, 1024);
        assert_eq!((plan.connections, plan.upstream, plan.admin_connections), (224, 224, 64));
    }
}
