//! Compiling `identify.repeated`: which value counts if a source comes more than once.

use smol_str::SmolStr;

use super::Compiler;
use super::identify::IdentifySpans;
use crate::identity::{Identity, Source};
use crate::read::Spanned;
use crate::repeated::{RepeatedPolicies, RepeatedPolicy};
use crate::schema_types::{RepeatedName, RepeatedSpec};
use crate::source_file::Span;
use crate::suggest::suggest;

impl From<RepeatedName> for RepeatedPolicy {
    fn from(name: RepeatedName) -> Self {
        match name {
            RepeatedName::Reject => Self::Reject,
            RepeatedName::First => Self::First,
            RepeatedName::Last => Self::Last,
        }
    }
}

impl Compiler<'_> {
    /// The policy of each source. A policy for an identity is one for each of its sources. `token` is the attribute of the header with
    /// the token.
    pub(super) fn repeated(
        &mut self,
        spec: Option<&RepeatedSpec>,
        identities: &[Identity],
        token: &SmolStr,
        spans: &mut IdentifySpans,
    ) -> RepeatedPolicies {
        let mut policies = RepeatedPolicies::default();
        match spec {
            None => {}
            Some(RepeatedSpec::Text(word)) => {
                policies.otherwise = word.value.into();
                spans.repeated.push(("every identity".into(), policies.otherwise, word.span.clone()));
            }
            Some(RepeatedSpec::Map(words)) => {
                for (name, word) in words {
                    self.repeated_entry(name, word, identities, token, &mut policies);
                    spans.repeated.push((SmolStr::new(format!("`{name}`")), word.value.into(), word.span.clone()));
                }
            }
        }
        policies
    }

    fn repeated_entry(
        &mut self,
        name: &str,
        word: &Spanned<RepeatedName>,
        identities: &[Identity],
        token: &SmolStr,
        policies: &mut RepeatedPolicies,
    ) {
        let identity = identities.iter().find(|identity| identity.name == name);
        let sources: Vec<SmolStr> = if let Some(identity) = identity {
            identity.each_source().filter_map(|source| repeatable(source, token)).collect()
        } else if let Ok(source) = Source::parse(name) {
            repeatable(&source, token).into_iter().collect()
        } else {
            let help = suggest(name, identities.iter().map(|identity| identity.name.as_str()));
            let message = format!("`{name}` is neither an identity nor a source");
            self.error("repeated", &word.span, message).set_help(help);
            return;
        };
        if sources.is_empty() {
            let message = format!("`{name}` has no source that can come more than once");
            self.error("repeated", &word.span, message)
                .set_help("name a header, a query parameter, a cookie or a field of the body");
        }
        for source in sources {
            self.set_policy(&source, word.value.into(), &word.span, policies);
        }
    }

    fn set_policy(&mut self, source: &SmolStr, policy: RepeatedPolicy, span: &Span, policies: &mut RepeatedPolicies) {
        let known = *policies.by_source.entry(source.clone()).or_insert(policy);
        if known != policy {
            let message = format!("`{source}` is `{}` here and `{}` above", policy.as_str(), known.as_str());
            self.error("repeated", span, message).set_help("give a source one policy");
        }
    }
}

/// The text of a source that can come more than once, as [`RepeatedPolicies`] knows it.
fn repeatable(source: &Source, token: &SmolStr) -> Option<SmolStr> {
    match source {
        Source::Attribute(name) => tidegate::attributes::header_name(name).map(|_| name.clone()),
        Source::Query(name) => Some(smol_str::format_smolstr!("query:{name}")),
        Source::Cookie(name) => Some(smol_str::format_smolstr!("cookie:{name}")),
        Source::Body(name) => Some(smol_str::format_smolstr!("body:{name}")),
        Source::Claim(_) => Some(token.clone()),
        _ => None,
    }
}
