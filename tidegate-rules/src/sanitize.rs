//! `sanitize`: makes a text of unknown origin safe to print on a terminal.

/// Escapes control characters and characters that change the direction of writing.
///
/// ```
/// assert_eq!(tidegate_rules::sanitize("a\u{1b}[2Jb\u{202e}c"), "a\\u{1b}[2Jb\\u{202e}c");
/// ```
pub fn sanitize(text: &str) -> String {
    // Changing the direction makes a text look like another one.
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
