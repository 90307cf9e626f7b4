//! `FigureTable`: rows of figures and the ratios between them, as text or JSON.

use serde_json::{Map, Value, json};
use tidegate_server::command::Output;

use super::super::measurement::print_lines;
use crate::table::Table;

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
        let mut table = Table::new(&self.title, [""].into_iter().chain(self.columns.iter().map(|(title, _)| *title)));
        for (name, numbers) in &self.rows {
            let decimals = self.columns.iter().map(|(_, decimals)| *decimals);
            table.figures(name, numbers.iter().copied().zip(decimals));
        }
        output.line(table.title());
        print_lines(&table, output);
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
