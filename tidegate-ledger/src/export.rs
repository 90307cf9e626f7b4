//! `ExportFormat`: entries as CSV or as JSON lines.

use std::fmt::Write;

use serde_json::json;
use tidegate::limits::Period;

use crate::{LedgerEntry, period_text, time_text};

/// How entries are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// Comma-separated values as in RFC 4180, with a header. Texts that a spreadsheet would take for a formula begin with an apostrophe.
    Csv,
    /// One JSON object on each line.
    JsonLines,
}

const HEADER: &str = "id,late,time,kind,rule,limit,subject,tenant,period_length,period,period_begin,period_end,period_index,amount,\
                      held,owner,expires_at,forgiven,hard_limit,author,reason\r\n";

impl ExportFormat {
    /// What comes before the first entry.
    pub const fn header(self) -> &'static str {
        match self {
            Self::Csv => HEADER,
            Self::JsonLines => "",
        }
    }

    /// Appends an entry to `text`.
    pub fn write(self, entry: &LedgerEntry, text: &mut String) {
        match self {
            Self::Csv => write_csv(entry, text),
            Self::JsonLines => write_json(entry, text),
        }
    }
}

fn write_csv(entry: &LedgerEntry, text: &mut String) {
    let [begin, end] = shown_bounds(entry);
    let fields = [
        entry.id.to_string(),
        entry.is_late.to_string(),
        time_text(entry.at),
        entry.kind.as_str().to_owned(),
        guarded(&entry.rule),
        guarded(&entry.limit),
        entry.subject.to_string(),
        guarded(entry.name.as_deref().unwrap_or_default()),
        entry.period.map_or("", Period::as_str).to_owned(),
        shown_period(entry),
        begin.unwrap_or_default(),
        end.unwrap_or_default(),
        entry.index.to_string(),
        entry.amount.to_string(),
        entry.held.to_string(),
        entry.owner.to_string(),
        entry.expires_at.map(time_text).unwrap_or_default(),
        entry.forgiven.to_string(),
        entry.hard_limit.to_string(),
        guarded(entry.author.as_deref().unwrap_or_default()),
        guarded(entry.reason.as_deref().unwrap_or_default()),
    ];
    let quoted: Vec<String> = fields.into_iter().map(quoted).collect();
    let _ = write!(text, "{}\r\n", quoted.join(","));
}

/// The period as a date, or its index if this version does not know its length.
fn shown_period(entry: &LedgerEntry) -> String {
    entry.period.map_or_else(|| entry.index.to_string(), |period| period_text(period, entry.index))
}

/// When the period begins and ends.
fn shown_bounds(entry: &LedgerEntry) -> [Option<String>; 2] {
    [entry.bounds.map(|(begin, _)| time_text(begin)), entry.bounds.map(|(_, end)| time_text(end))]
}

/// A text that a spreadsheet does not take for a formula.
fn guarded(text: &str) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() }
}

fn quoted(field: String) -> String {
    if field.contains([',', '"', '\r', '\n']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
}

fn write_json(entry: &LedgerEntry, text: &mut String) {
    let [begin, end] = shown_bounds(entry);
    let line = json!({
        "id": entry.id.to_string(),
        "late": entry.is_late,
        "time": time_text(entry.at),
        "kind": entry.kind.as_str(),
        "rule": entry.rule,
        "limit": entry.limit,
        "subject": entry.subject.to_string(),
        "tenant": entry.name,
        "period_length": entry.period.map(Period::as_str),
        "period": shown_period(entry),
        "period_begin": begin,
        "period_end": end,
        "period_index": entry.index,
        "amount": entry.amount,
        "held": entry.held,
        "owner": entry.owner,
        "expires_at": entry.expires_at.map(time_text),
        "forgiven": entry.forgiven,
        "hard_limit": entry.hard_limit,
        "author": entry.author,
        "reason": entry.reason,
    });
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Timestamp;
    use tidegate::limits::Periods;
    use tidegate::spi::{EntryId, EntryKind, Subject};

    use crate::period_bounds;

    fn entry(reason: &str) -> LedgerEntry {
        LedgerEntry {
            id: EntryId { generation: 7, partition: 3, millis: 9, sequence: 1 },
            is_late: false,
            at: Timestamp::from_micros(1_735_779_600_000_001),
            kind: EntryKind::Correct,
            rule: "exports".into(),
            limit: String::new(),
            subject: Subject::from_hash(5),
            name: Some("-acme, \"Inc\"".into()),
            period: Some(Period::Month),
            index: 24_300,
            bounds: period_bounds(Periods::new(Period::Month, "Europe/Berlin", None).unwrap(), 24_300),
            amount: -4,
            held: 0,
            owner: 0,
            expires_at: None,
            forgiven: 0,
            hard_limit: 100,
            author: Some("@ann".into()),
            reason: Some(reason.into()),
        }
    }

    #[test]
    fn a_spreadsheet_takes_no_text_for_a_formula_and_every_number_for_a_number() {
        let mut text = ExportFormat::Csv.header().to_owned();
        ExportFormat::Csv.write(&entry("=HYPERLINK(\"x\")\nsecond line"), &mut text);
        let (header, row) = text.split_once("\r\n").unwrap();
        assert_eq!(header.split(',').count(), 21);
        assert_eq!(
            row,
            "7.3.9-1,false,2025-01-02T01:00:00.000001Z,correct,exports,,00000000000000000000000000000005,\"'-acme, \"\"Inc\"\"\",\
             month,2025-01,2024-12-31T23:00:00.000000Z,2025-01-31T23:00:00.000000Z,24300,-4,0,0,,0,100,'@ann,\"'=HYPERLINK(\"\"x\"\")\nsecond line\"\r\n"
        );
    }

    #[test]
    fn a_json_line_is_one_line_with_every_field() {
        let mut text = String::new();
        ExportFormat::JsonLines.write(&entry("a\nb"), &mut text);
        assert_eq!(text.lines().count(), 1);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&line["reason"], &line["amount"], &line["tenant"]),
            (&json!("a\nb"), &json!(-4), &json!("-acme, \"Inc\""))
        );
        assert_eq!(
            (&line["period_length"], &line["period"], &line["period_index"]),
            (&json!("month"), &json!("2025-01"), &json!(24_300))
        );
        assert_eq!(line["time"], json!("2025-01-02T01:00:00.000001Z"));
        let bounds = (&line["period_begin"], &line["period_end"], &line["expires_at"]);
        let [begin, end] = ["2024-12-31T23:00:00.000000Z", "2025-01-31T23:00:00.000000Z"];
        assert_eq!(bounds, (&json!(begin), &json!(end), &json!(null)));
        assert_eq!(line.as_object().unwrap().len(), ExportFormat::Csv.header().split(',').count());
    }
}
