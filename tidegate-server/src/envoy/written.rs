//! From the YAML of the reference server to a tree of limits. Every problem is told with its place; none ends the reading.

use tidegate::{Gate, KeyStem, Limit, LimitError, OnFailure, Rate as Refill, Role, SubjectHasher};
use tidegate_rules::yaml::{Kind, Node, Source};

use super::lookup::{Configured, Level, Node as Descriptor, Rate, joined};
use super::pb::Unit;
use super::problem::ConfigProblem;
use super::unit;

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
const OF_LIMIT: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces", "metadata", ALGORITHM];

/// Our own key: a limit of another kind than a fixed window.
const ALGORITHM: &str = "algorithm";

/// The most problems of a kind that are kept.
const MOST_PROBLEMS: usize = 1000;

/// Ten slices divide every unit evenly.
const SLICES: u64 = 10;

/// The group of all quota descriptors of a request.
pub(super) const QUOTAS: Role = Role::AnyOf(0);

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
    pub(super) strict: bool,
    /// Hashes where a limit stands.
    pub(super) owners: &'w SubjectHasher,
    pub(super) errors: &'w mut Vec<ConfigProblem>,
    pub(super) warnings: &'w mut Vec<ConfigProblem>,
}

/// The way from the domain to a descriptor.
#[derive(Clone)]
struct Path {
    full_key: String,
    parts: Vec<String>,
}

/// The fields of a map, from which they are taken one by one.
struct Fields {
    place: usize,
    fields: Vec<(String, Node)>,
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
        let path = Path { full_key: name.clone(), parts: vec![name.clone()] };
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
        let path = above.to(&key, &value);
        let (shadow, quota) = (self.flag(&mut fields, "shadow_mode"), self.flag(&mut fields, "quota_mode"));
        // What these say is about the names of metrics, which have bounded names here, or about answers we do not give.
        let _ = (self.flag(&mut fields, "detailed_metric"), self.flag(&mut fields, "value_to_metric"));
        let place = fields.place_of("share_threshold");
        let shares = self.flag(&mut fields, "share_threshold");
        if shares && !value.contains('*') {
            self.error(place, "`share_threshold` is for a value with a `*`, whose matches share one counter");
        }
        let limit = match fields.take("rate_limit") {
            Some(node) if !matches!(node.kind, Kind::Null) => self.limit(node, &path, shadow, quota),
            _ => None,
        };
        let below = self.level(fields.take("descriptors"), &path);
        let shared = shares.then(|| value.clone());
        Some((key, value, Descriptor { limit, below, shared }))
    }

    fn limit(&mut self, node: Node, path: &Path, shadow: bool, quota: bool) -> Option<Configured> {
        let mut fields = self.fields(node, "a limit, with `unit` and `requests_per_unit`,", OF_LIMIT)?;
        let name = self.text_of(&mut fields, "name");
        let replaces = self.replaces(fields.take("replaces"), &name);
        let owner = path.owner(self.owners);
        let role = match (shadow, quota) {
            (true, _) => Role::Shadow,
            (false, true) => QUOTAS,
            (false, false) => Role::Enforced,
        };
        let rate = if self.flag(&mut fields, "unlimited") {
            if let Some(unit) = fields.take("unit") {
                self.error(unit.span.start, "a limit that is `unlimited` has no unit; take one of the two out");
            }
            None
        } else {
            let (requests, unit, limit) = self.rate(&mut fields)?;
            Some(Rate { requests, unit, gate: gate(&path.full_key, &owner, limit, role) })
        };
        Some(Configured { full_key: path.full_key.clone(), owner, name, replaces, shadow, quota, rate })
    }

    fn rate(&mut self, fields: &mut Fields) -> Option<(u32, Unit, Limit)> {
        let place = fields.place_of("unit");
        let text = self.text_of(fields, "unit");
        let unit = unit::named(&text);
        if unit.is_none() {
            let units = "second, minute, hour, day, week, month or year";
            let found =
                if text.is_empty() { "the limit has no unit".to_owned() } else { format!("{text:?} is no unit") };
            self.error(place, format!("{found}; write {units}"));
        }
        let place = fields.place_of("requests_per_unit");
        let requests = match fields.take("requests_per_unit") {
            None => {
                self.warning(place, "without `requests_per_unit` the limit is 0, which refuses everything");
                Some(0)
            }
            Some(node) => self.number(&node),
        };
        let place = fields.place_of(ALGORITHM);
        let algorithm = self.text_of(fields, ALGORITHM);
        let (unit, requests) = (unit?, requests?);
        match limit_of(&algorithm, requests, unit) {
            Some(Ok(limit)) => Some((requests, unit, limit)),
            Some(Err(error)) => {
                self.error(place, error.to_string());
                None
            }
            None => {
                let known = "fixed_window, token_bucket, sliding_log or sliding_window";
                self.error(place, format!("there is no algorithm {algorithm:?}; write {known}"));
                None
            }
        }
    }

    fn replaces(&mut self, list: Option<Node>, own: &str) -> Vec<String> {
        let mut names = Vec::new();
        for item in self.list(list) {
            let Some(mut fields) = self.fields(item, "the `name` of a limit to replace", &["name"]) else { continue };
            let name = self.text_of(&mut fields, "name");
            if name.is_empty() {
                self.error(fields.place, "a limit to replace is named: write `name: NAME`");
            } else if name == own {
                self.error(fields.place, "the limit replaces itself; name another one");
            } else {
                names.push(name);
            }
        }
        names
    }
}

