//! The tree of descriptors that a domain has limits for, and the walk of a request's entries through it. Pure.

use std::collections::HashMap;

use tidegate::Gate;

use super::pattern::Pattern;
use super::pb::{Entry, Unit};

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
    pub(super) limit: Option<Configured>,
    pub(super) below: Level,
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
    /// None if it does not limit.
    pub(super) rate: Option<Rate>,
}

/// How much in how much time.
#[derive(Debug)]
pub(super) struct Rate {
    pub(super) requests: u32,
    pub(super) unit: Unit,
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
    /// For each entry, what stands for its value in the key.
    pub(super) shared: Vec<Option<&'c str>>,
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
        let text = format!("{}_{}", entry.key, entry.value);
        self.wild.iter().find(|(wildcard, _)| wildcard.pattern.matches(&text)).map(|(_, node)| node)
    }

    /// Walks the entries in order. There is a limit only where the last of them ends: neither above nor below.
    pub(super) fn find(&self, entries: &[Entry]) -> Option<Found<'_>> {
        let (mut level, mut last, mut shared) = (self, None, Vec::with_capacity(entries.len()));
        for entry in entries {
            let node = level.child(entry)?;
            shared.push(node.shared.as_deref());
            last = Some(node);
            level = &node.below;
        }
        Some(Found { limit: last?.limit.as_ref(), shared })
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
