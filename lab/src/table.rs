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
    /// A number as text.
    Formatted(String),
    /// A number with its decimals.
    Number(f64, usize),
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
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

    /// Adds a row with a name, and numbers as text.
    pub(crate) fn formatted(&mut self, name: &str, numbers: impl IntoIterator<Item = String>) {
        self.row([Cell::from(name)].into_iter().chain(numbers.into_iter().map(Cell::Formatted)));
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
        let is_number = |column: usize| self.rows.iter().any(|row| !matches!(row[column], Cell::Text(_)));
        let line = |cells: &Vec<String>| {
            let padded = cells.iter().enumerate().map(|(column, cell)| {
                let width = width(column);
                if is_number(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        [&self.columns].into_iter().chain(&texts).map(line).collect()
    }

    /// An HTML table.
    pub(crate) fn html(&self) -> String {
        let row = |cells: &mut dyn Iterator<Item = String>, tag: &str| {
            let cell = |text: String| format!("<{tag}>{}</{tag}>", escape_html(&text));
            cells.map(cell).collect::<String>()
        };
        let head = row(&mut self.columns.iter().cloned(), "th");
        let rows = self.rows.iter().map(|cells| format!("<tr>{}</tr>\n", row(&mut cells.iter().map(Cell::text), "td")));
        format!("<table><thead><tr>{head}</tr></thead>\n<tbody>\n{}</tbody></table>\n", rows.collect::<String>())
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
            Self::Text(text) | Self::Formatted(text) => text.clone(),
            Self::Number(number, _) if number.is_nan() => String::new(),
            Self::Number(number, decimals) => format!("{number:.decimals$}"),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Text(text) | Self::Formatted(text) => json!(text),
            Self::Number(..) => json!(self.text().parse::<f64>().ok()),
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Escapes HTML.
pub(crate) fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_html_is_escaped() {
        let mut table = Table::new("", ["", "ms"]);
        for (name, millis) in [("a<b", "1,234"), ("µ", "7")] {
            table.formatted(name, [millis.to_owned()]);
        }
        assert_eq!(table.lines(), ["        ms", "a<b  1,234", "µ        7"]);
        assert!(table.html().contains("<td>a&lt;b</td><td>1,234</td>"), "{}", table.html());
    }
}
