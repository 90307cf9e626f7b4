//! `Index`: finds the rules that may apply to a request without trying each rule. Built once when a file is loaded.
//!
//! Each rule is indexed under the field of its condition that the fewest other rules share, so ten thousand rules for as many
//! tenants cost as much as ten.

use std::collections::HashMap;

use smallvec::SmallVec;
use smol_str::SmolStr;
use tidegate::attributes::MAX_HOST_BYTES;

use crate::condition::{Condition, HostPattern};
use crate::path::PathPattern;
use crate::path_tree::PathTree;
use crate::request_view::RequestView;

/// Indices of the rules found for a request: few for most requests.
pub type RuleIndices = SmallVec<[u32; 8]>;

/// The indices of the rules with a value of one field.
type RulesByValue = HashMap<SmolStr, SmallVec<[u32; 1]>>;

/// Finds candidates; their [`Condition`] decides whether they apply.
#[derive(Debug, Default)]
pub struct Index {
    actions: RulesByValue,
    paths: PathTree,
    has_paths: bool,
    hosts: RulesByValue,
    /// By the domain whose subdomains match.
    below: RulesByValue,
    tenants: RulesByValue,
    plans: RulesByValue,
    /// By attribute, then by value.
    headers: Vec<(SmolStr, RulesByValue)>,
    methods: RulesByValue,
    /// Rules without a field that can be looked up.
    always: Vec<u32>,
}

/// A value that a rule can be indexed under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum IndexKey {
    Action(SmolStr),
    Path(PathPattern),
    Host(SmolStr),
    Below(SmolStr),
    Tenant(SmolStr),
    Plan(SmolStr),
    Header(SmolStr, SmolStr),
    Method(SmolStr),
}

impl Index {
    /// Indexes rules by their position, and returns the part of each condition that the index does not check.
    pub(crate) fn new<'c>(
        conditions: impl Iterator<Item = &'c Condition> + Clone,
    ) -> (Self, Vec<Option<Box<Condition>>>) {
        let mut shared: HashMap<IndexKey, usize> = HashMap::new();
        for entry in conditions.clone().flat_map(index_choices).flat_map(|choice| choice.entries) {
            *shared.entry(entry).or_default() += 1;
        }
        let (mut index, mut remainders) = (Self::default(), Vec::new());
        for (rule, condition) in conditions.enumerate() {
            let largest_share = |choice: &IndexChoice| choice.entries.iter().map(|entry| shared[entry]).max();
            let left = if let Some(choice) = index_choices(condition).into_iter().min_by_key(largest_share) {
                choice.entries.into_iter().for_each(|entry| index.add(entry, rule as u32));
                remainder(condition, choice.field)
            } else {
                index.always.push(rule as u32);
                condition.clone()
            };
            remainders.push((!left.covers(&Condition::default())).then(|| Box::new(left)));
        }
        (index, remainders)
    }

    fn add(&mut self, entry: IndexKey, rule: u32) {
        let map = match entry {
            IndexKey::Path(pattern) => {
                self.has_paths = true;
                return self.paths.add(&pattern, rule);
            }
            IndexKey::Header(name, value) => {
                let index = self.headers.iter().position(|(header, _)| *header == name);
                let index = index.unwrap_or_else(|| {
                    self.headers.push((name, HashMap::new()));
                    self.headers.len() - 1
                });
                return self.headers[index].1.entry(value).or_default().push(rule);
            }
            IndexKey::Action(value) => (&mut self.actions, value),
            IndexKey::Host(value) => (&mut self.hosts, value),
            IndexKey::Below(value) => (&mut self.below, value),
            IndexKey::Tenant(value) => (&mut self.tenants, value),
            IndexKey::Plan(value) => (&mut self.plans, value),
            IndexKey::Method(value) => (&mut self.methods, value),
        };
        map.0.entry(map.1).or_default().push(rule);
    }

    /// Appends every rule that may apply, in order, each once.
    pub(crate) fn candidates(&self, view: &RequestView<'_, '_>, candidates: &mut RuleIndices) {
        let mut look_up = |map: &RulesByValue, value: Option<&str>| {
            if let Some(places) = value.and_then(|value| map.get(value)) {
                candidates.extend_from_slice(places);
            }
        };
        if !self.actions.is_empty() {
            look_up(&self.actions, Some(view.request.action()));
        }
        if !self.tenants.is_empty() {
            look_up(&self.tenants, view.tenant());
        }
        if !self.plans.is_empty() {
            look_up(&self.plans, Some(view.plan()));
        }
        if !self.methods.is_empty() {
            look_up(&self.methods, view.method());
            look_up(&self.methods, view.method().filter(|method| *method == "HEAD").map(|_| "GET"));
        }
        for (name, values) in &self.headers {
            look_up(values, view.header_value(name).as_deref());
        }
        if !(self.hosts.is_empty() && self.below.is_empty())
            && let Some(host) = view.host()
        {
            look_up(&self.hosts, Some(host));
            // From the right: labels that a client prepends must not hide a rule.
            let suffixes = host.rmatch_indices('.').filter(|(dot, _)| *dot > 0).map(|(dot, _)| &host[dot + 1..]);
            for suffix in suffixes.take_while(|suffix| suffix.len() <= MAX_HOST_BYTES) {
                look_up(&self.below, Some(suffix));
            }
        }
        if self.has_paths
            && let Some(path) = view.path()
        {
            self.paths.find(path, candidates);
        }
        candidates.extend_from_slice(&self.always);
        if candidates.len() > 1 {
            candidates.sort_unstable();
            candidates.dedup();
        }
    }
}

