//! Claims of a token that nobody is stated to verify.

use tidegate::attributes;

use crate::compiled_file::CompiledFile;
use crate::identity::Source;
use crate::problem::Problem;
use crate::source_file::Span;

/// An error for each source that reads a claim, below `identify` or in `per`.
pub(super) fn check(file: &CompiledFile, problems: &mut Vec<Problem>) {
    if file.identify.authenticated.has_verified_token() {
        return;
    }
    let defined = file.defined_identities().flat_map(|(identity, spans)| identity.each_source().zip(spans));
    let defined = defined.filter(|(source, _)| matches!(source, Source::Claim(_))).map(|(_, span)| span);
    let direct = file.enabled_rules().flat_map(|rule| &rule.per_spans);
    let direct = direct.filter(|(name, _)| name.starts_with("claim:")).map(|(_, span)| span);
    problems.extend(defined.chain(direct).map(|span| unverified(file, span)));
}

fn unverified(file: &CompiledFile, span: &Span) -> Problem {
    let token = &file.matcher.identity_config.token;
    let name = attributes::header_name(token).unwrap_or(token);
    let message = "a client can forge every claim of a token that nobody verifies: it gets a full limit for each request, or \
                   spends the limit and uses the plan of another customer";
    let help = format!(
        "Tidegate reads tokens and never verifies them. Verify the signature in the proxy or application in front and reject \
         what fails; then state it: `authenticated: [{name}]` below `identify`. Or let the application set an attribute, and \
         count by `attr:NAME`"
    );
    Problem::error("unverified-claim", message, span.clone()).with_help(help)
}