/// The pieces of YAML
impl Reader<'_> {
    fn error(&mut self, place: usize, message: impl Into<String>) {
        if self.errors.len() < MOST_PROBLEMS {
            self.errors.push(ConfigProblem::at(self.source, place, message));
        }
    }

    fn warning(&mut self, place: usize, message: impl Into<String>) {
        if self.warnings.len() < MOST_PROBLEMS {
            self.warnings.push(ConfigProblem::at(self.source, place, message));
        }
    }

    /// The fields of a map. Those that mean nothing at this place are left out, as the reference server does.
    fn fields(&mut self, node: Node, wanted: &str, here: &[&str]) -> Option<Fields> {
        let place = node.span.start;
        let Kind::Map(entries) = node.kind else {
            self.error(node.span.start, format!("this is {}; {wanted} is wanted here", node.what()));
            return None;
        };
        let mut fields = Vec::new();
        for (key, value) in entries {
            let name = key.text().unwrap_or_default().to_owned();
            let ours = name == ALGORITHM && !self.strict;
            if !KNOWN.contains(&name.as_str()) && !ours {
                self.error(key.span.start, format!("there is no key {name:?}; take it out, or correct it"));
            } else if here.contains(&name.as_str()) {
                fields.push((name, value));
            } else {
                self.warning(key.span.start, format!("{name:?} has no effect at this place"));
            }
        }
        Some(Fields { place, fields })
    }

    fn list(&mut self, node: Option<Node>) -> Vec<Node> {
        let Some(node) = node else { return Vec::new() };
        let (place, what) = (node.span.start, node.what());
        match node.kind {
            Kind::List(items) => items,
            Kind::Null => Vec::new(),
            _ => {
                self.error(place, format!("this is {what}; a list is wanted here"));
                Vec::new()
            }
        }
    }

    /// A single value as it is written, since `0042` may be a name; nothing is as good as an empty one.
    fn text(&mut self, node: &Node) -> Option<String> {
        match node.text() {
            Some(text) => Some(text.to_owned()),
            None if matches!(node.kind, Kind::Null) => Some(String::new()),
            None => {
                self.error(node.span.start, format!("this is {}; text is wanted here", node.what()));
                None
            }
        }
    }

    fn text_of(&mut self, fields: &mut Fields, name: &str) -> String {
        fields.take(name).and_then(|node| self.text(&node)).unwrap_or_default()
    }

    /// A flag in any of the words that YAML had for it.
    fn flag(&mut self, fields: &mut Fields, name: &str) -> bool {
        let Some(node) = fields.take(name) else { return false };
        let place = node.span.start;
        match self.text(&node).unwrap_or_default().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => true,
            "false" | "no" | "off" | "n" | "" => false,
            _ => {
                self.error(place, format!("`{name}` is true or false"));
                false
            }
        }
    }

    fn number(&mut self, node: &Node) -> Option<u32> {
        let place = node.span.start;
        let number = self.text(node)?.replace('_', "").parse().ok();
        if number.is_none() {
            self.error(place, format!("`requests_per_unit` is a whole number from 0 to {}", u32::MAX));
        }
        number
    }
}

impl Fields {
    fn take(&mut self, name: &str) -> Option<Node> {
        let found = self.fields.iter().position(|(known, _)| known == name)?;
        Some(self.fields.swap_remove(found).1)
    }

    /// Where a field stands, or the map that lacks it.
    fn place_of(&self, name: &str) -> usize {
        self.fields.iter().find(|(known, _)| known == name).map_or(self.place, |(_, node)| node.span.start)
    }
}

impl Path {
    fn to(&self, key: &str, value: &str) -> Self {
        let mut parts = self.parts.clone();
        parts.extend([key.to_owned(), value.to_owned()]);
        Self { full_key: format!("{}.{}", self.full_key, joined(key, value)), parts }
    }

    /// A short name for the keys of this limit: the place of a limit may be longer than a key should be. Two places that
    /// have the same one still count apart, by their subjects.
    fn owner(&self, owners: &SubjectHasher) -> String {
        let parts: Vec<Option<&str>> = self.parts.iter().map(|part| Some(part.as_str())).collect();
        format!("envoy-{:016x}", owners.subject(parts.into_iter()).hash() >> 64)
    }
}

/// Nothing in these files says what to do while the store fails: Envoy is told, and its own failure mode decides.
pub(super) fn gate(full_key: &str, owner: &str, limit: Limit, role: Role) -> Gate {
    let stem = KeyStem::of_rule(owner, &limit, "");
    Gate::new(full_key, "", limit, role, stem).on_failure(OnFailure::Closed)
}

/// A limit by the name of its kind; none if there is no such kind.
pub(super) fn limit_of(algorithm: &str, requests: u32, unit: Unit) -> Option<Result<Limit, LimitError>> {
    let (amount, window) = (u64::from(requests), unit::length(unit)?);
    Some(match algorithm {
        // A bucket that never refills is a limit of 0, of whatever kind.
        "token_bucket" if requests > 0 => {
            Refill::new(amount, window).and_then(|refill| Limit::token_bucket(amount, refill))
        }
        "" | "fixed_window" | "token_bucket" => Limit::fixed_window(amount, window),
        "sliding_log" => Limit::sliding_log(amount, window),
        "sliding_window" => Limit::sliding_window(amount, window, SLICES),
        _ => return None,
    })
}
