//! Lints about identity: values that a client can forge. A client that can invent subjects is never limited, and one that can
//! use another's subject spends its limit.

mod exemption;

use std::collections::{BTreeSet, HashMap, HashSet};

use ipnet::IpNet;
use smol_str::SmolStr;
use tidegate::attributes;
use tidegate_rules::internals::{
    AuthenticatedNames, CompiledFile, CompiledRule, Cost, CostSource, Identity, Provenance, Source, Span, TenantUse,
    how_to_authenticate, nearest,
};
use tidegate_rules::{MAX_PROBLEMS, Problem};

/// Names of identities that exist without being defined.
const BUILT_IN: [&str; 4] = ["tenant", "client", "user", "plan"];

/// The shortest prefix lengths (IPv4, IPv6) that can be a private network.
const MIN_TRUSTED_PREFIX: (u8, u8) = (8, 16);

/// The most names that an unused name is compared with.
const MAX_COMPARED_NAMES: usize = 100;

/// The identities of a file, with what is known about forging them.
struct TrustLint<'r> {
    file: &'r CompiledFile,
    authenticated: &'r AuthenticatedNames,
    /// Computed once, because many rules may use one identity.
    named: HashMap<&'r str, IdentityTrust>,
}

/// Whether an identity can be forged.
#[derive(Clone, Copy)]
struct IdentityTrust {
    /// The first forgeable source that can be reached.
    forgeable: Option<usize>,
    /// The source `host`, if it can be reached. It is forgeable unless the rule matches hosts.
    host: Option<usize>,
    /// Whether it identifies a sender that cannot choose it freely.
    trusted: bool,
}

/// Appends the lints about identities. `earlier` are the problems that compiling found.
pub(super) fn lint(file: &CompiledFile, earlier: &[Problem], lints: &mut Vec<Problem>) {
    let trust = TrustLint::new(file);
    for (network, span) in &file.identify.trusted {
        lints.extend(trusts_everyone(network, span));
    }
    for (identity, spans) in file.defined_identities() {
        if matches!(identity.name.as_str(), "tenant" | "plan") {
            lints.extend(trust.forgeable_tenant(identity, spans));
        }
    }
    let mut reported = HashSet::new();
    for rule in file.enabled_rules() {
        trust.forgeable_subjects(rule, &mut reported, lints);
        lints.extend(trust.forgeable_cost(rule));
    }
    for (condition, span) in file.matcher.exempt.iter().zip(&file.exempt) {
        lints.extend(trust.exemption_by_header(condition, span));
    }
    exemption::lint_lifted_protection(file, lints);
    unused(file, earlier, lints);
}

fn trusts_everyone(network: &IpNet, span: &Span) -> Option<Problem> {
    let too_wide = match network {
        IpNet::V4(network) => network.prefix_len() < MIN_TRUSTED_PREFIX.0,
        // fc00::/7 is private as a whole.
        IpNet::V6(network) => network.prefix_len() < MIN_TRUSTED_PREFIX.1 && !network.addr().is_unique_local(),
    };
    let message = format!("`{network}` trusts every proxy in it, so any client can claim any address");
    let help = "list the networks of your own proxies, such as `10.0.0.0/8`, or use `trusted_hops`";
    too_wide.then(|| Problem::warning("trust-everyone", message, span.clone()).with_help(help))
}

impl<'r> TrustLint<'r> {
    fn new(file: &'r CompiledFile) -> Self {
        let mut trust = Self { file, authenticated: &file.identify.authenticated, named: HashMap::new() };
        let defined = file.defined_identities();
        trust.named = defined.map(|(identity, _)| (&*identity.name, trust.assess(identity))).collect();
        trust
    }

    fn assess(&self, identity: &Identity) -> IdentityTrust {
        let trusted = |source| matches!(self.provenance(source), Provenance::Verified | Provenance::Address);
        let forgeable = self.reached(identity).position(|source| self.provenance(source) == Provenance::Forgeable);
        let host = self.reached(identity).position(|source| *source == Source::Host);
        let host = host.filter(|_| !self.authenticated.contains("host"));
        let trusted = forgeable.is_none() && (identity.sources.is_empty() || identity.each_source().any(trusted));
        IdentityTrust { forgeable, host, trusted }
    }

    /// Assesses an identity of a rule: a name from `identify`, or a source in `per`.
    fn assess_for_rule(&self, rule: &CompiledRule, identity: &Identity) -> IdentityTrust {
        let assess = self.named.get(&*identity.name).copied().unwrap_or_else(|| self.assess(identity));
        if rule.matcher.condition.hosts.is_empty() { assess.with_any_host() } else { assess }
    }

    fn provenance(&self, source: &Source) -> Provenance {
        match source {
            // A claim that is not stated as verified has an error of its own.
            Source::Claim(_) => Provenance::Verified,
            _ => self.authenticated.provenance(source),
        }
    }

