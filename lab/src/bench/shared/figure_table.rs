//! `FigureTable`: rows of figures and the ratios between them, as text or JSON.

use serde_json::{Map, Value, json};
use tidegate_server::command::{Output, Style};

/// A column: its title, and the decimals of its numbers.
pub(super) type FigureColumn = (&'static str, usize);

/// Rows of figures, and ratios.
pub(super) struct FigureTable {
    pub(super) title: String,
    pub(super) columns: Vec<FigureColumn>,
    /// A name, and a number for each column.
    pub(super) rows: Vec<(String, Vec<f64>)>,
    /// What is divided by what.
    pub(super) ratios: Vec<(String, f64)>,
}

impl FigureTable {
    pub(super) fn print(&self, output: &mut Output<'_>) {
        output.line(&self.title);
        let width = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let cells = |numbers: &[f64]| {
            let cell = |(number, (title, decimals)): (&f64, &FigureColumn)| {
                format!("{number:>width$.decimals$}", width = title.chars().count())
            };
            numbers.iter().zip(&self.columns).map(cell).collect::<Vec<_>>().join("  ")
        };
        let head: Vec<&str> = self.columns.iter().map(|(title, _)| *title).collect();
        output.line(output.styled(Style::Bold, format!("{:width$}  {}", "", head.join("  "))));
        for (name, numbers) in &self.rows {
            output.line(format_args!("{name:width$}  {}", cells(numbers)));
        }
        for (name, ratio) in &self.ratios {
            output.line(format_args!("{ratio:.2}  {name}"));
        }
    }

    pub(super) fn json(&self) -> Value {
        let row = |(name, numbers): &(String, Vec<f64>)| {
            let numbers =
                self.columns.iter().zip(numbers).map(|((title, _), number)| ((*title).to_owned(), json!(number)));
            json!({ "name": name, "figures": numbers.collect::<Map<_, _>>() })
        };
        let ratio = |(name, ratio): &(String, f64)| json!({ "of": name, "ratio": ratio });
        json!({
            "title": self.title,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "ratios": self.ratios.iter().map(ratio).collect::<Vec<_>>(),
        })
    }
}
