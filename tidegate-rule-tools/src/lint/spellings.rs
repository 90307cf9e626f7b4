//! Lints about spellings: values that a service treats alike and that are counted apart, each with a full limit.

use std::collections::HashSet;

use tidegate::attributes::{self, names_account};
use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledFile, CompiledRule, Identity, IdentitySource, Provenance, Source, Span};

use super::security;

/// Words in names of headers whose values are credentials like those of `Authorization`.
const CREDENTIAL_WORDS: [&str; 4] = ["assertion", "authorization", "jwt", "oidc"];

/// Headers that differ from one request of a client to the next.
const CHANGING_HEADERS: [&str; 5] = ["cookie", "digest", "dpop", "signature", "signature-input"];

/// Appends the lints of all rules. A source is reported once.
pub(super) fn lint(file: &CompiledFile, lints: &mut Vec<Problem>) {
    let mut reported = HashSet::new();
    for rule in file.enabled_rules() {
        for identity in rule.matcher.per.iter() {
            for (index, one) in identity.sources.iter().enumerate().filter(|(_, one)| has_no_form(one)) {
                let span = file.source_span(rule, identity, index).unwrap_or(&rule.per_span);
                let found = credentials(one, span).or_else(|| account(rule, identity, one, span));
                lints.extend(found.filter(|_| reported.insert(span.start)));
            }
        }
    }
}

/// Whether the file states no normal form for a source, and it has none by default.
fn has_no_form(one: &IdentitySource) -> bool {
    one.forms.is_empty() && one.stated_forms.is_none()
}

/// A header with credentials beside `Authorization` and `Proxy-Authorization`.
fn credentials(one: &IdentitySource, span: &Span) -> Option<Problem> {
    let Source::Attribute(name) = &one.source else { return None };
    let header = attributes::header_name(name)?;
    let kind = &one.kind;
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
fn account(rule: &CompiledRule, identity: &Identity, one: &IdentitySource, span: &Span) -> Option<Problem> {
    let (kind, is_guarded) = (&one.kind, security::is_security(rule));
    let is_account = names_account(&identity.name) || names_account(kind);
    let is_typed = match &one.source {
        Source::Body(_) | Source::Query(_) => is_account || is_guarded,
        // The application may have normalized it.
        Source::Attribute(name) if attributes::header_name(name).is_none() => is_guarded && name != attributes::METHOD,
        Source::Attribute(_) | Source::Cookie(_) => is_account && one.provenance == Provenance::Forgeable,
        _ => false,
    };
    if !is_typed {
        return None;
    }
    let message = format!("`{kind}` counts as it is spelt: `Zed` and `zed` are two subjects");
    let help = if is_account && is_guarded && !rule.says_security {
        format!(
            "set `security: true`, or write `{kind} | trim | lower`; `{kind} | exact` if your service tells them apart"
        )
    } else {
        format!("write `{kind} | trim | lower` or `{kind} | email`; `{kind} | exact` if your service tells them apart")
    };
    Some(Problem::note("account-spellings", message, span.clone()).with_help(help))
}
