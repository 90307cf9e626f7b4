//! `Table`: the results of a measurement, as text or JSON.

use serde_json::{Map, Value, json};

/// Rows of named columns.
#[derive(Debug)]
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Debug)]
pub enum Cell {
    /// A text.
    Text(String),
    /// A number with its decimals.
    Number(f64, usize),
}

impl Table {
    /// A table without rows.
    pub fn new<'c>(title: impl Into<String>, columns: impl IntoIterator<Item = &'c str>) -> Self {
        let columns = columns.into_iter().map(str::to_owned).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns.len(), "a cell for every column of {:?}", self.title);
        self.rows.push(cells);
    }

    /// Adds a row with a name, and numbers with their decimals.
    pub fn figures(&mut self, name: &str, numbers: impl IntoIterator<Item = (f64, usize)>) {
        let numbers = numbers.into_iter().map(|(number, decimals)| Cell::Number(number, decimals));
        self.row([Cell::from(name)].into_iter().chain(numbers));
    }

    /// The title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The head and the rows, aligned: words left, numbers right.
    pub fn lines(&self) -> Vec<String> {
        let texts: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        let width = |column: usize| {
            let cells = texts.iter().map(|row| row[column].chars().count());
            cells.chain([self.columns[column].chars().count()]).max().unwrap_or(0)
        };
        let is_number = |column: usize| self.rows.iter().any(|row| matches!(row[column], Cell::Number(..)));
        let line = |cells: &Vec<String>| {
            let padded = cells.iter().enumerate().map(|(column, cell)| {
                let width = width(column);
                if is_number(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        [&self.columns].into_iter().chain(&texts).map(line).collect()
    }

    /// A JSON object with the title and the rows.
    pub fn json(&self) -> Value {
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
