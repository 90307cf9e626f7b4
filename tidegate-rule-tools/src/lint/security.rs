//! Lints about security rules: limits against guessing logins, codes or passwords. Such a rule must hold at window boundaries
//! and while the store fails, and count by account as well as by address.

use tidegate::limits::Algorithm;
use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledRule, Condition, Identity, PathPattern, Segment, Source};

use super::failure_policy::{self, UncountedRequests};
use super::limits;

/// Words in actions and paths that attackers guess at.
const SECURITY_WORDS: [&str; 12] =
    ["login", "signin", "logon", "otp", "2fa", "mfa", "password", "passwd", "token", "verify", "reset", "auth"];

/// The same as two words: `sign-in`, `log_in`.
const SECURITY_WORD_PAIRS: [[&str; 2]; 3] = [["sign", "in"], ["log", "in"], ["log", "on"]];

pub(super) fn lint(rule: &CompiledRule, lints: &mut Vec<Problem>) {
    if let (false, Some(word)) = (rule.says_security, security_word(&rule.matcher.condition)) {
        let message = format!("`{word}` looks like a target of guessing, and the rule has no `security`");
        let help = "set `security: true` (responses then show only when to retry) or `security: false`";
        lints.push(Problem::note("looks-like-security", message, rule.match_span.clone()).with_help(help));
    }
    if !is_security(rule) {
        return;
    }
    for limit in limits::spanned_limits(rule) {
        if doubles_at_boundary(limit.limit.algorithm()) {
            let message = format!("twice as many guesses pass around a window boundary{}", limit.of_plan());
            let help = "use `sliding_log`, which is exact in any window and cheap for small limits";
            lints.push(Problem::warning("fixed-window-on-security", message, limit.span.clone()).with_help(help));
        }
    }
    lints.extend(fails_open(rule));
}

/// Whether twice the limit passes where one window or period ends and the next begins.
pub(crate) fn doubles_at_boundary(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::FixedWindow | Algorithm::Quota)
}

/// Guesses that are not limited while the store fails.
fn fails_open(rule: &CompiledRule) -> Option<Problem> {
    let (message, help) = match failure_policy::uncounted_requests(rule) {
        UncountedRequests::None => return None,
        UncountedRequests::All => {
            ("guesses are not limited while the store fails".to_owned(), "set `on_failure: share` or `closed`")
        }
        UncountedRequests::Some(requests) => (
            format!("guesses are not limited while the store fails: those of {requests}"),
            "set `share` or `closed` for them too, and `default` for requests that match no route; move other requests to a \
             rule of their own",
        ),
    };
    Some(Problem::warning("security-fails-open", message, rule.on_failure_span.clone()).with_help(help))
}

/// Whether a rule is a security rule: by its `security`, else by the words that it matches.
pub(crate) fn is_security(rule: &CompiledRule) -> bool {
    rule.security || !rule.says_security && security_word(&rule.matcher.condition).is_some()
}

/// A login that is counted by address and by no account. Of several such rules on one request, the first is reported.
pub(super) fn by_address_alone(
    index: usize,
    rule: &CompiledRule,
    beside: &[(usize, &CompiledRule)],
) -> Option<Problem> {
    let suspect = |rule: &CompiledRule| {
        (rule.security || !rule.says_security)
            && security_word(&rule.matcher.condition).is_some()
            && is_by_address(rule)
    };
    let by_account = |rule: &CompiledRule| rule.matcher.per.iter().any(identifies_account);
    let is_covered = |(at, other): &(usize, &CompiledRule)| by_account(other) || (*at < index && suspect(other));
    if !suspect(rule) || beside.iter().any(is_covered) {
        return None;
    }
    let message = "guesses are counted by address only, and an attacker on one account may have many addresses";
    let help = "add a rule with the same `match` that counts by the account: `per: [attr:account]`, or `body:email`";
    Some(Problem::warning("login-by-ip-alone", message, rule.per_span.clone()).with_help(help))
}

/// Whether a rule counts by addresses only.
fn is_by_address(rule: &CompiledRule) -> bool {
    let address = |source: &Source| matches!(source, Source::Ip | Source::Net(_));
    let only = |identity: &Identity| !identity.sources.is_empty() && identity.each_source().all(address);
    !rule.matcher.per.is_empty() && rule.matcher.per.iter().all(only)
}

/// Whether an identity distinguishes accounts, not only addresses or routes.
fn identifies_account(identity: &Identity) -> bool {
    identity.sources.is_empty() || identity.each_source().any(Source::belongs_to_tenant)
}

/// The first word that attackers guess at.
fn security_word(condition: &Condition) -> Option<&'static str> {
    let literal = |segment: &Segment| match segment {
        Segment::Literal(text) => Some(text.to_string()),
        Segment::Any | Segment::Rest => None,
    };
    let segments = condition.paths.iter().flat_map(PathPattern::segments).filter_map(literal);
    let mut texts = condition.actions.iter().map(ToString::to_string).chain(segments);
    texts.find_map(|text| find_security_word(&text))
}

fn find_security_word(text: &str) -> Option<&'static str> {
    let words = words(text);
    let single = words.iter().find_map(|word| SECURITY_WORDS.iter().find(|listed| *listed == word).copied());
    let pair = || SECURITY_WORD_PAIRS.iter().any(|pair| words.windows(2).any(|two| two == pair)).then_some("sign in");
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
            assert!(find_security_word(name).is_some(), "{name}");
        }
        for name in ["authors", "blogging", "tokens", "signing", "resetting", "catalogue", "design-inputs", ""] {
            assert_eq!(find_security_word(name), None, "{name}");
        }
    }
}
