//! `Index`: which rules may apply to a request, without looking at the others. Built once when a file is loaded.
//!
//! Each rule stands under one thing that it asks for, the one that the fewest rules share: ten thousand rules for as many
//! tenants cost what ten cost, whether or not they have a path in common.

use std::collections::HashMap;

use smallvec::SmallVec;
use smol_str::SmolStr;
use tidegate::attributes::MAX_HOST_BYTES;

use crate::condition::{Condition, Host};
use crate::facts::Facts;
use crate::path::Pattern;
use crate::routes::Routes;

/// The places of rules that were found for a request: most meet few.
pub(crate) type Places = SmallVec<[u32; 8]>;

/// Finds candidates; whether they apply is for their [`Condition`] to say.
#[derive(Debug, Default)]
pub(crate) struct Index {
    actions: HashMap<SmolStr, SmallVec<[u32; 1]>>,
    paths: Routes,
    has_paths: bool,
    hosts: HashMap<SmolStr, SmallVec<[u32; 1]>>,
    /// Under the part of the host that must follow, a dot before it.
    below: HashMap<SmolStr, SmallVec<[u32; 1]>>,
    tenants: HashMap<SmolStr, SmallVec<[u32; 1]>>,
    plans: HashMap<SmolStr, SmallVec<[u32; 1]>>,
    /// By attribute, then by value.
    headers: Vec<(SmolStr, HashMap<SmolStr, SmallVec<[u32; 1]>>)>,
    methods: HashMap<SmolStr, SmallVec<[u32; 1]>>,
    /// Rules that ask for nothing that can be looked up.
    always: Vec<u32>,
}

/// One thing that a rule can stand under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Entry {
    Action(SmolStr),
    Path(Pattern),
    Host(SmolStr),
    Below(SmolStr),
    Tenant(SmolStr),
    Plan(SmolStr),
    Header(SmolStr, SmolStr),
    Method(SmolStr),
}

impl Index {
    /// Indexes rules by their place, and tells what of each condition is left to check for a candidate.
    pub(crate) fn new<'c>(
        conditions: impl Iterator<Item = &'c Condition> + Clone,
    ) -> (Self, Vec<Option<Box<Condition>>>) {
        let mut shared: HashMap<Entry, usize> = HashMap::new();
        for entry in conditions.clone().flat_map(choices).flat_map(|choice| choice.entries) {
            *shared.entry(entry).or_default() += 1;
        }
        let (mut index, mut left_over) = (Self::default(), Vec::new());
        for (place, condition) in conditions.enumerate() {
            let crowd = |choice: &Choice| choice.entries.iter().map(|entry| shared[entry]).max();
            let left = if let Some(choice) = choices(condition).into_iter().min_by_key(crowd) {
                choice.entries.into_iter().for_each(|entry| index.add(entry, place as u32));
                rest(condition, choice.field)
            } else {
                index.always.push(place as u32);
                condition.clone()
            };
            left_over.push((!left.covers(&Condition::default())).then(|| Box::new(left)));
        }
        (index, left_over)
    }

    fn add(&mut self, entry: Entry, place: u32) {
        let map = match entry {
            Entry::Path(pattern) => {
                self.has_paths = true;
                return self.paths.add(&pattern, place);
            }
            Entry::Header(name, value) => {
                let known = self.headers.iter().position(|(known, _)| *known == name);
                let known = known.unwrap_or_else(|| {
                    self.headers.push((name, HashMap::new()));
                    self.headers.len() - 1
                });
                return self.headers[known].1.entry(value).or_default().push(place);
            }
            Entry::Action(value) => (&mut self.actions, value),
            Entry::Host(value) => (&mut self.hosts, value),
            Entry::Below(value) => (&mut self.below, value),
            Entry::Tenant(value) => (&mut self.tenants, value),
            Entry::Plan(value) => (&mut self.plans, value),
            Entry::Method(value) => (&mut self.methods, value),
        };
        map.0.entry(map.1).or_default().push(place);
    }

    /// Appends every rule that may apply, in order, each once.
    pub(crate) fn candidates(&self, facts: &Facts<'_, '_>, found: &mut Places) {
        let mut look_up = |map: &HashMap<SmolStr, SmallVec<[u32; 1]>>, value: Option<&str>| {
            if let Some(places) = value.and_then(|value| map.get(value)) {
                found.extend_from_slice(places);
            }
        };
        if !self.actions.is_empty() {
            look_up(&self.actions, Some(facts.request.action()));
        }
        if !self.tenants.is_empty() {
            look_up(&self.tenants, facts.tenant());
        }
        if !self.plans.is_empty() {
            look_up(&self.plans, Some(facts.plan()));
        }
        if !self.methods.is_empty() {
            look_up(&self.methods, facts.method());
            look_up(&self.methods, facts.method().filter(|method| *method == "HEAD").map(|_| "GET"));
        }
        for (name, values) in &self.headers {
            look_up(values, facts.request.attribute(name).map(str::trim));
        }
        if !(self.hosts.is_empty() && self.below.is_empty())
            && let Some(host) = facts.host()
        {
            look_up(&self.hosts, Some(host));
            // From the right, where the names of rules are: what a client puts in front must not hide them.
            let suffixes = host.rmatch_indices('.').filter(|(dot, _)| *dot > 0).map(|(dot, _)| &host[dot + 1..]);
            for suffix in suffixes.take_while(|suffix| suffix.len() <= MAX_HOST_BYTES) {
                look_up(&self.below, Some(suffix));
            }
        }
        if self.has_paths
            && let Some(path) = facts.path()
        {
            self.paths.find(path, found);
        }
        found.extend_from_slice(&self.always);
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
    }
}

