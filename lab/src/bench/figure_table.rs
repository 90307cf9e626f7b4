//! `FigureTable`: rows of figures and the ratios between them, as text or JSON.

use serde_json::{Map, Value, json};
use tidegate_server::command::{Output, Style};

use crate::table::Table;

pub(super) struct FigureTable {
    pub(super) title: String,
    /// Titles, and the decimals of the numbers.
    pub(super) columns: Vec<(&'static str, usize)>,
    /// A name, and a number for each column.
    pub(super) rows: Vec<(&'static str, Vec<f64>)>,
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
        output.line(&self.title);
        for (index, line) in table.lines().into_iter().enumerate() {
            output.line(if index == 0 { output.styled(Style::Bold, line) } else { line });
        }
        for (name, ratio) in &self.ratios {
            output.line(format_args!("{ratio:.2}  {name}"));
        }
    }

    pub(super) fn json(&self) -> Value {
        let row = |(name, numbers): &(&str, Vec<f64>)| {
            let titles = self.columns.iter().map(|(title, _)| (*title).to_owned());
            json!({ "name": name, "figures": titles.zip(numbers.iter().map(|number| json!(number))).collect::<Map<_, _>>() })
        };
        let ratio = |(name, ratio): &(String, f64)| json!({ "of": name, "ratio": ratio });
        json!({
            "title": self.title,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "ratios": self.ratios.iter().map(ratio).collect::<Vec<_>>(),
        })
    }
}
