//! Lints about identity: who can pretend to be whom. Whoever can make up new names for himself never runs out, and whoever
//! can take another's name spends what is not his.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::slice;

use ipnet::IpNet;
use smol_str::SmolStr;
use tidegate::attributes;

use crate::compile::{CompiledFile, CompiledRule};
use crate::condition::Condition;
use crate::cost::{Cost, CostSource};
use crate::identity::{Identity, Source};
use crate::problem::{MAX_PROBLEMS, Problem};
use crate::provenance::{AuthenticatedNames, Provenance};
use crate::request_matcher::TenantUse;
use crate::source_file::Span;
use crate::suggest::nearest;

/// The names that mean something by themselves.
const BUILT_IN: [&str; 4] = ["tenant", "client", "user", "plan"];

/// The shortest prefixes that can be a network of one's own.
const MIN_TRUSTED_PREFIX: (u8, u8) = (8, 16);

/// To how many names an unused one is compared.
const MAX_COMPARED_NAMES: usize = 100;

/// What a file says about whom to believe.
struct TrustLint<'r> {
    ready: &'r CompiledFile,
    authenticated: &'r AuthenticatedNames,
    /// Judged once, since many rules may count by one.
    named: HashMap<&'r str, IdentityTrust<'r>>,
}

/// What is known about an identity.
#[derive(Clone, Copy)]
struct IdentityTrust<'r> {
    /// The first source that a client can make up, if it comes to that.
    forged: Option<usize>,
    /// The source that is the host, if it comes to that. A client can make it up too, unless the rule names hosts.
    host: Option<usize>,
    /// It tells who somebody is, and nobody can choose that freely.
    good: bool,
    /// Where its sources stand.
    spans: &'r [Span],
}

/// `earlier` are the problems that compiling has found.
pub(super) fn lint(ready: &CompiledFile, earlier: &[Problem], found: &mut Vec<Problem>) {
    let trust = TrustLint::new(ready);
    for (network, span) in &ready.identify.trusted {
        found.extend(trusts_everyone(network, span));
    }
    for (identity, spans) in written(ready) {
        trust.claims(identity, spans, found);
        if matches!(identity.name.as_str(), "tenant" | "plan") {
            found.extend(trust.forged_tenant(identity, spans));
        }
    }
    let mut told = HashSet::new();
    for rule in ready.rules.iter().filter(|rule| !rule.is_disabled()) {
        trust.direct_claims(rule, found);
        trust.forged_subjects(rule, &mut told, found);
        found.extend(trust.forged_cost(rule));
    }
    for (condition, span) in ready.matcher.exempt.iter().zip(&ready.exempt) {
        found.extend(trust.forged_exemption(condition, span));
    }
    unused(ready, earlier, found);
}

/// The identities of the file with the places of their sources. Those that exist without being written follow after them.
fn written(ready: &CompiledFile) -> impl Iterator<Item = (&Identity, &[Span])> {
    ready.matcher.identities.iter().zip(ready.identify.sources.iter().map(Vec::as_slice))
}

fn trusts_everyone(network: &IpNet, span: &Span) -> Option<Problem> {
    let too_wide = match network {
        IpNet::V4(network) => network.prefix_len() < MIN_TRUSTED_PREFIX.0,
        // fc00::/7 is private as a whole.
        IpNet::V6(network) => network.prefix_len() < MIN_TRUSTED_PREFIX.1 && !network.addr().is_unique_local(),
    };
    let message = format!("with `{network}` among the proxies, anyone can claim any address");
    let help = "list the networks of your own proxies, such as `10.0.0.0/8`, or use `trusted_hops`";
    too_wide.then(|| Problem::warning("trust-everyone", message, span.clone()).with_help(help))
}

impl<'r> TrustLint<'r> {
    fn new(ready: &'r CompiledFile) -> Self {
        let mut trust = Self { ready, authenticated: &ready.identify.authenticated, named: HashMap::new() };
        trust.named =
            written(ready).map(|(identity, spans)| (&*identity.name, trust.assessed(identity, spans))).collect();
        trust
    }

