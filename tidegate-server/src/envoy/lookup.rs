//! The tree of descriptors that a domain has limits for, and the walk of a request's entries through it. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::spi::Gate;

use super::pattern::Pattern;
use super::pb::{Entry, Struct, Unit};
use super::stats::Counters;

/// The descriptors that may stand at one place of the list.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// By key and value.
    exact: HashMap<String, HashMap<String, Node>>,
    /// Those with a `*`, in the order of the file.
    wild: Vec<(Wildcard, Node)>,
    /// By key, whatever the value.
    bare: HashMap<String, Node>,
}

/// A descriptor of the file: its limit, if it has one, and what may come after it.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// As it stands in the file: `key`, or `key_value`.
    pub(super) text: String,
    pub(super) limit: Option<Configured>,
    pub(super) below: Level,
    /// Whether the names of counters hold the value of the request at this place.
    pub(super) value_to_metric: bool,
    /// What stands for the value in the key of the counter, where all values that match share one.
    pub(super) shared: Option<String>,
}

/// A limit of the file.
#[derive(Debug)]
pub(super) struct Configured {
    /// Where it stands, such as `edge.path_/login.user`.
    pub(super) full_key: String,
    /// What its keys in the store begin with.
    pub(super) owner: String,
    pub(super) name: String,
    pub(super) replaces: Vec<String>,
    pub(super) shadow: bool,
    pub(super) quota: bool,
    /// Whether its hits count even if the request is refused.
    pub(super) counts_refused: bool,
    /// What a response tells others if it was passed.
    pub(super) metadata: Option<Struct>,
    pub(super) metric: Metric,
    /// None if it does not limit.
    pub(super) rate: Option<Rate>,
}

/// Where the hits of a limit are counted for dashboards.
#[derive(Debug)]
pub(super) enum Metric {
    /// Always in the same place.
    OfLimit(Arc<Counters>),
    /// Under values of the request: all of them, or those that descriptors ask for.
    OfValues { all: bool },
}

/// How much in how much time.
#[derive(Debug)]
pub(super) struct Rate {
    pub(super) requests: u32,
    pub(super) unit: Unit,
    /// How many hits are not near the limit yet.
    pub(super) near: u64,
    pub(super) gate: Gate,
}

#[derive(Debug)]
struct Wildcard {
    text: String,
    pattern: Pattern,
}

/// What a walk found.
pub(super) struct Found<'c> {
    pub(super) limit: Option<&'c Configured>,
    /// What stands for the values of some entries in the key, by place.
    pub(super) shared: Vec<(usize, &'c str)>,
}

impl Level {
    /// Adds a descriptor, unless there is one with this key and value; tells whether it did.
    pub(super) fn add(&mut self, key: &str, value: &str, node: Node) -> bool {
        let text = joined(key, value);
        if let Some(pattern) = Pattern::new(&text) {
            if self.wild.iter().any(|(known, _)| known.text == text) {
                return false;
            }
            self.wild.push((Wildcard { text, pattern }, node));
            return true;
        }
        let (level, name) = match value {
            "" => (&mut self.bare, key),
            _ => (self.exact.entry(key.to_owned()).or_default(), value),
        };
        if level.contains_key(name) {
            return false;
        }
        level.insert(name.to_owned(), node);
        true
    }

    /// The descriptor for an entry: the very value, else the first wildcard of the file, else the key alone.
    fn child(&self, entry: &Entry) -> Option<&Node> {
        let exact = self.exact.get(&entry.key).and_then(|values| values.get(&entry.value));
        exact.or_else(|| self.wildcard(entry)).or_else(|| self.bare.get(&entry.key))
    }

    fn wildcard(&self, entry: &Entry) -> Option<&Node> {
        if self.wild.is_empty() {
            return None;
        }
        let Entry { key, value } = entry;
        let mut text = String::new();
        let found = self.wild.iter().find(|(wildcard, _)| {
            // Most can be told by how they begin, without putting the two together.
            if !wildcard.pattern.may_match(key, value) {
                return false;
            }
            if text.is_empty() {
                text = format!("{key}_{value}");
            }
            wildcard.pattern.matches(&text)
        });
        found.map(|(_, node)| node)
    }

    /// Walks the entries in order. There is a limit only where the last of them ends: neither above nor below.
    pub(super) fn find(&self, entries: &[Entry]) -> Option<Found<'_>> {
        let (mut level, mut last, mut shared) = (self, None, Vec::new());
        for (place, entry) in entries.iter().enumerate() {
            let node = level.child(entry)?;
            shared.extend(node.shared.as_deref().map(|shared| (place, shared)));
            last = Some(node);
            level = &node.below;
        }
        Some(Found { limit: last?.limit.as_ref(), shared })
    }

    /// The name of the counters of a limit of `domain` for these entries, with `all` their values or those that descriptors
    /// ask for. Values that share a counter share a name, too.
    pub(super) fn name(&self, domain: &str, entries: &[Entry], all: bool) -> Vec<String> {
        let (mut level, mut name) = (self, vec![domain.to_owned()]);
        for entry in entries {
            let Some(node) = level.child(entry) else { break };
            name.push(if all || node.value_to_metric {
                joined(&entry.key, node.shared.as_deref().unwrap_or(&entry.value))
            } else {
                node.text.clone()
            });
            level = &node.below;
        }
        name
    }

    /// Every limit, in no particular order.
    pub(super) fn each<'c>(&'c self, seen: &mut impl FnMut(&'c Configured)) {
        let exact = self.exact.values().flat_map(HashMap::values);
        for node in exact.chain(self.wild.iter().map(|(_, node)| node)).chain(self.bare.values()) {
            node.limit.iter().for_each(&mut *seen);
            node.below.each(seen);
        }
    }

    /// Takes in what another file says about the same domain. The errors are the texts of descriptors that both have.
    pub(super) fn merge(&mut self, other: Self) -> Vec<String> {
        let mut twice = Vec::new();
        let exact = other.exact.into_iter().flat_map(|(key, values)| {
            values.into_iter().map(move |(value, node)| (key.clone(), value, node)).collect::<Vec<_>>()
        });
        let bare = other.bare.into_iter().map(|(key, node)| (key, String::new(), node));
        for (key, value, node) in exact.chain(bare) {
            if !self.add(&key, &value, node) {
                twice.push(joined(&key, &value));
            }
        }
        for (wildcard, node) in other.wild {
            if self.wild.iter().any(|(known, _)| known.text == wildcard.text) {
                twice.push(wildcard.text);
            } else {
                self.wild.push((wildcard, node));
            }
        }
        twice.sort_unstable();
        twice
    }
}

/// A key and its value as the reference server writes them; for people and for wildcards, never for counters.
pub(super) fn joined(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}
