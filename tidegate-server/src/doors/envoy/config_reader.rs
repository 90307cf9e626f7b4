//! `ConfigReader`: builds the descriptor tree of a YAML file of the reference server. It reports all problems with their
//! positions, not only the first.

mod fields;
mod limit;

use tidegate::spi::SubjectHasher;
use tidegate_rules::yaml::{Node, NodeKind, SourceFile};

use super::descriptor_tree::{DescriptorLevel, DescriptorNode, join_key_value};
use super::messages::Struct;
use super::metadata;
use super::options::EnvoyOptions;
use super::problem::ConfigProblem;
pub(super) use limit::{build_limit, gate, role};

/// All keys of the reference server, at any level.
const REFERENCE_KEYS: [&str; 16] = [
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

/// Keys of our own, all of them for limits.
const EXTENSION_KEYS: [&str; 4] = [ALGORITHM, WINDOW, MULTIPLIER, COUNT_REFUSED];
const ALGORITHM: &str = "algorithm";
const WINDOW: &str = "window";
const MULTIPLIER: &str = "unit_multiplier";
const COUNT_REFUSED: &str = "count_refused";

const FILE_KEYS: &[&str] = &["domain", "descriptors"];
const DESCRIPTOR_KEYS: &[&str] = &[
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
const LIMIT_KEYS: &[&str] = &[
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

/// Maximum number of errors, and of warnings, that are kept.
const MAX_PROBLEMS: usize = 1000;

/// The content of a file.
pub(super) struct DomainConfig {
    pub(super) name: String,
    /// Byte offset of the name.
    pub(super) offset: usize,
    pub(super) level: DescriptorLevel,
}

/// Reads one file.
pub(super) struct ConfigReader<'w> {
    pub(super) source: &'w SourceFile,
    pub(super) options: &'w EnvoyOptions,
    /// Hashes the path of a limit.
    pub(super) path_hasher: &'w SubjectHasher,
    pub(super) errors: &'w mut Vec<ConfigProblem>,
    pub(super) warnings: &'w mut Vec<ConfigProblem>,
}

/// The path from the domain to a descriptor.
#[derive(Clone)]
struct DescriptorPath {
    full_key: String,
    /// The domain, then keys and values alternately.
    parts: Vec<String>,
    /// The domain, then `key` or `key_value` of each descriptor.
    names: Vec<String>,
    /// Whether a descriptor of the path has `value_to_metric`.
    has_value_metric: bool,
}

/// Settings of a descriptor that apply to its limit.
#[derive(Default)]
struct LimitSettings {
    shadow: bool,
    quota: bool,
    detailed: bool,
    metadata: Option<Struct>,
}

impl ConfigReader<'_> {
    /// Reads the domain. Invalid parts are left out and reported.
    pub(super) fn read(&mut self, root: Node) -> Option<DomainConfig> {
        let mut fields = self.fields(root, "a map with `domain` and `descriptors`", FILE_KEYS)?;
        let domain = fields.take("domain").and_then(|node| Some((node.span.start, self.text(&node)?)));
        let Some((offset, name)) = domain.filter(|(_, name)| !name.is_empty()) else {
            self.error(fields.offset, "the file has no domain; add `domain: NAME`");
            return None;
        };
        let root = || vec![name.clone()];
        let path = DescriptorPath { full_key: name.clone(), parts: root(), names: root(), has_value_metric: false };
        let level = self.level(fields.take("descriptors"), &path);
        Some(DomainConfig { name, offset, level })
    }

    fn level(&mut self, list: Option<Node>, path: &DescriptorPath) -> DescriptorLevel {
        let mut level = DescriptorLevel::default();
        for item in self.list(list) {
            let offset = item.span.start;
            let Some((key, value, node)) = self.descriptor(item, path) else { continue };
            if !level.add(&key, &value, node) {
                let text = join_key_value(&key, &value);
                self.error(offset, format!("duplicate descriptor {text:?} at this level; keep one"));
            }
        }
        level
    }

    fn descriptor(&mut self, node: Node, parent: &DescriptorPath) -> Option<(String, String, DescriptorNode)> {
        let mut fields = self.fields(node, "a descriptor with a `key`", DESCRIPTOR_KEYS)?;
        let key = self.text_of(&mut fields, "key");
        let value = self.text_of(&mut fields, "value");
        if key.is_empty() {
            self.error(fields.offset, "the descriptor has no key; add `key: NAME`");
            return None;
        }
        let value_to_metric = self.flag(&mut fields, "value_to_metric");
        let path = parent.child(&key, &value, value_to_metric);
        let settings = LimitSettings {
            shadow: self.flag(&mut fields, "shadow_mode"),
            quota: self.flag(&mut fields, "quota_mode"),
            detailed: self.flag(&mut fields, "detailed_metric"),
            metadata: self.metadata(fields.take("metadata")),
        };
        let offset = fields.offset_of("share_threshold");
        let is_shared = self.flag(&mut fields, "share_threshold");
        if is_shared && !value.contains('*') {
            self.error(offset, "`share_threshold` needs a value with a `*`, whose matches share one counter");
        }
        let limit = match fields.take("rate_limit") {
            Some(node) if !matches!(node.kind, NodeKind::Null) => self.limit(node, &path, settings),
            _ => None,
        };
        let children = self.level(fields.take("descriptors"), &path);
        let shared_value = is_shared.then(|| value.clone());
        let node =
            DescriptorNode { text: join_key_value(&key, &value), limit, children, value_to_metric, shared_value };
        Some((key, value, node))
    }

    fn metadata(&mut self, node: Option<Node>) -> Option<Struct> {
        let node = node?;
        match &node.kind {
            NodeKind::Map(entries) => Some(metadata::from_yaml_map(entries)),
            NodeKind::Null => None,
            _ => {
                self.error(node.span.start, format!("expected a map, found {}", node.type_name()));
                None
            }
        }
    }
}

impl DescriptorPath {
    fn child(&self, key: &str, value: &str, value_to_metric: bool) -> Self {
        let (mut parts, mut names) = (self.parts.clone(), self.names.clone());
        parts.extend([key.to_owned(), value.to_owned()]);
        names.push(join_key_value(key, value));
        let full_key = format!("{}.{}", self.full_key, join_key_value(key, value));
        Self { full_key, parts, names, has_value_metric: self.has_value_metric || value_to_metric }
    }

    /// A key prefix of fixed length, since a path may be long. Two paths with the same hash still count apart, by their
    /// subjects.
    fn owner(&self, path_hasher: &SubjectHasher) -> String {
        let parts: Vec<Option<&str>> = self.parts.iter().map(|part| Some(part.as_str())).collect();
        format!("envoy-{:016x}", path_hasher.subject(parts.into_iter()).hash() >> 64)
    }
}
