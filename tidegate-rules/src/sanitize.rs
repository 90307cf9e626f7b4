//! `sanitize`: how a text of unknown origin is shown to people.

/// The text without anything that could upset a terminal, or show one text and be another.
///
/// ```
/// assert_eq!(tidegate_rules::sanitize("a\u{1b}[2Jb\u{202e}c"), "a\\u{1b}[2Jb\\u{202e}c");
/// ```
pub fn sanitize(text: &str) -> String {
    // What turns the direction of writing shows one text and is another.
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || turns(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}
