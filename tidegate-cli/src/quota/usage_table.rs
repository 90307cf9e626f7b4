//! The tables of `tidegate quota`: usage with a bar, and differences between store and ledger.

use serde_json::Value;
use tidegate_rules::sanitize;
use tidegate_server::command::{Output, Style};

/// Characters of a full bar.
const BAR_WIDTH: usize = 20;

/// The share of a limit from which on a row is marked as near it, in percent.
const NEAR_PERCENT: u64 = 80;

/// The column of what open reservations hold, if any row has some.
const RESERVED_COLUMN: usize = 4;

/// The most characters of a name.
const MAX_NAME_WIDTH: usize = 40;

/// A cell with its emphasis.
type Cell = (String, Option<Style>);

pub(super) fn print_usage(rows: &[Value], output: &mut Output<'_>) {
    let mut headings = vec!["tenant", "rule", "period", "used", "of", "", ""];
    let mut cells: Vec<Vec<Cell>> = rows.iter().map(usage_cells).collect();
    if rows.iter().any(|row| number(&row["reserved"]) > 0) {
        headings.insert(RESERVED_COLUMN, "reserved");
        for (cells, row) in cells.iter_mut().zip(rows) {
            cells.insert(RESERVED_COLUMN, (number(&row["reserved"]).to_string(), None));
        }
    }
    print_table(&headings, &cells, output);
}

pub(super) fn print_differences(rows: &[Value], output: &mut Output<'_>) {
    if rows.is_empty() {
        return;
    }
    let units = |units: &Value| {
        if units.is_null() {
            return "an unreadable value".to_owned();
        }
        let debt = number(&units["debt"]);
        let debt = if debt > 0 { format!(", {debt} of it debt") } else { String::new() };
        format!("{}{debt}", number(&units["used"]))
    };
    let cells = rows.iter().map(|row| {
        let cells = [account(row), rule(row), label(row), units(&row["store"]), units(&row["ledger"])];
        cells.map(|text| (text, None)).to_vec()
    });
    print_table(&["tenant", "rule", "period", "store has", "ledger has"], &cells.collect::<Vec<_>>(), output);
    output.line("");
}

/// What is reserved is not left for others, so a row with it is near its limit or used up as if it were consumed.
fn usage_cells(row: &Value) -> Vec<Cell> {
    let (used, limit, debt) = (number(&row["used"]), number(&row["limit"]), number(&row["debt"]));
    let taken = used.saturating_add(number(&row["reserved"]));
    let percent_of = |units: u64| units.saturating_mul(100).checked_div(limit).unwrap_or(100);
    let (percent, taken_percent) = (percent_of(used), percent_of(taken));
    let reserved = if taken > used { " with what is reserved" } else { "" };
    let (style, remark) = match (debt, taken_percent) {
        (1.., _) => (Style::Bad, format!("{debt} debt")),
        (0, 100..) => (Style::Bad, format!("used up{reserved}")),
        (0, NEAR_PERCENT..) => (Style::Caution, format!("near{reserved}")),
        _ => (Style::Good, String::new()),
    };
    vec![
        (account(row), None),
        (rule(row), None),
        (label(row), None),
        (used.to_string(), None),
        (limit.to_string(), None),
        (format!("{} {percent:>3} %", bar(used, taken, limit)), Some(style)),
        (remark, Some(style)),
    ]
}

/// A bar of the used part, and of what is reserved beyond it. Something used is never an empty bar, and something left never a full one.
fn bar(used: u64, taken: u64, limit: u64) -> String {
    let width = |units: u64| {
        let full = units.saturating_mul(BAR_WIDTH as u64).checked_div(limit).map_or(BAR_WIDTH, |full| full as usize);
        full.min(BAR_WIDTH).max(usize::from(units > 0))
    };
    let (full, taken) = (width(used), width(taken));
    format!("{}{}{}", "█".repeat(full), "▒".repeat(taken - full), "░".repeat(BAR_WIDTH - taken))
}

/// The tenant, or the first digits of the subject's hash.
fn account(row: &Value) -> String {
    match row["tenant"].as_str() {
        Some(name) => shown_name(name),
        None => format!("#{}", row["subject"].as_str().unwrap_or_default().get(..12).unwrap_or_default()),
    }
}

/// Names are texts of clients, which must not control the terminal, look like other names, or push the numbers out of sight.
fn shown_name(name: &str) -> String {
    let (mut shown, mut width, mut cut) = (String::new(), 0, 0);
    for text in name.chars().map(shown_character) {
        width += text.chars().count();
        if width > MAX_NAME_WIDTH {
            shown.truncate(cut);
            return shown + "…";
        }
        shown.push_str(&text);
        // What stays if more comes: an escape is never cut, and the sign for what is left out counts.
        if width < MAX_NAME_WIDTH {
            cut = shown.len();
        }
    }
    shown
}