/// A way to index a condition: under each of the entries.
struct Choice {
    entries: Vec<Entry>,
    field: Field,
}

/// What a choice takes care of.
#[derive(Clone, Copy)]
enum Field {
    Action,
    Path,
    Host,
    Tenant,
    Plan,
    Method,
    Header(usize),
}

/// The ways to index a condition.
fn choices(condition: &Condition) -> Vec<Choice> {
    let each = |values: &[SmolStr], entry: fn(SmolStr) -> Entry| values.iter().cloned().map(entry).collect::<Vec<_>>();
    let host = |host: &Host| match host {
        Host::Exactly(host) => Entry::Host(host.clone()),
        Host::Below(host) => Entry::Below(host.clone()),
    };
    let fixed = [
        (Field::Action, each(&condition.actions, Entry::Action)),
        (Field::Path, condition.paths.iter().cloned().map(Entry::Path).collect()),
        (Field::Host, condition.hosts.iter().map(host).collect()),
        (Field::Tenant, each(&condition.tenants, Entry::Tenant)),
        (Field::Plan, each(&condition.plans, Entry::Plan)),
        (Field::Method, each(&condition.methods, Entry::Method)),
    ];
    let headers = condition.headers.iter().enumerate().map(|(place, (name, values))| {
        (Field::Header(place), values.iter().map(|value| Entry::Header(name.clone(), value.clone())).collect())
    });
    let ways = fixed.into_iter().chain(headers).filter(|(_, entries): &(Field, Vec<Entry>)| !entries.is_empty());
    ways.map(|(field, entries)| Choice { entries, field }).collect()
}

/// What of a condition is left to check.
fn rest(condition: &Condition, field: Field) -> Condition {
    let mut rest = condition.clone();
    match field {
        Field::Action => rest.actions.clear(),
        Field::Path => rest.paths.clear(),
        Field::Host => rest.hosts.clear(),
        Field::Tenant => rest.tenants.clear(),
        Field::Plan => rest.plans.clear(),
        Field::Method => rest.methods.clear(),
        Field::Header(place) => drop(rest.headers.remove(place)),
    }
    rest
}
