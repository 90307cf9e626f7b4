//! `suggest`: what somebody who wrote a wrong name probably meant.

/// The likeliest of the `known` names, or all of them if none is likely, as a sentence.
///
/// ```
/// use tidegate_rules::suggest;
///
/// assert_eq!(suggest("drian", ["http", "drain"].into_iter()), "did you mean `drain`?");
/// assert_eq!(suggest("x", ["http", "drain"].into_iter()), "possible are `http`, `drain`");
/// ```
pub fn suggest<'k>(written: &str, known: impl Iterator<Item = &'k str> + Clone) -> String {
    if let Some(name) = nearest(written, known.clone()) {
        return format!("did you mean `{name}`?");
    }
    let names: Vec<String> = known.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "there are none".into() } else { format!("possible are {}", names.join(", ")) }
}

/// The name that is a slip of the pen away, if there is one.
pub(crate) fn nearest<'k>(written: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let written: String = written.chars().take(64).collect();
    let distance = |name: &str| strsim::damerau_levenshtein(&written.to_lowercase(), &name.to_lowercase());
    let best = known.map(|name| (distance(name), name)).min_by_key(|(distance, _)| *distance)?;
    (best.0 <= 1 + best.1.len() / 4).then_some(best.1)
}
