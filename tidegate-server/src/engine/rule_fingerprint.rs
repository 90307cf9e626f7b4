//! `RuleFingerprint`: tells whether two instances have the same rules, and reveals nothing of them. It depends on the secret, too: instances
//! with different secrets share no limit either.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::Secret;
use tidegate::spi::SubjectHasher;
use tidegate_rules::RuleFile;

use crate::doors::envoy::door::Envoy;

/// The fingerprint of the rules and limits in force.
pub(crate) struct RuleFingerprint {
    hasher: SubjectHasher,
    current: AtomicU64,
}

impl RuleFingerprint {
    pub(crate) fn new(secret: &Secret) -> Self {
        let hasher = secret.hasher(["fingerprint of rules", "fingerprint of Envoy's limits"]);
        Self { hasher, current: AtomicU64::default() }
    }

    /// Computes that of these rules and limits, which are in force from now on.
    pub(crate) fn update(&self, file: &RuleFile, envoy: &Envoy) -> u64 {
        let (rules, limits) = (file.content_hash().to_string(), envoy.limit_lines());
        let fingerprint = self.hasher.subject([Some(&*rules), limits.as_deref()].into_iter()).hash() as u64;
        self.current.store(fingerprint, Ordering::Relaxed);
        fingerprint
    }

    pub(crate) fn current(&self) -> u64 {
        self.current.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::doors::envoy::door::EnvoyArgs;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        envoy: EnvoyArgs,
    }

    /// The fingerprint of a limit in the rule file and one in Envoy's files.
    fn fingerprint(secret: &str, limit: u32, per_unit: Option<u32>) -> u64 {
        let secret = Secret::new(secret);
        let rules =
            format!("version: 1\nrules: [{{ id: a, per: [ip], fixed_window: {{ limit: {limit}, window: 1h }} }}]\n");
        let file = RuleFile::parse("rules.yaml", &rules).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut line = vec!["serve".into()];
        if let Some(per_unit) = per_unit {
            let limit = format!("{{ unit: hour, requests_per_unit: {per_unit} }}");
            let text = format!("domain: edge\ndescriptors: [{{ key: k, rate_limit: {limit} }}]\n");
            std::fs::write(folder.path().join("edge.yaml"), text).unwrap();
            line.extend(["--envoy-config".into(), folder.path().as_os_str().to_owned()]);
        }
        let arguments = Flags::try_parse_from(line).unwrap().envoy;
        let envoy = Envoy::open(&arguments, true, std::time::Duration::from_millis(15), &secret).unwrap();
        RuleFingerprint::new(&secret).update(&file, &envoy)
    }

    #[test]
    fn the_fingerprint_differs_with_a_rule_a_limit_of_envoy_and_the_secret() {
        let of = fingerprint;
        assert_eq!([of("s", 1, None), of("s", 1, Some(2))], [of("s", 1, None), of("s", 1, Some(2))]);
        let all = [of("s", 1, None), of("s", 2, None), of("s", 1, Some(1)), of("s", 1, Some(2)), of("t", 1, None)];
        assert_eq!(std::collections::BTreeSet::from(all).len(), all.len(), "{all:x?}");
    }
}
