//! The supported server versions: Redis 7.0 or later, Valkey 7.2 or later.

use tidegate::{StoreError, StoreErrorKind};

/// Rejects a server that is too old, by its reply to `INFO server`.
pub(crate) fn require_supported(info: &str) -> Result<(), StoreError> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let (server, version, minimum) = match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => ("Valkey", version, (7, 2)),
        (None, Some(version)) => ("Redis", version, (7, 0)),
        (None, None) => {
            let message = "the server does not report its version; Redis 7.0 or Valkey 7.2 is needed";
            return Err(StoreError::new(StoreErrorKind::Unsupported, message));
        }
    };
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let current = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if current >= minimum {
        return Ok(());
    }
    let (major, minor) = minimum;
    let message = format!("the server is {server} {version}; {server} {major}.{minor} or later is needed: upgrade it");
    Err(StoreError::new(StoreErrorKind::Unsupported, message))
}

#[cfg(test)]
mod tests {
    use super::require_supported;

    #[test]
    fn servers_that_are_too_old_are_rejected_with_name_and_version() {
        assert!(require_supported("redis_version:7.0.15\r\n").is_ok());
        assert!(require_supported("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n").is_ok());
        let error = |info| require_supported(info).unwrap_err().to_string();
        assert_eq!(
            error("# Server\r\nredis_version:6.2.14\r\n"),
            "the server is Redis 6.2.14; Redis 7.0 or later is needed: upgrade it"
        );
        assert!(error("redis_version:7.2.4\r\nvalkey_version:7.0.1\r\n").contains("Valkey 7.2 or later"));
        assert!(error("nothing").contains("does not report"));
    }
}
