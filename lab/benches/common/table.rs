//! `Table`: the results of a benchmark, as text or JSON.

use serde_json::{Map, Value, json};

use super::Options;

/// Rows of named columns.
pub(crate) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// A text, or a number with its decimals.
pub(crate) enum Cell {
    Text(String),
    Number(f64, usize),
}

impl Table {
    pub(crate) fn new<'c>(title: impl Into<String>, columns: impl IntoIterator<Item = &'c str>) -> Self {
        let columns = columns.into_iter().map(str::to_owned).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns.len(), "a cell for every column of {:?}", self.title);
        self.rows.push(cells);
    }

    /// Prints aligned text: words left, numbers right.
    fn print(&self) {
        let texts: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        let width = |column: usize| {
            let cells = texts.iter().map(|row| row[column].chars().count());
            cells.chain([self.columns[column].chars().count()]).max().unwrap_or(0)
        };
        let is_number = |column: usize| self.rows.iter().any(|row| matches!(row[column], Cell::Number(..)));
        let line = |cells: &[String]| {
            let padded = cells.iter().enumerate().map(|(column, cell)| {
                let width = width(column);
                if is_number(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            println!("{}", padded.collect::<Vec<_>>().join("  ").trim_end());
        };
        println!("\n{}\n", self.title);
        line(&self.columns);
        for row in &texts {
            line(row);
        }
    }

    fn json(&self) -> Value {
        let row = |cells: &Vec<Cell>| -> Map<String, Value> {
            self.columns.iter().cloned().zip(cells.iter().map(Cell::json)).collect()
        };
        json!({ "title": self.title, "rows": self.rows.iter().map(row).collect::<Vec<_>>() })
    }
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number, _) if number.is_nan() => String::new(),
            Self::Number(number, decimals) => format!("{number:.decimals$}"),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Number(..) => json!(self.text().parse::<f64>().ok()),
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Prints the tables as text, or as JSON with `--json`.
pub(crate) fn report(options: &Options, tables: &[Table]) {
    if options.json {
        println!(
            "{:#}",
            json!({ "quick": options.quick, "tables": tables.iter().map(Table::json).collect::<Vec<_>>() })
        );
    } else {
        tables.iter().for_each(Table::print);
    }
}
