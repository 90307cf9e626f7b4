//! `RuleChanges`: how a rule file differs from an earlier one, by rule and by section.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher24;

use crate::read::Node;
use crate::rule_file::RuleFile;

/// How a rule file differs from an earlier one. Comments, positions and the order of fields do not count.
///
/// ```
/// use tidegate_rules::RuleFile;
///
/// let rule = |id: &str, limit: u32| format!("- {{ id: {id}, per: [ip], fixed_window: {{ limit: {limit}, window: 1m }} }}\n");
/// let file = |rules: &[String]| RuleFile::parse("rules.yaml", &format!("version: 1\nrules:\n{}", rules.concat()));
/// let before = file(&[rule("login", 5), rule("search", 60)])?;
/// let after = file(&[rule("search", 90), rule("export", 3)])?;
///
/// let changes = after.changes_since(&before);
/// assert_eq!((changes.added(), changes.changed(), changes.removed()), (&["export".into()][..], &["search".into()][..], &["login".into()][..]));
/// # Ok::<(), tidegate_rules::Report>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleChanges {
    added: Vec<String>,
    changed: Vec<String>,
    removed: Vec<String>,
    settings: Vec<String>,
}

/// Hashes of the rules by id, and of the other sections of a file by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContentHashes {
    rules: BTreeMap<String, u64>,
    sections: BTreeMap<String, u64>,
}

impl RuleChanges {
    /// Ids of the rules that only the later file has, sorted.
    pub fn added(&self) -> &[String] {
        &self.added
    }

    /// Ids of the rules that both files have, with another content.
    pub fn changed(&self) -> &[String] {
        &self.changed
    }

    /// Ids of the rules that only the earlier file has.
    pub fn removed(&self) -> &[String] {
        &self.removed
    }

    /// Names of the other sections that differ, such as `identify` or `plans`.
    pub fn settings(&self) -> &[String] {
        &self.settings
    }
}

impl RuleFile {
    /// A hash of the content: equal for files without [changes](Self::changes_since), in every process. It may reveal a short value.
    pub fn content_hash(&self) -> u64 {
        let mut hasher = SipHasher24::new();
        for (name, hash) in self.hashes.rules.iter().chain(&self.hashes.sections) {
            (name, hash).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// How this file differs from an earlier one.
    pub fn changes_since(&self, earlier: &Self) -> RuleChanges {
        let (before, after) = (&earlier.hashes, &self.hashes);
        let missing_in = |rules: &BTreeMap<String, u64>, others: &BTreeMap<String, u64>| {
            others.keys().filter(|id| !rules.contains_key(*id)).cloned().collect()
        };
        let is_changed = |(id, hash): &(&String, &u64)| before.rules.get(*id).is_some_and(|earlier| earlier != *hash);
        let mut settings: Vec<String> = missing_in(&after.sections, &before.sections);
        let is_setting_changed = |(name, hash): &(&String, &u64)| before.sections.get(*name) != Some(*hash);
        settings.extend(after.sections.iter().filter(is_setting_changed).map(|(name, _)| name.clone()));
        settings.sort_unstable();
        RuleChanges {
            added: missing_in(&before.rules, &after.rules),
            changed: after.rules.iter().filter(is_changed).map(|(id, _)| id.clone()).collect(),
            removed: missing_in(&after.rules, &before.rules),
            settings,
        }
    }
}

impl ContentHashes {
    /// The hashes of a file: its rules, and `root` without them.
    pub(crate) fn new(rules: &[Node], root: &Node) -> Self {
        let rules = rules.iter().filter_map(|rule| Some((rule.value("id")?.text()?.to_owned(), rule.content_hash())));
        let sections =
            root.entries().iter().filter_map(|(key, value)| Some((key.text()?.to_owned(), value.content_hash())));
        Self { rules: rules.collect(), sections: sections.filter(|(name, _)| name != "rules").collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
version: 1
identify: { user: header:x-user }
rules:
- { id: login, per: [user], fixed_window: { limit: 5, window: 1m } }
- { id: search, per: [ip], fixed_window: { limit: 60, window: 1m } }
";

    fn changes(before: &str, after: &str) -> RuleChanges {
        let parse = |text: &str| RuleFile::parse("rules.yaml", text).unwrap();
        parse(after).changes_since(&parse(before))
    }

    #[test]
    fn comments_positions_and_the_order_of_fields_and_rules_are_no_changes() {
        let same = "
# A comment.
rules:
- per: [ip]
  fixed_window: { window: 1m, limit: 60 }
  id: 'search'
- { id: login, per: [user], fixed_window: { limit: 5, window: 1m } }
identify:
    user: header:x-user
version: 1
";
        assert_eq!(changes(FILE, same), RuleChanges::default());
        let hash = |text: &str| RuleFile::parse("rules.yaml", text).unwrap().content_hash();
        assert_eq!(hash(same), hash(FILE));
    }

    #[test]
    fn a_change_of_any_value_names_its_rule_or_its_section() {
        let named = |changes: &RuleChanges| {
            [&changes.added, &changes.changed, &changes.removed, &changes.settings].map(|list| list.join(","))
        };
        for (from, to, expected) in [
            ("limit: 5,", "limit: 6,", ["", "login", "", ""]),
            ("per: [ip]", "per: [user]", ["", "search", "", ""]),
            ("id: search", "id: find", ["find", "", "search", ""]),
            ("header:x-user", "header:x-account", ["", "", "", "identify"]),
            (
                "identify: { user: header:x-user }",
                "identify: { user: header:x-user, trusted_proxies: [10.0.0.0/8] }",
                ["", "", "", "identify"],
            ),
            ("version: 1", "version: 1\nhttp: { retry_after_ms: false }", ["", "", "", "http"]),
        ] {
            let after = FILE.replace(from, to);
            assert_eq!(named(&changes(FILE, &after)), expected, "{to}");
            let hash = |text: &str| RuleFile::parse("rules.yaml", text).unwrap().content_hash();
            assert_ne!(hash(&after), hash(FILE), "{to}");
        }
        let without_plans = changes("version: 1\nplans: { pro: {} }\nrules: []\n", "version: 1\nrules: []\n");
        assert_eq!(named(&without_plans), ["", "", "", "plans"]);
    }
}
