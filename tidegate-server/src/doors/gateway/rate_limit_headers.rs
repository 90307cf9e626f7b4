//! Merges the upstream's rate-limit headers with the gateway's; the stricter wins. Pure.
//!
//! The upstream's headers move to an extension of the response before the limit layer adds its own, and are merged afterwards.
//! `Retry-After` needs no merging: the gateway adds none to a response of the upstream.

use http::Response;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate::http::HeaderField;

/// Headers that are lists: the items of both are sent.
const LIST_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("ratelimit-policy"), HeaderName::from_static("ratelimit")];

/// Headers that belong together: limit, remaining, reset. One group is sent whole.
const HEADER_GROUPS: [[HeaderName; 3]; 2] = [
    [
        HeaderName::from_static("x-ratelimit-limit"),
        HeaderName::from_static("x-ratelimit-remaining"),
        HeaderName::from_static("x-ratelimit-reset"),
    ],
    [
        HeaderName::from_static("ratelimit-limit"),
        HeaderName::from_static("ratelimit-remaining"),
        HeaderName::from_static("ratelimit-reset"),
    ],
];

/// Response extension: the upstream's rate-limit headers.
#[derive(Clone)]
struct UpstreamRateLimitHeaders(HeaderMap);

/// Moves the upstream's rate-limit headers to an extension.
pub(super) fn stash_upstream_headers<B>(response: &mut Response<B>) {
    let mut stashed = HeaderMap::new();
    // Only the gateway knows whether the request is within the grace of its quotas.
    response.headers_mut().remove(HeaderField::Grace.name());
    for name in LIST_HEADERS.iter().chain(HEADER_GROUPS.iter().flatten()) {
        move_lines(response.headers_mut(), name, &mut stashed);
    }
    if !stashed.is_empty() {
        response.extensions_mut().insert(UpstreamRateLimitHeaders(stashed));
    }
}

/// Merges them with the gateway's headers.
pub(super) fn merge_upstream_headers<B>(response: &mut Response<B>) {
    let Some(UpstreamRateLimitHeaders(mut theirs)) = response.extensions_mut().remove() else { return };
    let headers = response.headers_mut();
    merge_lists(headers, &mut theirs);
    for group in &HEADER_GROUPS {
        merge_group(headers, &mut theirs, group);
    }
}

/// The upstream's items first, then the gateway's. A list in the syntax before revision 08 of the draft cannot hold items of
/// the new one, so it stays unchanged and the gateway's items are dropped.
fn merge_lists(headers: &mut HeaderMap, theirs: &mut HeaderMap) {
    let is_old_syntax = |line: &HeaderValue| !line.as_bytes().trim_ascii_start().starts_with(b"\"");
    let theirs_only = LIST_HEADERS.iter().any(|name| theirs.get_all(name).into_iter().any(is_old_syntax));
    for name in &LIST_HEADERS {
        let mut ours = HeaderMap::new();
        move_lines(headers, name, &mut ours);
        move_lines(theirs, name, headers);
        if !theirs_only {
            move_lines(&mut ours, name, headers);
        }
    }
}

/// Keeps the group with less remaining, whole: a mix of both would be inconsistent.
fn merge_group(headers: &mut HeaderMap, theirs: &mut HeaderMap, group: &[HeaderName; 3]) {
    if !group.iter().any(|name| theirs.contains_key(name)) {
        return;
    }
    let [_, remaining, _] = group;
    let theirs_is_stricter = match (parse_number(headers, remaining), parse_number(theirs, remaining)) {
        (Some(ours), Some(theirs)) => theirs <= ours,
        // An unreadable number loses.
        (Some(_), None) => false,
        (None, _) => true,
    };
    if theirs_is_stricter {
        for name in group {
            headers.remove(name);
            move_lines(theirs, name, headers);
        }
    }
}

