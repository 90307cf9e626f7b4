//! The limit of open files, which many connections need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of this process, and of those that it starts, to `needed` files if it is lower. The error is the number that the
/// system allows.
pub(crate) fn raise_file_limit(needed: u64) -> Result<(), u64> {
    let limits = getrlimit(Resource::Nofile);
    let suffices = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if suffices(limits.current) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), ..limits };
    if suffices(limits.maximum) && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    Err(limits.maximum.unwrap_or(needed))
}
