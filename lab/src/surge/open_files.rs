//! The limit on open files. Client and gateway run in one process, so that each connection between them takes two.

use tidegate_server::command::Failure;

use crate::traffic::raise_file_limit;

/// Files of a run without a flood: its crowd shares connections.
const CROWD_FILES: u64 = 1024;

/// Raises the limit of this process if it is too low for a flood over this many connections.
pub(crate) fn raise_limit(flood_connections: u32) -> Result<(), Failure> {
    let needed = files_needed(flood_connections);
    raise_file_limit(needed).map_err(|allowed| {
        Failure::usage(format!(
            "--flood {flood_connections} needs {needed} open files, and this system allows {allowed}; raise the limit \
             (`ulimit -n`), or choose fewer connections"
        ))
    })
}

fn files_needed(flood_connections: u32) -> u64 {
    CROWD_FILES + 2 * u64::from(flood_connections)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit};

    use super::*;

    #[test]
    fn a_flood_needs_two_files_for_each_connection() {
        assert_eq!((files_needed(0), files_needed(1000)), (1024, 3024));
    }

    #[test]
    fn the_limit_suffices_after_it_was_raised() {
        let limits = getrlimit(Resource::Nofile);
        if limits.maximum.is_none_or(|limit| limit >= files_needed(1000)) {
            assert!(raise_limit(1000).is_ok());
            assert!(getrlimit(Resource::Nofile).current.is_none_or(|limit| limit >= files_needed(1000)));
        } else {
            assert!(raise_limit(1000).is_err());
        }
    }
}