    /// The sources that can be reached: one that always has a value hides those after it.
    fn reached<'i>(&self, identity: &'i Identity) -> impl Iterator<Item = &'i Source> {
        let always = |source: &Source| matches!(self.provenance(source), Provenance::Address | Provenance::NoIdentity);
        let last = identity.each_source().position(always).map_or(identity.sources.len(), |last| last + 1);
        identity.each_source().take(last)
    }

    fn forgeable_tenant(&self, identity: &Identity, spans: &[Span]) -> Option<Problem> {
        let is_tenant = identity.name == "tenant";
        let untrue = |source: &Source| match source {
            // A claim that is not stated as verified has an error of its own.
            Source::Claim(_) => false,
            source if is_tenant => !self.authenticated.authenticates_tenant(source),
            source => matches!(self.provenance(source), Provenance::Forgeable | Provenance::BodyField),
        };
        let (one, span) = identity.sources.iter().zip(spans).find(|(one, _)| untrue(&one.source))?;
        let (name, kind) = (&identity.name, &one.kind);
        let effect = if is_tenant { ": it separates no subjects, and selects no plan through `tenants`" } else { "" };
        let message = format!("a client can send any `{kind}` and so choose its {name}{effect}");
        let problem = Problem::warning("unauthenticated-tenant", message, span.clone());
        Some(problem.with_help(how_to_authenticate([&one.source])))
    }

    /// Sources of a rule with which a client can be a new subject each time.
    fn forgeable_subjects(&self, rule: &CompiledRule, reported: &mut HashSet<usize>, lints: &mut Vec<Problem>) {
        let tenant = (rule.matcher.tenant == TenantUse::Subject).then_some(&self.file.matcher.tenant);
        let parts = || rule.matcher.per.iter().map(|identity| (identity, self.assess_for_rule(rule, identity)));
        if tenant.is_some_and(|tenant| self.assess_for_rule(rule, tenant).trusted)
            || parts().any(|(_, assess)| assess.trusted)
        {
            return;
        }
        // Forgeable plans have a lint of their own.
        for (identity, assess) in parts().filter(|(identity, _)| identity.name != "plan") {
            let Some(index) = assess.forgeable else { continue };
            let Some(span) = self.file.source_span(rule, identity, index) else { continue };
            if !reported.insert(span.start) {
                continue;
            }
            let (id, one) = (&rule.id, &identity.sources[index]);
            let kind = &one.kind;
            let message = format!("a client can send any `{kind}` and so avoid rule `{id}`");
            let problem = Problem::warning("unauthenticated-header", message, span.clone());
            let help = match &one.source {
                Source::Host => "list the hosts: `match: { host: api.example.com }`".to_owned(),
                source => how_to_authenticate([source]),
            };
            lints.push(problem.with_help(format!("{help}; otherwise count by `ip`")));
        }
    }

    /// A cost that is computed from a forgeable value.
    fn forgeable_cost(&self, rule: &CompiledRule) -> Option<Problem> {
        let Cost::Table(table) = &rule.matcher.cost else { return None };
        let CostSource::Expression(expression) = &table.from else { return None };
        // What a request with `usage` announces is corrected by what it used, and a model keeps to the `max_tokens` that it was sent.
        let is_settled = |name: &&SmolStr| rule.usage.is_some() && name.starts_with("body:");
        let reads = expression.reads().iter().filter(|name| !is_settled(name));
        let forgeable = reads.filter_map(|name| self.forgeable_read(name));
        let (kinds, sources): (Vec<String>, Vec<Source>) = forgeable.unzip();
        if sources.is_empty() {
            return None;
        }
        let message = format!("a client can send any {} and so choose its own cost", kinds.join(", "));
        let problem = Problem::warning("forgeable-cost", message, rule.cost_span.clone());
        let help = how_to_authenticate(&sources);
        Some(problem.with_help(format!("{help}; otherwise let the application set an attribute, and read `attr.NAME`")))
    }

    /// The source of a name in an expression and a description of it, if it is forgeable.
    fn forgeable_read(&self, name: &str) -> Option<(String, Source)> {
        // A body is as long as it is; forgeable tenants and plans have a lint of their own.
        if matches!(name, attributes::SIZE | attributes::TENANT | attributes::PLAN) {
            return None;
        }
        if let Some(identity) = self.file.matcher.named(name) {
            let index = self.named.get(name)?.forgeable?;
            let one = &identity.sources[index];
            return Some((format!("`{}` as its {name}", one.kind), one.source.clone()));
        }
        let can_choose =
            |source: &Source| matches!(self.provenance(source), Provenance::Forgeable | Provenance::BodyField);
        let source = Source::parse(name).ok().filter(can_choose)?;
        Some((format!("`{name}`"), source))
    }
}

impl IdentityTrust {
    /// The assessment for a rule that matches any host.
    fn with_any_host(self) -> Self {
        Self { forgeable: self.forgeable.or(self.host), trusted: self.trusted && self.host.is_none(), ..self }
    }
}

fn unused(file: &CompiledFile, earlier: &[Problem], lints: &mut Vec<Problem>) {
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for rule in &file.rules {
        used.extend(rule.per_spans.iter().map(|(name, _)| name.as_str()));
    }
    let before = lints.len();
    for (name, span) in &file.identify.names {
        if lints.len() - before == MAX_PROBLEMS {
            return;
        }
        // A name that looks like a setting has been reported.
        let quoted = format!("`{name}`");
        let is_reported = |problem: &Problem| problem.code() == "identity" && problem.message().starts_with(&quoted);
        if BUILT_IN.contains(&name.as_str()) || used.contains(name.as_str()) || earlier.iter().any(is_reported) {
            continue;
        }
        let message = format!("no rule uses the identity `{name}`");
        let names = used.iter().copied().filter(|name| !name.contains(':')).take(MAX_COMPARED_NAMES);
        let identities = BUILT_IN.iter().copied().chain(names);
        lints.push(match nearest(name, identities) {
            Some(meant) => {
                let help = format!("did you mean `{meant}`?");
                Problem::warning("unused-identity", message, span.clone()).with_help(help)
            }
            None => {
                Problem::note("unused-identity", message, span.clone()).with_help("remove it, or count by it in `per`")
            }
        });
    }
}