    fn assessed(&self, identity: &Identity, spans: &'r [Span]) -> IdentityTrust<'r> {
        let good = |source| matches!(self.provenance(source), Provenance::Verified | Provenance::Address);
        let forged = self.reached(identity).position(|source| self.provenance(source) == Provenance::Forgeable);
        let host = self.reached(identity).position(|source| *source == Source::Host);
        let host = host.filter(|_| !self.authenticated.contains("host"));
        let good = forged.is_none() && (identity.sources.is_empty() || identity.sources.iter().any(good));
        IdentityTrust { forged, host, good, spans }
    }

    /// What is known about what a rule counts by: a name from `identify`, or a source of its own.
    fn judge(&self, rule: &'r CompiledRule, identity: &Identity) -> IdentityTrust<'r> {
        let assessed = self.named.get(&*identity.name).copied().unwrap_or_else(|| {
            let span = rule.per_places.iter().find(|(name, _)| *name == identity.name).map(|(_, span)| span);
            self.assessed(identity, span.map_or(&[], slice::from_ref))
        });
        if rule.matcher.condition.hosts.is_empty() { assessed.with_any_host() } else { assessed }
    }

    fn provenance(&self, source: &Source) -> Provenance {
        self.authenticated.provenance(source)
    }

    /// The sources that it can come to: what is always there hides all that follow.
    fn reached<'i>(&self, identity: &'i Identity) -> impl Iterator<Item = &'i Source> {
        let always = |source: &Source| matches!(self.provenance(source), Provenance::Address | Provenance::NoIdentity);
        let last = identity.sources.iter().position(always).map_or(identity.sources.len(), |last| last + 1);
        identity.sources[..last].iter()
    }

    fn has_verified_token(&self) -> bool {
        let token = &self.ready.matcher.identity_config.token;
        self.authenticated.contains(attributes::header_name(token).unwrap_or(token))
    }

    fn claims(&self, identity: &Identity, spans: &[Span], found: &mut Vec<Problem>) {
        for (source, span) in identity.sources.iter().zip(spans) {
            if matches!(source, Source::Claim(_)) && !self.has_verified_token() {
                found.push(self.unverified(span));
            }
        }
    }

    /// Claims that a rule counts by without a name for them.
    fn direct_claims(&self, rule: &CompiledRule, found: &mut Vec<Problem>) {
        if self.has_verified_token() {
            return;
        }
        for (_, span) in rule.per_places.iter().filter(|(name, _)| name.starts_with("claim:")) {
            found.push(self.unverified(span));
        }
    }

    fn unverified(&self, span: &Span) -> Problem {
        let token = &self.ready.matcher.identity_config.token;
        let name = attributes::header_name(token).unwrap_or(token);
        let message = "tokens are not verified here, so anyone can write a token with any claim";
        let help = format!(
            "have somebody in front verify it, and say so: `authenticated: [{name}]` below `identify`; or let the \
             application set an attribute, and count by `attr:NAME`"
        );
        Problem::error("unverified-claim", message, span.clone()).with_help(help)
    }

    fn forged_tenant(&self, identity: &Identity, spans: &[Span]) -> Option<Problem> {
        let untrue = |source: &Source| matches!(self.provenance(source), Provenance::Forgeable | Provenance::BodyField);
        let place = identity.sources.iter().position(untrue)?;
        let (name, kind) = (&identity.name, &identity.kinds[place]);
        let message = format!("a client can send any `{kind}`, and so choose its {name}");
        let problem = Problem::warning("unauthenticated-tenant", message, spans.get(place)?.clone());
        Some(problem.with_help(believe(&identity.sources[place..=place])))
    }

    /// Sources of a rule under which a client can appear as somebody new each time.
    fn forged_subjects(&self, rule: &'r CompiledRule, told: &mut HashSet<usize>, found: &mut Vec<Problem>) {
        let tenant = (rule.matcher.tenant == TenantUse::Subject).then_some(&self.ready.matcher.tenant);
        let parts = || rule.matcher.per.iter().map(|identity| (identity, self.judge(rule, identity)));
        if tenant.is_some_and(|tenant| self.judge(rule, tenant).good) || parts().any(|(_, assessed)| assessed.good) {
            return;
        }
        // Whoever can choose a plan has a lint for that.
        for (identity, assessed) in parts().filter(|(identity, _)| identity.name != "plan") {
            let Some(place) = assessed.forged else { continue };
            let Some(span) = assessed.spans.get(place).filter(|span| told.insert(span.start)) else { continue };
            let (id, kind) = (&rule.matcher.id, &identity.kinds[place]);
            let message = format!("a client can send any `{kind}`, so rule `{id}` never stops it");
            let problem = Problem::warning("unauthenticated-header", message, span.clone());
            let help = match &identity.sources[place] {
                Source::Host => "say which hosts there are: `match: { host: api.example.com }`".to_owned(),
                source => believe(slice::from_ref(source)),
            };
            found.push(problem.with_help(format!("{help}; otherwise count by `ip`")));
        }
    }

