//! Which servers will do: Redis 7.0 or later, Valkey 7.2 or later.

use tidegate::{StoreError, StoreErrorKind};

/// Reads the answer to `INFO server` and refuses what is too old.
pub(crate) fn check(info: &str) -> Result<(), StoreError> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let (server, version, least) = match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => ("Valkey", version, (7, 2)),
        (None, Some(version)) => ("Redis", version, (7, 0)),
        (None, None) => {
            let message = "the server does not say which version it is; Redis 7.0 or Valkey 7.2 is needed";
            return Err(StoreError::new(StoreErrorKind::Unsupported, message));
        }
    };
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found >= least {
        return Ok(());
    }
    let (major, minor) = least;
    let message = format!("the server is {server} {version}; {server} {major}.{minor} or later is needed: upgrade it");
    Err(StoreError::new(StoreErrorKind::Unsupported, message))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn old_servers_are_refused_by_name_and_number() {
        assert!(check("redis_version:7.0.15\r\n").is_ok());
        assert!(check("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n").is_ok());
        let told = |info| check(info).unwrap_err().to_string();
        assert_eq!(
            told("# Server\r\nredis_version:6.2.14\r\n"),
            "the server is Redis 6.2.14; Redis 7.0 or later is needed: upgrade it"
        );
        assert!(told("redis_version:7.2.4\r\nvalkey_version:7.0.1\r\n").contains("Valkey 7.2 or later"));
        assert!(told("nothing").contains("does not say"));
    }
}
