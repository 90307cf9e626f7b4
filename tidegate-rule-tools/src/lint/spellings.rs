//! Lints about spellings: values that a service treats alike and that are counted apart, each with a full limit.

use std::collections::HashSet;

use tidegate::attributes::{self, names_account};
use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledFile, CompiledRule, Identity, Provenance, Source, Span};

use super::security;

/// Words in names of headers whose values are credentials like those of `Authorization`.
const CREDENTIAL_WORDS: [&str; 4] = ["assertion", "authorization", "jwt", "oidc"];

/// Headers that differ from one request of a client to the next.
const CHANGING_HEADERS: [&str; 5] = ["cookie", "digest", "dpop", "signature", "signature-input"];

/// Appends the lints of all rules. A source is reported once.
pub(super) fn lint(file: &CompiledFile, lints: &mut Vec<Problem>) {
    let mut reported = HashSet::new();
    for rule in file.rules.iter().filter(|rule| !rule.is_disabled()) {
        for identity in rule.matcher.per.iter() {
            for index in (0..identity.sources.len()).filter(|index| has_no_form(identity, *index)) {
                let span = span(file, rule, identity, index);
                let found = credentials(identity, index, &span).or_else(|| account(rule, identity, index, &span));
                lints.extend(found.filter(|_| reported.insert(span.start)));
            }
        }
    }
}

/// Whether the file states no normal form for a source, and it has none by default.
fn has_no_form(identity: &Identity, index: usize) -> bool {
    identity.forms[index].is_empty() && !identity.states_forms[index]
}

/// The position of a source: below `identify`, or in `per`.
fn span(file: &CompiledFile, rule: &CompiledRule, identity: &Identity, index: usize) -> Span {
    let names = file.identify.names.iter().zip(&file.identify.sources);
    let named = names.into_iter().find(|((name, _), _)| *name == identity.name);
    let direct = || rule.per_spans.iter().find(|(name, _)| *name == identity.name).map(|(_, span)| span);
    named.and_then(|(_, spans)| spans.get(index)).or_else(direct).unwrap_or(&rule.per_span).clone()
}

/// A header with credentials beside `Authorization` and `Proxy-Authorization`.
fn credentials(identity: &Identity, index: usize, span: &Span) -> Option<Problem> {
    let Source::Attribute(name) = &identity.sources[index] else { return None };
    let header = attributes::header_name(name)?;
    let kind = &identity.kinds[index];
    let problem =
        |message: String, help: String| Problem::warning("credential-spellings", message, span.clone()).with_help(help);
    if CHANGING_HEADERS.contains(&header) {
        let message = format!("a client sends another `{kind}` with each request, and each is a subject of its own");
        let help = "count by what identifies the client in it, such as `cookie:NAME` or a claim, or by a header that a proxy sets";
        return Some(problem(message, help.to_owned()));
    }
    if header.split('-').any(|word| CREDENTIAL_WORDS.contains(&word)) {
        let message = format!("credentials have several spellings, and each `{kind}` is a subject of its own");
        let help =
            format!("write `{kind} | credentials`, or count by a header with the user alone, which a proxy sets");
        return Some(problem(message, help));
    }
    None
}

/// What a person types to say who it is.
fn account(rule: &CompiledRule, identity: &Identity, index: usize, span: &Span) -> Option<Problem> {
    let (kind, is_guarded) = (&identity.kinds[index], security::is_security(rule));
    let is_account = names_account(&identity.name) || names_account(kind);
    let is_typed = match &identity.sources[index] {
        Source::Body(_) | Source::Query(_) => is_account || is_guarded,
        // The application may have normalized it.
        Source::Attribute(name) if attributes::header_name(name).is_none() => is_guarded && name != attributes::METHOD,
        Source::Attribute(_) | Source::Cookie(_) => is_account && identity.provenances[index] == Provenance::Forgeable,
        _ => false,
    };
    if !is_typed {
        return None;
    }
    let message = format!("`{kind}` counts as it is spelt: `Zed` and `zed` are two subjects");
    let help = if is_account && is_guarded && rule.security.is_none() {
        format!(
            "set `security: true`, or write `{kind} | trim | lower`; `{kind} | exact` if your service tells them apart"
        )
    } else {
        format!("write `{kind} | trim | lower` or `{kind} | email`; `{kind} | exact` if your service tells them apart")
    };
    Some(Problem::note("account-spellings", message, span.clone()).with_help(help))
}