fn parse_number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// Moves all lines of a header.
fn move_lines(from: &mut HeaderMap, name: &HeaderName, to: &mut HeaderMap) {
    if let http::header::Entry::Occupied(entry) = from.entry(name) {
        let (name, lines) = entry.remove_entry_mult();
        for line in lines {
            to.append(name.clone(), line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type HeaderPairs<'f> = &'f [(&'static str, &'static str)];

    fn merged(theirs: HeaderPairs<'_>, ours: HeaderPairs<'_>) -> Vec<String> {
        let mut response = Response::new(());
        let add = |response: &mut Response<()>, fields: HeaderPairs<'_>| {
            for (name, value) in fields {
                response.headers_mut().append(*name, HeaderValue::from_static(value));
            }
        };
        add(&mut response, theirs);
        stash_upstream_headers(&mut response);
        add(&mut response, ours);
        merge_upstream_headers(&mut response);
        let mut lines: Vec<_> =
            response.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort_by(|one, other| one.split(':').next().cmp(&other.split(':').next()));
        lines
    }

    #[test]
    fn list_headers_hold_the_items_of_upstream_and_gateway() {
        let theirs = [("ratelimit-policy", r#""day";q=9"#), ("ratelimit", r#""day";r=1"#), ("x-other", "1")];
        let ours = [("ratelimit-policy", r#""api";q=5"#), ("ratelimit", r#""api";r=4"#)];
        assert_eq!(
            merged(&theirs, &ours),
            [
                r#"ratelimit: "day";r=1"#,
                r#"ratelimit: "api";r=4"#,
                r#"ratelimit-policy: "day";q=9"#,
                r#"ratelimit-policy: "api";q=5"#,
                "x-other: 1",
            ]
        );
    }

    #[test]
    fn an_upstream_list_in_an_older_syntax_stays_unchanged() {
        let theirs = [("ratelimit", "limit=9, remaining=1, reset=5"), ("ratelimit-policy", "9;w=60")];
        let ours = [("ratelimit-policy", r#""api";q=5"#), ("ratelimit", r#""api";r=4"#)];
        assert_eq!(merged(&theirs, &ours), ["ratelimit: limit=9, remaining=1, reset=5", "ratelimit-policy: 9;w=60"]);
    }

    #[test]
    fn the_header_group_with_less_remaining_is_sent_whole() {
        let ours = [("x-ratelimit-limit", "20"), ("x-ratelimit-remaining", "7"), ("x-ratelimit-reset", "1790000000")];
        let all_of_ours = ["x-ratelimit-limit: 20", "x-ratelimit-remaining: 7", "x-ratelimit-reset: 1790000000"];
        let less = [("x-ratelimit-limit", "100"), ("x-ratelimit-remaining", "6")];
        assert_eq!(merged(&less, &ours), ["x-ratelimit-limit: 100", "x-ratelimit-remaining: 6"]);
        let more = [("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "8")];
        assert_eq!(merged(&more, &ours), all_of_ours);
        assert_eq!(merged(&[("x-ratelimit-remaining", "many")], &ours), all_of_ours);
        assert_eq!(merged(&[("x-ratelimit-reset", "5")], &ours), all_of_ours);
        assert_eq!(merged(&[("ratelimit-remaining", "1")], &ours).len(), 4);
    }

    #[test]
    fn an_upstream_cannot_claim_that_a_request_is_within_the_grace_of_a_quota() {
        assert_eq!(merged(&[("x-tidegate-grace", "true"), ("x-other", "1")], &[]), ["x-other: 1"]);
        assert_eq!(merged(&[("x-tidegate-grace", "no")], &[("x-tidegate-grace", "true")]), ["x-tidegate-grace: true"]);
    }

    #[test]
    fn headers_of_one_side_only_stay_unchanged() {
        let fields = [("x-ratelimit-remaining", "many"), ("ratelimit", "odd"), ("retry-after", "9")];
        assert_eq!(merged(&fields, &[]), ["ratelimit: odd", "retry-after: 9", "x-ratelimit-remaining: many"]);
        assert_eq!(merged(&[], &fields), merged(&fields, &[]));
    }
}
