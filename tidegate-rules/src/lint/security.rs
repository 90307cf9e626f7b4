//! Lints about rules against guessing: logins, codes, passwords. Such a rule must hold at the boundary of a window, hold
//! when the store fails, count by the account as well as by the address, and give nothing away.

use tidegate::Algorithm;

use super::failure_policy::{self, UncountedRequests};
use super::limits;
use crate::compile::CompiledRule;
use crate::condition::Condition;
use crate::identity::{Identity, Source};
use crate::path::{PathPattern, Segment};
use crate::problem::Problem;

/// Words of actions and paths that are guessed at.
const WORDS: [&str; 12] =
    ["login", "signin", "logon", "otp", "2fa", "mfa", "password", "passwd", "token", "verify", "reset", "auth"];

/// The same, written apart: `sign-in`, `log_in`.
const PAIRS: [[&str; 2]; 3] = [["sign", "in"], ["log", "in"], ["log", "on"]];

pub(super) fn lint(rule: &CompiledRule, found: &mut Vec<Problem>) {
    if let (None, Some(word)) = (rule.security, suspicious(&rule.matcher.condition)) {
        let message = format!("`{word}` sounds like something that is guessed at, and the rule does not say");
        let help = "say `security: true` (answers then give nothing away) or `security: false`";
        found.push(Problem::note("looks-like-security", message, rule.match_span.clone()).with_help(help));
    }
    if !is_security(rule) {
        return;
    }
    for limit in limits::spanned_limits(rule) {
        if limit.limit.algorithm() == Algorithm::FixedWindow {
            let message = format!("around the boundary of a window twice as many guesses pass{}", limit.of_plan());
            let help = "use `sliding_log`: it is exact in any window, and cheap for few requests";
            found.push(Problem::warning("fixed-window-on-security", message, limit.span.clone()).with_help(help));
        }
    }
    found.extend(fails_open(rule));
}

/// Guesses that pass while the store fails.
fn fails_open(rule: &CompiledRule) -> Option<Problem> {
    let (message, help) = match failure_policy::uncounted_requests(rule) {
        UncountedRequests::None => return None,
        UncountedRequests::All => {
            ("while the store fails nobody counts the guesses".to_owned(), "say `on_failure: closed`, or `local`")
        }
        UncountedRequests::Some(requests) => (
            format!("while the store fails nobody counts the guesses of {requests}"),
            "say `closed` or `local` for them too, with `default` for what no route fits; what nobody guesses at may have a \
             rule of its own",
        ),
    };
    Some(Problem::warning("security-fails-open", message, rule.on_failure_span.clone()).with_help(help))
}

/// Whether a rule is against guessing: it says so, or it sounds like it and does not deny it.
pub(crate) fn is_security(rule: &CompiledRule) -> bool {
    rule.security.unwrap_or_else(|| suspicious(&rule.matcher.condition).is_some())
}

/// A login that is counted by address and by no account. Of several such rules on one request, the first is told.
pub(super) fn by_address_alone(
    place: usize,
    rule: &CompiledRule,
    beside: &[(usize, &CompiledRule)],
) -> Option<Problem> {
    let suspect = |rule: &CompiledRule| {
        rule.security != Some(false) && suspicious(&rule.matcher.condition).is_some() && is_by_address(rule)
    };
    let by_somebody = |rule: &CompiledRule| rule.matcher.per.iter().any(names_somebody);
    let told_or_mended = |(at, other): &(usize, &CompiledRule)| by_somebody(other) || (*at < place && suspect(other));
    if !suspect(rule) || beside.iter().any(told_or_mended) {
        return None;
    }
    let message = "guesses are counted by address alone, and whoever attacks one account has many addresses";
    let help = "add a rule with the same `match` that counts by the account: `per: [attr:account]`, or `body:email`";
    Some(Problem::warning("login-by-ip-alone", message, rule.per_span.clone()).with_help(help))
}

/// Whether a rule counts by addresses and by nothing else.
fn is_by_address(rule: &CompiledRule) -> bool {
    let address = |source: &Source| matches!(source, Source::Ip | Source::Net(_));
    let only = |identity: &Identity| !identity.sources.is_empty() && identity.sources.iter().all(address);
    !rule.matcher.per.is_empty() && rule.matcher.per.iter().all(only)
}

/// Whether an identity tells accounts apart, not only addresses or routes.
fn names_somebody(identity: &Identity) -> bool {
    identity.sources.is_empty() || identity.sources.iter().any(Source::belongs_to_tenant)
}

/// The first word that sounds like something that is guessed at.
fn suspicious(condition: &Condition) -> Option<&'static str> {
    let literal = |segment: &Segment| match segment {
        Segment::Literal(text) => Some(text.to_string()),
        Segment::Any | Segment::Rest => None,
    };
    let segments = condition.paths.iter().flat_map(PathPattern::segments).filter_map(literal);
    let mut texts = condition.actions.iter().map(ToString::to_string).chain(segments);
    texts.find_map(|text| sounds_like(&text))
}

fn sounds_like(text: &str) -> Option<&'static str> {
    let words = words(text);
    let single = words.iter().find_map(|word| WORDS.iter().find(|known| *known == word).copied());
    let pair = || PAIRS.iter().any(|pair| words.windows(2).any(|two| two == pair)).then_some("sign in");
    single.or_else(pair)
}

/// The words of a name in lower case: `passwordReset` and `password-reset` have two.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower_before = false;
    for c in text.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && lower_before) {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        lower_before = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_word_by_word() {
        for name in ["login", "user-login", "Login", "userLogin", "sign-in", "sign_in", "logIn", "2fa", "auth.check"] {
            assert!(sounds_like(name).is_some(), "{name}");
        }
        for name in ["authors", "blogging", "tokens", "signing", "resetting", "catalogue", "design-inputs", ""] {
            assert_eq!(sounds_like(name), None, "{name}");
        }
    }
}
