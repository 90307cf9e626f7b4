//! From the YAML of the reference server to a tree of limits. Every problem is told with its place; none ends the reading.

mod fields;
mod limit;

use tidegate::spi::SubjectHasher;
use tidegate_rules::yaml::{Kind, Node, Source};

use super::lookup::{Level, Node as Descriptor, joined};
use super::metadata;
use super::options::EnvoyOptions;
use super::pb::Struct;
use super::problem::ConfigProblem;
pub(super) use limit::{gate, limit_of, role};

/// Every key that the reference server knows, at whichever place.
const KNOWN: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// Our own keys, all of a limit: another window or kind of it, and whether hits count that were refused.
const OURS: [&str; 4] = [ALGORITHM, WINDOW, MULTIPLIER, COUNT_REFUSED];
const ALGORITHM: &str = "algorithm";
const WINDOW: &str = "window";
const MULTIPLIER: &str = "unit_multiplier";
const COUNT_REFUSED: &str = "count_refused";

const OF_FILE: &[&str] = &["domain", "descriptors"];
const OF_DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const OF_LIMIT: &[&str] = &[
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "metadata",
    ALGORITHM,
    WINDOW,
    MULTIPLIER,
    COUNT_REFUSED,
];

/// The most problems of a kind that are kept.
const MOST_PROBLEMS: usize = 1000;

/// What a file says.
pub(super) struct Domain {
    pub(super) name: String,
    /// The byte where its name stands.
    pub(super) place: usize,
    pub(super) level: Level,
}

/// Reads one file.
pub(super) struct Reader<'w> {
    pub(super) source: &'w Source,
    pub(super) options: &'w EnvoyOptions,
    /// Hashes where a limit stands.
    pub(super) owners: &'w SubjectHasher,
    pub(super) errors: &'w mut Vec<ConfigProblem>,
    pub(super) warnings: &'w mut Vec<ConfigProblem>,
}

/// The way from the domain to a descriptor.
#[derive(Clone)]
struct Path {
    full_key: String,
    /// The domain, then a key and a value in turn.
    parts: Vec<String>,
    /// The domain, then a name for each descriptor.
    names: Vec<String>,
    /// Whether a descriptor on it asks for its value in the names of counters.
    by_values: bool,
}

/// What a descriptor says about its limit.
#[derive(Default)]
struct About {
    shadow: bool,
    quota: bool,
    detailed: bool,
    metadata: Option<Struct>,
}

impl Reader<'_> {
    /// The domain of the file. It may lack what is reported.
    pub(super) fn read(&mut self, root: Node) -> Option<Domain> {
        let mut fields = self.fields(root, "a file with a domain", OF_FILE)?;
        let domain = fields.take("domain").and_then(|node| Some((node.span.start, self.text(&node)?)));
        let Some((place, name)) = domain.filter(|(_, name)| !name.is_empty()) else {
            self.error(fields.place, "the file has no domain; write `domain: NAME` at its top");
            return None;
        };
        let root = || vec![name.clone()];
        let path = Path { full_key: name.clone(), parts: root(), names: root(), by_values: false };
        let level = self.level(fields.take("descriptors"), &path);
        Some(Domain { name, place, level })
    }

    fn level(&mut self, list: Option<Node>, path: &Path) -> Level {
        let mut level = Level::default();
        for item in self.list(list) {
            let place = item.span.start;
            let Some((key, value, node)) = self.descriptor(item, path) else { continue };
            if !level.add(&key, &value, node) {
                let text = joined(&key, &value);
                self.error(place, format!("there are two descriptors {text:?} at this level; keep one"));
            }
        }
        level
    }

    fn descriptor(&mut self, node: Node, above: &Path) -> Option<(String, String, Descriptor)> {
        let mut fields = self.fields(node, "a descriptor, with a `key`,", OF_DESCRIPTOR)?;
        let key = self.text_of(&mut fields, "key");
        let value = self.text_of(&mut fields, "value");
        if key.is_empty() {
            self.error(fields.place, "the descriptor has no key; write `key: NAME`");
            return None;
        }
        let value_to_metric = self.flag(&mut fields, "value_to_metric");
        let path = above.to(&key, &value, value_to_metric);
        let about = About {
            shadow: self.flag(&mut fields, "shadow_mode"),
            quota: self.flag(&mut fields, "quota_mode"),
            detailed: self.flag(&mut fields, "detailed_metric"),
            metadata: self.metadata(fields.take("metadata")),
        };
        let place = fields.place_of("share_threshold");
        let shares = self.flag(&mut fields, "share_threshold");
        if shares && !value.contains('*') {
            self.error(place, "`share_threshold` is for a value with a `*`, whose matches share one counter");
        }
        let limit = match fields.take("rate_limit") {
            Some(node) if !matches!(node.kind, Kind::Null) => self.limit(node, &path, about),
            _ => None,
        };
        let below = self.level(fields.take("descriptors"), &path);
        let shared = shares.then(|| value.clone());
        let node = Descriptor { text: joined(&key, &value), limit, below, value_to_metric, shared };
        Some((key, value, node))
    }

    fn metadata(&mut self, node: Option<Node>) -> Option<Struct> {
        let node = node?;
        match &node.kind {
            Kind::Map(entries) => Some(metadata::of_fields(entries)),
            Kind::Null => None,
            _ => {
                self.error(node.span.start, format!("this is {}; a set of fields is wanted here", node.what()));
                None
            }
        }
    }
}

impl Path {
    fn to(&self, key: &str, value: &str, by_value: bool) -> Self {
        let (mut parts, mut names) = (self.parts.clone(), self.names.clone());
        parts.extend([key.to_owned(), value.to_owned()]);
        names.push(joined(key, value));
        let full_key = format!("{}.{}", self.full_key, joined(key, value));
        Self { full_key, parts, names, by_values: self.by_values || by_value }
    }

    /// A short name for the keys of this limit: the place of a limit may be longer than a key should be. Two places that
    /// have the same one still count apart, by their subjects.
    fn owner(&self, owners: &SubjectHasher) -> String {
        let parts: Vec<Option<&str>> = self.parts.iter().map(|part| Some(part.as_str())).collect();
        format!("envoy-{:016x}", owners.subject(parts.into_iter()).hash() >> 64)
    }
}
