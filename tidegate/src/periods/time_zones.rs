//! Time zones by name, from the database that is compiled in, and suggestions for a name that is not among them.

use std::fmt::Write;
use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::limit::LimitError;

const FIELD: &str = "quota.timezone";

/// The longest name in the database has 30 bytes.
const MAX_NAME_BYTES: usize = 64;

/// More letters than this apart, two names are not similar.
const MAX_EDITS: usize = 3;

const MAX_SUGGESTIONS: usize = 3;

static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The time zone with this name, in any case, and its name in the usual spelling.
pub(super) fn find(name: &str) -> Result<(TimeZone, String), LimitError> {
    let found = DATABASE.get(name).ok().filter(|zone| !zone.is_unknown());
    if let Some(zone) = found
        && let Some(usual) = zone.iana_name().map(str::to_owned)
    {
        return Ok((zone, usual));
    }
    let mut shown: String = name.chars().take(MAX_NAME_BYTES).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    let mut problem = format!("`{shown}` is not a time zone of the IANA database");
    let similar = if name.len() <= MAX_NAME_BYTES { similar_names(name) } else { Vec::new() };
    if is_offset(name) {
        problem.push_str("; name a place, such as `Europe/Berlin`: an offset does not know when its clocks change");
    } else if similar.is_empty() {
        problem.push_str(", such as `Europe/Berlin` or `UTC`");
    } else {
        let _ = write!(problem, "; did you mean `{}`?", similar.join("` or `"));
    }
    Err(LimitError::new(FIELD, problem))
}

/// The names of all time zones.
#[cfg(test)]
pub(super) fn names() -> Vec<String> {
    DATABASE.available().map(|name| name.as_str().to_owned()).collect()
}

/// Whether it has an offset from UTC, such as `UTC+2` and `-05:00`.
fn is_offset(name: &str) -> bool {
    name.as_bytes().windows(2).any(|pair| matches!(pair, [b'+' | b'-', b'0'..=b'9']))
}

/// The names that are the most similar: of the same city, or a few letters apart.
fn similar_names(name: &str) -> Vec<String> {
    let wanted = name.to_ascii_lowercase().replace([' ', '-'], "_");
    let mut similar: Vec<(usize, String)> = DATABASE
        .available()
        .filter_map(|known| {
            let lower = known.as_str().to_ascii_lowercase();
            let is_city = lower.rsplit('/').next() == Some(wanted.as_str());
            let edits = if is_city { 0 } else { edit_distance(&wanted, &lower) };
            (edits <= MAX_EDITS.min(wanted.len() / 2)).then(|| (edits, known.as_str().to_owned()))
        })
        .collect();
    similar.sort();
    let nearest = similar.first().map_or(0, |(edits, _)| *edits);
    let nearest = similar.into_iter().filter(|(edits, _)| *edits == nearest);
    nearest.map(|(_, name)| name).take(MAX_SUGGESTIONS).collect()
}

/// The number of letters to insert, remove or replace.
fn edit_distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other_letter) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(letter != other_letter);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_time_zone_is_answered_with_similar_ones() {
        let problem = |name: &str| find(name).unwrap_err().to_string();
        assert!(problem("Berlin").ends_with("did you mean `Europe/Berlin`?"), "{}", problem("Berlin"));
        for offset in ["UTC+2", "GMT-3", "+02:00", "-0500"] {
            assert!(problem(offset).contains("; name a place, such as `Europe/Berlin`"), "{}", problem(offset));
        }
        assert!(!problem("America/Port-of-Spian").contains("offset"));
        assert!(problem("Europe/Pariss").ends_with("did you mean `Europe/Paris`?"));
        assert!(problem("america/new-yorc").ends_with("did you mean `America/New_York`?"));
        assert!(problem("Mars/Phobos").contains(" `Mars/Phobos` is not a time zone"), "a short name is shown as it is");
        assert!(problem(&"x".repeat(10_000)).contains("x…` is not a time zone"), "a long one is cut");
        for name in ["Mars/Phobos", "", "/", "Etc/Unknown", "CET-1CEST,M3.5.0,M10.5.0/3", &"x".repeat(10_000)] {
            let problem = problem(name);
            assert!(problem.starts_with("quota.timezone: ") && problem.len() < 300, "{problem}");
        }
    }

    #[test]
    fn a_time_zone_is_found_in_any_case() {
        assert_eq!(find("europe/BERLIN").unwrap().1, "Europe/Berlin");
        assert_eq!(find("utc").unwrap().1, "UTC");
    }
}