/// A character, escaped if it cannot be seen or changes how others are seen.
fn shown_character(character: char) -> String {
    let is_format = matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    if is_format { character.escape_default().collect() } else { sanitize(character.encode_utf8(&mut [0; 4])) }
}

fn rule(row: &Value) -> String {
    let (rule, limit) = (row["rule"].as_str().unwrap_or_default(), row["limit_name"].as_str().unwrap_or_default());
    if limit.is_empty() { rule.to_owned() } else { format!("{rule}.{limit}") }
}

fn label(row: &Value) -> String {
    row["period"].as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn print_table(headings: &[&str], rows: &[Vec<Cell>], output: &mut Output<'_>) {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].0.chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line =
        headings.iter().zip(&widths).map(|(text, width)| format!("{text:width$}")).collect::<Vec<_>>().join("  ");
    let line = output.styled(Style::Dim, line.trim_end());
    output.line(line);
    for row in rows {
        let mut line = String::new();
        for (index, ((text, style), width)) in row.iter().zip(&widths).enumerate() {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let padding = " ".repeat(width - text.chars().count());
            let shown = style.map_or_else(|| text.clone(), |style| output.styled(style, text));
            line.push_str(if index > 0 { "  " } else { "" });
            let (first, second) = if is_number { (padding, shown) } else { (shown, padding) };
            line.extend([first, second]);
        }
        output.line(line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(rows: &[Value]) -> String {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        print_usage(rows, &mut Output::new(&mut out, &mut err));
        String::from_utf8(out).unwrap()
    }

    fn row(used: u64, debt: u64) -> Value {
        json!({
            "tenant": "acme", "rule": "exports", "limit_name": "day", "period": "2026-03-29", "used": used, "limit": 1000,
            "debt": debt, "subject": "5b0c63d1ffff00005b0c63d1ffff0000",
        })
    }

    #[test]
    fn a_row_has_a_bar_and_marks_what_is_near_used_up_or_owed() {
        let text = printed(&[row(0, 0), row(1, 0), row(800, 0), row(999, 0), row(1000, 0), row(1250, 250)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["tenant", "rule", "period", "used", "of"]);
        assert_eq!(lines[1], "acme    exports.day  2026-03-29     0  1000  ░░░░░░░░░░░░░░░░░░░░   0 %");
        assert!(lines[2].contains("█░░░░░░░░░░░░░░░░░░░   0 %"), "{text}");
        assert!(lines[3].ends_with("████████████████░░░░  80 %  near"), "{text}");
        assert!(lines[4].ends_with("███████████████████░  99 %  near"), "{text}");
        assert!(lines[5].ends_with("████████████████████ 100 %  used up"), "{text}");
        assert!(lines[6].ends_with("████████████████████ 125 %  250 debt"), "{text}");
    }

    /// "123 of 1050, 11 %" stood beside 901 reserved units.
    #[test]
    fn what_is_reserved_has_a_column_and_counts_towards_the_limit() {
        let mut reserved = row(123, 0);
        (reserved["limit"], reserved["reserved"]) = (1050.into(), 901.into());
        let mut full = row(0, 0);
        full["reserved"] = 1000.into();
        let text = printed(&[reserved, full, row(7, 0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>(),
            ["tenant", "rule", "period", "used", "reserved", "of"]
        );
        assert_eq!(
            lines[1],
            "acme    exports.day  2026-03-29   123       901  1050  ██▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░  11 %  near with what is reserved"
        );
        assert!(
            lines[2].ends_with("  1000  1000  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒   0 %  used up with what is reserved"),
            "{text}"
        );
        assert!(lines[3].ends_with("  7         0  1000  █░░░░░░░░░░░░░░░░░░░   0 %"), "{text}");
        assert!(!printed(&[row(7, 0)]).contains("reserved"));
    }

    #[test]
    fn a_tenant_without_a_name_is_shown_by_its_hash_and_no_name_controls_the_terminal() {
        let mut hostile = row(1, 0);
        hostile["tenant"] = "a\u{1b}[31m".into();
        let mut nameless = row(1, 0);
        nameless["tenant"] = Value::Null;
        let text = printed(&[hostile, nameless]);
        assert!(text.contains("#5b0c63d1ffff") && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn a_name_is_shown_without_invisible_characters_and_at_most_40_wide() {
        assert_eq!(shown_name("Łódź 東京"), "Łódź 東京");
        assert_eq!(shown_name("a\u{202e}b\u{200f}\n"), "a\\u{202e}b\\u{200f}\\n");
        assert_eq!(shown_name(&"x".repeat(40)), "x".repeat(40));
        assert_eq!(shown_name(&"x".repeat(41)), format!("{}…", "x".repeat(39)));
        assert_eq!(shown_name(&format!("{}\u{202e}", "x".repeat(36))), format!("{}…", "x".repeat(36)));
        assert_eq!(shown_name(&"\u{202e}".repeat(9)), format!("{}…", "\\u{202e}".repeat(4)));
    }
}
