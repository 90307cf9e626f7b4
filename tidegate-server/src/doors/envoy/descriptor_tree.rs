//! The descriptor tree of a domain, and the lookup of a request's entries in it. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::spi::Gate;

use super::messages::{Entry, Struct, Unit};
use super::pattern::Pattern;
use super::stats::LimitCounters;

/// The descriptors at one level of the tree.
#[derive(Debug, Default)]
pub(super) struct DescriptorLevel {
    /// By key and value.
    exact: HashMap<String, HashMap<String, DescriptorNode>>,
    /// Descriptors with a `*`, in the order of the file.
    wildcards: Vec<(Wildcard, DescriptorNode)>,
    /// Descriptors without a value, by key.
    by_key: HashMap<String, DescriptorNode>,
}

/// A descriptor of the file: its limit, if any, and its nested descriptors.
#[derive(Debug, Default)]
pub(super) struct DescriptorNode {
    /// `key`, or `key_value`.
    pub(super) text: String,
    pub(super) limit: Option<ConfiguredLimit>,
    pub(super) children: DescriptorLevel,
    /// Whether counter names contain the request's value for this descriptor.
    pub(super) value_to_metric: bool,
    /// The value to count under, if all values that match this wildcard share one counter (`share_threshold`).
    pub(super) shared_value: Option<String>,
}

/// A limit of the file.
#[derive(Debug)]
pub(super) struct ConfiguredLimit {
    /// Its path, such as `edge.path_/login.user`.
    pub(super) full_key: String,
    /// The prefix of its keys in the store.
    pub(super) owner: String,
    pub(super) name: String,
    pub(super) replaces: Vec<String>,
    pub(super) shadow: bool,
    pub(super) quota: bool,
    /// Whether denied hits count (`count_refused`). `None`: those of charges do, if they exceed this limit.
    pub(super) counts_denied: Option<bool>,
    /// The metadata of responses that passed this limit.
    pub(super) metadata: Option<Struct>,
    pub(super) counter_naming: CounterNaming,
    /// `None` for an unlimited descriptor.
    pub(super) rate: Option<RequestRate>,
}

/// The statistics counters of a limit.
#[derive(Debug)]
pub(super) enum CounterNaming {
    /// One set of counters.
    PerLimit(Arc<LimitCounters>),
    /// A set for each combination of request values: of `all` entries, or of those with `value_to_metric`.
    PerValue { all: bool },
}

/// Requests per unit, with the gate that enforces them.
#[derive(Debug)]
pub(super) struct RequestRate {
    pub(super) requests: u32,
    pub(super) unit: Unit,
    /// Hits above this number count as near the limit.
    pub(super) near_threshold: u64,
    pub(super) gate: Gate,
}

#[derive(Debug)]
struct Wildcard {
    text: String,
    pattern: Pattern,
}

/// The result of a lookup.
pub(super) struct LookupResult<'c> {
    pub(super) limit: Option<&'c ConfiguredLimit>,
    /// The values to count under instead of the request's, by index of the entry.
    pub(super) shared_values: Vec<(usize, &'c str)>,
}

impl DescriptorLevel {
    /// Adds a descriptor. Returns false if the level has one with this key and value.
    pub(super) fn add(&mut self, key: &str, value: &str, node: DescriptorNode) -> bool {
        let text = join_key_value(key, value);
        if let Some(pattern) = Pattern::new(&text) {
            if self.wildcards.iter().any(|(existing, _)| existing.text == text) {
                return false;
            }
            self.wildcards.push((Wildcard { text, pattern }, node));
            return true;
        }
        let (level, name) = match value {
            "" => (&mut self.by_key, key),
            _ => (self.exact.entry(key.to_owned()).or_default(), value),
        };
        if level.contains_key(name) {
            return false;
        }
        level.insert(name.to_owned(), node);
        true
    }

    /// The descriptor for an entry: the exact value, else the first matching wildcard, else the key alone.
    fn child(&self, entry: &Entry) -> Option<&DescriptorNode> {
        let exact = self.exact.get(&entry.key).and_then(|values| values.get(&entry.value));
        exact.or_else(|| self.wildcard(entry)).or_else(|| self.by_key.get(&entry.key))
    }

    fn wildcard(&self, entry: &Entry) -> Option<&DescriptorNode> {
        if self.wildcards.is_empty() {
            return None;
        }
        let Entry { key, value } = entry;
        let mut text = String::new();
        let matching = self.wildcards.iter().find(|(wildcard, _)| {
            // Most wildcards are excluded by their prefix, without an allocation.
            if !wildcard.pattern.may_match(key, value) {
                return false;
            }
            if text.is_empty() {
                text = format!("{key}_{value}");
            }
            wildcard.pattern.matches(&text)
        });
        matching.map(|(_, node)| node)
    }

    /// Looks up the entries in order. Only a limit of the last one applies, not one above or below it.
    pub(super) fn find(&self, entries: &[Entry]) -> Option<LookupResult<'_>> {
        let (mut level, mut last, mut shared_values) = (self, None, Vec::new());
        for (index, entry) in entries.iter().enumerate() {
            let node = level.child(entry)?;
            shared_values.extend(node.shared_value.as_deref().map(|value| (index, value)));
            last = Some(node);
            level = &node.children;
        }
        Some(LookupResult { limit: last?.limit.as_ref(), shared_values })
    }

    /// The name of the counters for these entries of `domain`, with `all` values or only those with `value_to_metric`. Values
    /// that share a counter share a name, too.
    pub(super) fn counter_name(&self, domain: &str, entries: &[Entry], all: bool) -> Vec<String> {
        let (mut level, mut name) = (self, vec![domain.to_owned()]);
        for entry in entries {
            let Some(node) = level.child(entry) else { break };
            name.push(if all || node.value_to_metric {
                join_key_value(&entry.key, node.shared_value.as_deref().unwrap_or(&entry.value))
            } else {
                node.text.clone()
            });
            level = &node.children;
        }
        name
    }

    /// Calls `visit` with each limit, in no particular order.
    pub(super) fn for_each_limit<'c>(&'c self, visit: &mut impl FnMut(&'c ConfiguredLimit)) {
        let exact = self.exact.values().flat_map(HashMap::values);
        for node in exact.chain(self.wildcards.iter().map(|(_, node)| node)).chain(self.by_key.values()) {
            node.limit.iter().for_each(&mut *visit);
            node.children.for_each_limit(visit);
        }
    }

    /// Adds the descriptors of another file for the same domain. Returns the texts of descriptors that both have.
    pub(super) fn merge(&mut self, other: Self) -> Vec<String> {
        let mut duplicates = Vec::new();
        let exact = other.exact.into_iter().flat_map(|(key, values)| {
            values.into_iter().map(move |(value, node)| (key.clone(), value, node)).collect::<Vec<_>>()
        });
        let by_key = other.by_key.into_iter().map(|(key, node)| (key, String::new(), node));
        for (key, value, node) in exact.chain(by_key) {
            if !self.add(&key, &value, node) {
                duplicates.push(join_key_value(&key, &value));
            }
        }
        for (wildcard, node) in other.wildcards {
            if self.wildcards.iter().any(|(existing, _)| existing.text == wildcard.text) {
                duplicates.push(wildcard.text);
            } else {
                self.wildcards.push((wildcard, node));
            }
        }
        duplicates.sort_unstable();
        duplicates
    }
}

/// A key and its value in the notation of the reference server: for display and for wildcards. Ambiguous, so never for keys.
pub(super) fn join_key_value(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}
