//! Two who speak of limits in one answer, the upstream and the gateway: both are heard, and neither loosens what the other
//! says. Pure.
//!
//! The fields of the upstream are set aside before the limits add theirs, and put back afterwards. `Retry-After` needs no
//! merging: an answer that passed has none of ours.

use http::Response;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Lists, which grow: a line more is an item more.
const LISTS: [HeaderName; 2] = [HeaderName::from_static("ratelimit-policy"), HeaderName::from_static("ratelimit")];

/// Sets of numbers, of which there can be one. Limit, remaining, reset.
const SETS: [[HeaderName; 3]; 2] = [
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

/// What the upstream says about limits: an extension of the answer on its way through ours.
#[derive(Clone)]
struct Aside(HeaderMap);

/// Sets aside what the upstream says about limits.
pub(super) fn set_aside<B>(response: &mut Response<B>) {
    let mut aside = HeaderMap::new();
    for name in LISTS.iter().chain(SETS.iter().flatten()) {
        take(response.headers_mut(), name, &mut aside);
    }
    if !aside.is_empty() {
        response.extensions_mut().insert(Aside(aside));
    }
}

/// Puts it back, beside what ours say by now.
pub(super) fn put_back<B>(response: &mut Response<B>) {
    let Some(Aside(mut theirs)) = response.extensions_mut().remove::<Aside>() else { return };
    let headers = response.headers_mut();
    put_back_lists(headers, &mut theirs);
    for set in &SETS {
        put_back_set(headers, &mut theirs, set);
    }
}

/// Theirs first, then ours. A list in a form before revision 08 of the draft cannot have ours in it: then it stays as it was,
/// since nobody on the way may take anything away.
fn put_back_lists(headers: &mut HeaderMap, theirs: &mut HeaderMap) {
    let is_old = |line: &HeaderValue| !line.as_bytes().trim_ascii_start().starts_with(b"\"");
    let alone = LISTS.iter().any(|name| theirs.get_all(name).into_iter().any(is_old));
    for name in &LISTS {
        let mut ours = HeaderMap::new();
        take(headers, name, &mut ours);
        take(theirs, name, headers);
        if !alone {
            take(&mut ours, name, headers);
        }
    }
}

/// The set with less remaining, whole: half of one and half of another would make no sense.
fn put_back_set(headers: &mut HeaderMap, theirs: &mut HeaderMap, set: &[HeaderName; 3]) {
    if !set.iter().any(|name| theirs.contains_key(name)) {
        return;
    }
    let [_, remaining, _] = set;
    let stricter = match (number(headers, remaining), number(theirs, remaining)) {
        (Some(ours), Some(theirs)) => theirs <= ours,
        // A number that nobody can read promises nothing.
        (Some(_), None) => false,
        (None, _) => true,
    };
    if stricter {
        for name in set {
            headers.remove(name);
            take(theirs, name, headers);
        }
    }
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// Moves all lines of a field.
fn take(from: &mut HeaderMap, name: &HeaderName, to: &mut HeaderMap) {
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

    type Fields<'f> = &'f [(&'static str, &'static str)];

    fn merged(theirs: Fields<'_>, ours: Fields<'_>) -> Vec<String> {
        let mut response = Response::new(());
        let add = |response: &mut Response<()>, fields: Fields<'_>| {
            for (name, value) in fields {
                response.headers_mut().append(*name, HeaderValue::from_static(value));
            }
        };
        add(&mut response, theirs);
        set_aside(&mut response);
        add(&mut response, ours);
        put_back(&mut response);
        let mut lines: Vec<_> =
            response.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort_by(|one, other| one.split(':').next().cmp(&other.split(':').next()));
        lines
    }

    #[test]
    fn lists_have_the_items_of_both() {
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
    fn a_list_in_an_older_form_stays_as_it_was() {
        let theirs = [("ratelimit", "limit=9, remaining=1, reset=5"), ("ratelimit-policy", "9;w=60")];
        let ours = [("ratelimit-policy", r#""api";q=5"#), ("ratelimit", r#""api";r=4"#)];
        assert_eq!(merged(&theirs, &ours), ["ratelimit: limit=9, remaining=1, reset=5", "ratelimit-policy: 9;w=60"]);
    }

    #[test]
    fn of_two_sets_the_one_with_less_remaining_stays_whole() {
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
    fn what_only_one_of_them_says_is_left_alone() {
        let fields = [("x-ratelimit-remaining", "many"), ("ratelimit", "odd"), ("retry-after", "9")];
        assert_eq!(merged(&fields, &[]), ["ratelimit: odd", "retry-after: 9", "x-ratelimit-remaining: many"]);
        assert_eq!(merged(&[], &fields), merged(&fields, &[]));
    }
}