    /// A cost that is computed from what a client can send as it likes.
    fn forged_cost(&self, rule: &CompiledRule) -> Option<Problem> {
        let Cost::Table(table) = &rule.matcher.cost else { return None };
        let CostSource::Expression(expression) = &table.from else { return None };
        let forged = expression.reads().iter().filter_map(|name| self.forged_read(name));
        let (kinds, sources): (Vec<String>, Vec<Source>) = forged.unzip();
        if sources.is_empty() {
            return None;
        }
        let message = format!("a client can send any {}, and so name its own price", kinds.join(", "));
        let problem = Problem::warning("forgeable-cost", message, rule.cost_span.clone());
        let help = believe(&sources);
        Some(problem.with_help(format!("{help}; otherwise let the application set an attribute, and read `attr.NAME`")))
    }

    /// The source behind what an expression reads, and how it is written, if a client can make it up.
    fn forged_read(&self, name: &str) -> Option<(String, Source)> {
        // Whoever announces a size must send as much; and whoever can choose a tenant or a plan has a lint for that.
        if matches!(name, attributes::CONTENT_LENGTH_HEADER | attributes::TENANT | attributes::PLAN) {
            return None;
        }
        if let Some(identity) = self.ready.matcher.named(name) {
            let place = self.named.get(name)?.forged?;
            return Some((format!("`{}` as its {name}", identity.kinds[place]), identity.sources[place].clone()));
        }
        let source = Source::parse(name).ok().filter(|source| self.provenance(source) == Provenance::Forgeable)?;
        Some((format!("`{name}`"), source))
    }

    fn forged_exemption(&self, condition: &Condition, span: &Span) -> Option<Problem> {
        let verified = |name: &SmolStr| self.provenance(&Source::Attribute(name.clone())) == Provenance::Verified;
        let (name, _) = condition.headers.first()?;
        // Whoever must also come from a network, or be a tenant, is not exempt by a header alone.
        let asks_more = !(condition.networks.is_empty() && condition.tenants.is_empty() && condition.plans.is_empty());
        if asks_more || condition.headers.iter().any(|(name, _)| verified(name)) {
            return None;
        }
        let message = format!("any client can send `{name}` and be exempt");
        let problem = Problem::warning("exempt-by-header", message, span.clone());
        let help = believe(&[Source::Attribute(name.clone())]);
        Some(problem.with_help(format!("{help}; otherwise ask for the network too: `ip: 10.0.0.0/8`")))
    }
}

impl IdentityTrust<'_> {
    /// The same for a rule that applies to any host.
    fn with_any_host(self) -> Self {
        Self { forged: self.forged.or(self.host), good: self.good && self.host.is_none(), ..self }
    }
}

/// How to say that sources can be believed.
fn believe(sources: &[Source]) -> String {
    let listed = |source: &Source| match source {
        Source::Attribute(name) => Some(attributes::header_name(name).unwrap_or(name).to_owned()),
        Source::Query(name) => Some(format!("query:{name}")),
        Source::Cookie(name) => Some(format!("cookie:{name}")),
        _ => None,
    };
    let Some(listed) = sources.iter().map(listed).collect::<Option<Vec<_>>>() else {
        return "have somebody in front verify it and send it as a header".to_owned();
    };
    let listed = listed.join(", ");
    format!("if somebody in front sets or verifies it, say so: `authenticated: [{listed}]` below `identify`")
}

fn unused(ready: &CompiledFile, earlier: &[Problem], found: &mut Vec<Problem>) {
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for rule in &ready.rules {
        used.extend(rule.per_places.iter().map(|(name, _)| name.as_str()));
    }
    let before = found.len();
    for (name, span) in &ready.identify.names {
        if found.len() - before == MAX_PROBLEMS {
            return;
        }
        // A name that looks like a setting has been spoken of.
        let quoted = format!("`{name}`");
        let spoken_of = |problem: &Problem| problem.code() == "identity" && problem.message().starts_with(&quoted);
        if BUILT_IN.contains(&name.as_str()) || used.contains(name.as_str()) || earlier.iter().any(spoken_of) {
            continue;
        }
        let message = format!("no rule uses the identity `{name}`");
        let names = used.iter().copied().filter(|name| !name.contains(':')).take(MAX_COMPARED_NAMES);
        let known = BUILT_IN.iter().copied().chain(names);
        found.push(match nearest(name, known) {
            Some(meant) => {
                let help = format!("did you mean `{meant}`?");
                Problem::warning("unused-identity", message, span.clone()).with_help(help)
            }
            None => Problem::note("unused-identity", message, span.clone())
                .with_help("take it out, or count by it in `per`"),
        });
    }
}