/// One way to index a condition: under each of the keys.
struct IndexChoice {
    entries: Vec<IndexKey>,
    field: IndexField,
}

/// The field that a choice indexes.
#[derive(Clone, Copy)]
enum IndexField {
    Action,
    Path,
    Host,
    Tenant,
    Plan,
    Method,
    Header(usize),
}

/// All ways to index a condition.
fn index_choices(condition: &Condition) -> Vec<IndexChoice> {
    let each =
        |values: &[SmolStr], entry: fn(SmolStr) -> IndexKey| values.iter().cloned().map(entry).collect::<Vec<_>>();
    let host = |host: &HostPattern| match host {
        HostPattern::Exactly(host) => IndexKey::Host(host.clone()),
        HostPattern::Below(host) => IndexKey::Below(host.clone()),
    };
    let fixed = [
        (IndexField::Action, each(&condition.actions, IndexKey::Action)),
        (IndexField::Path, condition.paths.iter().cloned().map(IndexKey::Path).collect()),
        (IndexField::Host, condition.hosts.iter().map(host).collect()),
        (IndexField::Tenant, each(&condition.tenants, IndexKey::Tenant)),
        (IndexField::Plan, each(&condition.plans, IndexKey::Plan)),
        (IndexField::Method, each(&condition.methods, IndexKey::Method)),
    ];
    let headers = condition.headers.iter().enumerate().map(|(index, (name, values))| {
        (IndexField::Header(index), values.iter().map(|value| IndexKey::Header(name.clone(), value.clone())).collect())
    });
    let ways =
        fixed.into_iter().chain(headers).filter(|(_, entries): &(IndexField, Vec<IndexKey>)| !entries.is_empty());
    ways.map(|(field, entries)| IndexChoice { entries, field }).collect()
}

/// The condition without the indexed field.
fn remainder(condition: &Condition, field: IndexField) -> Condition {
    let mut rest = condition.clone();
    match field {
        IndexField::Action => rest.actions.clear(),
        IndexField::Path => rest.paths.clear(),
        IndexField::Host => rest.hosts.clear(),
        IndexField::Tenant => rest.tenants.clear(),
        IndexField::Plan => rest.plans.clear(),
        IndexField::Method => rest.methods.clear(),
        IndexField::Header(index) => drop(rest.headers.remove(index)),
    }
    rest
}
