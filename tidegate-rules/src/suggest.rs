//! `suggest`: the likely intended name for a misspelt one.

/// A sentence with the most similar of the `known` names, or with all of them if none is similar.
///
/// ```
/// use tidegate_rules::suggest;
///
/// assert_eq!(suggest("drian", ["http", "drain"].into_iter()), "did you mean `drain`?");
/// assert_eq!(suggest("x", ["http", "drain"].into_iter()), "valid are `http`, `drain`");
/// ```
pub fn suggest<'k>(name: &str, candidates: impl Iterator<Item = &'k str> + Clone) -> String {
    if let Some(candidate) = nearest(name, candidates.clone()) {
        return format!("did you mean `{candidate}`?");
    }
    let names: Vec<String> = candidates.map(|candidate| format!("`{candidate}`")).collect();
    if names.is_empty() { "there are none".into() } else { format!("valid are {}", names.join(", ")) }
}

/// The most similar name by edit distance, if it is similar enough.
pub fn nearest<'k>(name: &str, candidates: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let name: String = name.chars().take(64).collect();
    let name = name.to_lowercase();
    // `penalties` is nearer to `penalty` than its letters are.
    let singular = name.strip_suffix("ies").map(|stem| format!("{stem}y"));
    let distance = |candidate: &str| {
        let names = std::iter::once(&name).chain(&singular);
        names.map(|name| strsim::damerau_levenshtein(name, &candidate.to_lowercase())).min().unwrap_or(usize::MAX)
    };
    let best = candidates.map(|candidate| (distance(candidate), candidate)).min_by_key(|(distance, _)| *distance)?;
    (best.0 <= 1 + best.1.len() / 4).then_some(best.1)
}
