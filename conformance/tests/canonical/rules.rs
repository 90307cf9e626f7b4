//! `RuleCase`: rules that deny some values, and the naive reading of them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::sync::Arc;

use tidegate::{Limiter, MemoryStore, Request, RuleSet};
use tidegate_rules::RuleFile;

use crate::canonical::judge::Report;

/// The denied values.
pub(crate) const PATH: &str = "/api/login";
pub(crate) const METHOD: &str = "DELETE";
pub(crate) const HOST: &str = "admin.example";
/// Denied by a rule that matches it.
pub(crate) const MATCHED_KEY: &str = "k1";
/// Denied by a rule that counts by it and is used up.
pub(crate) const COUNTED_KEY: &str = "k2";
pub(crate) const ACCOUNT: &str = "a1";
pub(crate) const SESSION: &str = "s1";
pub(crate) const USER: &str = "u1";

/// The exempt path.
pub(crate) const EXEMPT_PATH: &str = "/healthz";

/// More units than requests.
const CAPACITY: u64 = 1_000_000_000;

/// Rules, and which of them a request may not escape.
pub(crate) struct RuleCase {
    text: String,
    /// Returns what a request escaped, by what the upstream read.
    escaped: fn(&Report) -> Vec<String>,
}

impl RuleCase {
    /// One value of each part of a request is denied.
    pub(crate) fn denied_values() -> Self {
        let text = format!(
            "version: 1
identify:
  authenticated: [authorization, x-api-key, query:account, cookie:sid]
rules:
  - {{ id: path, match: {{ path: {PATH} }}, per: [], fixed_window: {{ limit: 0, window: 1d }} }}
  - {{ id: method, match: {{ method: {METHOD} }}, per: [], fixed_window: {{ limit: 0, window: 1d }} }}
  - {{ id: host, match: {{ host: {HOST} }}, per: [], fixed_window: {{ limit: 0, window: 1d }} }}
  - {{ id: header, match: {{ header: {{ x-api-key: {MATCHED_KEY} }} }}, per: [], fixed_window: {{ limit: 0, window: 1d }} }}
  - {{ id: key, per: [header:x-api-key], sliding_window: {{ limit: {CAPACITY}, window: 1d }} }}
  - {{ id: account, per: [query:account], sliding_window: {{ limit: {CAPACITY}, window: 1d }} }}
  - {{ id: session, per: [cookie:sid], sliding_window: {{ limit: {CAPACITY}, window: 1d }} }}
  - {{ id: user, per: [claim:sub], sliding_window: {{ limit: {CAPACITY}, window: 1d }} }}
"
        );
        let escaped = |report: &Report| {
            let host = |host: &String| host.split(':').next().unwrap().trim_end_matches('.').eq_ignore_ascii_case(HOST);
            let mut escaped = Vec::new();
            let mut add = |rule: &str, is_denied: bool| escaped.extend(is_denied.then(|| rule.to_owned()));
            add("path", report.paths.iter().any(|path| without_final_slash(path) == PATH));
            add("method", report.method.eq_ignore_ascii_case(METHOD));
            add("host", report.hosts.iter().any(host));
            add("header", report.keys.iter().any(|key| key == MATCHED_KEY));
            add("key", report.keys.iter().any(|key| key == COUNTED_KEY));
            add("account", report.accounts.iter().any(|account| account == ACCOUNT));
            add("session", report.sessions.iter().any(|session| session == SESSION));
            add("user", report.users.iter().any(|user| user == USER));
            // The last address is the one that the gateway saw.
            add("address", report.forwarded_for.rsplit(',').next().unwrap().trim() != "127.0.0.1");
            escaped
        };
        Self { text, escaped }
    }

    /// Every request is denied, except for one path.
    pub(crate) fn one_exempt_path() -> Self {
        let text = format!(
            "version: 1
exempt: [{{ path: {EXEMPT_PATH} }}]
rules:
  - {{ id: all, match: {{}}, per: [], fixed_window: {{ limit: 0, window: 1d }} }}
  - {{ id: key, match: {{}}, per: [header:x-api-key, ip], sliding_window: {{ limit: {CAPACITY}, window: 1d }} }}
"
        );
        let escaped = |report: &Report| {
            let limited = report.paths.iter().filter(|path| without_final_slash(path) != EXEMPT_PATH);
            limited.cloned().collect()
        };
        Self { text, escaped }
    }

    pub(crate) fn rules(&self) -> RuleSet {
        let file = RuleFile::parse("rules.yaml", &self.text);
        file.unwrap_or_else(|report| panic!("{report}")).rules().clone()
    }

    /// What a request escaped, by what the upstream read.
    pub(crate) fn escaped(&self, report: &Report) -> Vec<String> {
        (self.escaped)(report)
    }

    /// Uses up the limits of the denied values that rules count by. All other parts of these requests have values of their own.
    pub(crate) fn use_up(limiter: &Limiter<Arc<MemoryStore>>) {
        let denied = [COUNTED_KEY, ACCOUNT, SESSION, USER];
        for index in 0..denied.len() {
            let value = |part: usize| if part == index { denied[part].to_owned() } else { format!("spent-{index}") };
            let (key, query, cookie) = (value(0), format!("account={}", value(1)), format!("sid={}", value(2)));
            let authorization = format!("Bearer {}", token(&value(3)));
            let request = Request::new("")
                .with_attribute("method", "GET")
                .with_attribute("path", EXEMPT_PATH)
                .with_attribute("header:x-api-key", &key)
                .with_attribute("query", &query)
                .with_attribute("header:cookie", &cookie)
                .with_attribute("header:authorization", &authorization)
                .with_cost(CAPACITY);
            assert!(limiter.check_now(&request).is_allowed(), "{index}");
        }
    }
}

/// Rules ignore a slash at the end of a path.
fn without_final_slash(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

/// A token of a user, whose signature nobody checks here.
pub(crate) fn token(user: &str) -> String {
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(format!("{{\"sub\":\"{user}\"}}")))
}
