//! `CompiledFile`: what compiling makes of a rule file, with the positions that checks and lints report.

use std::sync::Arc;

use tidegate::attributes::EscapedSlashes;
use tidegate::http::HeaderPolicy;

use crate::compile::{CompiledRule, IdentifySpans};
use crate::condition::Condition;
use crate::identity::{Identity, IdentitySource, Source};
use crate::provenance::Provenance;
use crate::request_matcher::{RequestMatcher, TenantUse};
use crate::source_file::Span;

/// A compiled rule file.
#[derive(Debug)]
pub struct CompiledFile {
    pub matcher: Arc<RequestMatcher>,
    /// Every rule, disabled ones included.
    pub rules: Vec<CompiledRule>,
    pub header_policy: HeaderPolicy,
    pub escaped_slashes: EscapedSlashes,
    /// The positions of the exemptions.
    pub exempt: Vec<Span>,
    pub identify: IdentifySpans,
}

impl CompiledFile {
    /// The rules that are not disabled, in the order of [`RequestMatcher::rules`].
    pub fn enabled_rules(&self) -> impl Iterator<Item = &CompiledRule> {
        self.rules.iter().filter(|rule| !rule.is_disabled())
    }

    /// The identities that the file defines, with the positions of their sources.
    pub fn defined_identities(&self) -> impl Iterator<Item = (&Identity, &[Span])> {
        self.matcher.identities.iter().zip(self.identify.sources.iter().map(Vec::as_slice))
    }

    /// The position of a source of an identity that a rule counts by: below `identify`, or in `per`. `None` for a default.
    pub fn source_span<'f>(&'f self, rule: &'f CompiledRule, identity: &Identity, index: usize) -> Option<&'f Span> {
        match self.identify.names.iter().position(|(name, _)| *name == identity.name) {
            Some(at) => self.identify.sources[at].get(index),
            None => rule.per_span_of(identity),
        }
    }

    /// Whether a condition requires a header, or a host, that a client cannot choose.
    pub fn requires_verified(&self, condition: &Condition) -> bool {
        let authenticated = &self.identify.authenticated;
        let is_verified =
            |name| authenticated.provenance(&Source::Attribute(Clone::clone(name))) == Provenance::Verified;
        condition.headers.iter().any(|(name, _)| is_verified(name))
            || (!condition.hosts.is_empty() && authenticated.contains("host"))
    }

    /// Whether a rule may count many anonymous subjects. Requests without any identity are only one subject.
    pub fn counts_anonymous(&self, rule: &CompiledRule) -> bool {
        // Plans are few; forgeable ones have a lint of their own.
        let per = rule.matcher.per.iter().filter(|identity| identity.name != "plan");
        let tenant = (rule.matcher.tenant == TenantUse::Subject).then_some(&self.matcher.tenant);
        let parts: Vec<&Identity> = per.chain(tenant).collect();
        parts.iter().any(|identity| may_be_anonymous(identity))
            && !parts.iter().any(|identity| is_authenticated(identity))
    }
}

impl CompiledRule {
    /// The position of an identity in `per`, if the rule names it there.
    pub fn per_span_of(&self, identity: &Identity) -> Option<&Span> {
        self.per_spans.iter().find(|(name, _)| *name == identity.name).map(|(_, span)| span)
    }
}

/// Whether an anonymous source can be reached. A source that identifies nobody always has a value and hides later ones.
fn may_be_anonymous(identity: &Identity) -> bool {
    let reached = identity.sources.iter().take_while(|one| one.provenance != Provenance::NoIdentity);
    reached.into_iter().any(|one| one.provenance != Provenance::Verified)
}

/// Whether every value is authenticated.
fn is_authenticated(identity: &Identity) -> bool {
    let is_verified = |one: &IdentitySource| one.provenance == Provenance::Verified;
    !may_be_anonymous(identity) && (identity.sources.is_empty() || identity.sources.iter().any(is_verified))
}
