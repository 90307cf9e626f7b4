//! What a server should be told differently: nothing that stops us, but somebody should know.

/// Reads the answer to `INFO server memory`.
pub(crate) fn warnings(info: &str) -> Vec<String> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let mut warnings = Vec::new();
    if let Some(policy) = field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        warnings.push(format!(
            "the server drops keys when its memory is full (maxmemory-policy {policy}), which silently resets limits; \
             set it to noeviction, on a server that holds nothing else"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::warnings;

    #[test]
    fn a_policy_that_drops_limits_is_told() {
        assert!(warnings("maxmemory:0\r\nmaxmemory_policy:noeviction\r\n").is_empty());
        let told = warnings("maxmemory_policy:allkeys-lru\r\n");
        assert!(told.len() == 1 && told[0].contains("allkeys-lru") && told[0].contains("set it to noeviction"));
    }
}
