//! How answers look: aligned tables for people, JSON for programs.
//!
//! A table's column is a JSON field by its own name, so that what the table shows can be found again in
//! `--output json`. Cells never wrap; text that would break a line is escaped.

use std::io::{self, Write};

use serde_json::Value;

use crate::cli::Format;
use crate::failure::Failure;

/// A table that is filled row by row and then printed with its columns aligned.
#[derive(Debug, Default)]
pub struct Table {
    columns: Vec<String>,
    numeric: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these column names.
    pub fn new(columns: &[&str]) -> Self {
        Self {
            columns: columns.iter().map(ToString::to_string).collect(),
            numeric: vec![true; columns.len()],
            rows: Vec::new(),
        }
    }

    /// One row a JSON object, its cells the fields that the columns name.
    pub fn of(columns: &[&str], objects: &[Value]) -> Self {
        let mut table = Self::new(columns);
        for object in objects {
            table.row(
                columns
                    .iter()
                    .map(|column| object.get(column).unwrap_or(&Value::Null)),
            );
        }
        table
    }

    /// Adds a row; a column is aligned to the right while all its cells are numbers.
    pub fn row<'a>(&mut self, cells: impl IntoIterator<Item = &'a Value>) {
        let cells: Vec<&Value> = cells.into_iter().collect();
        for (numeric, cell) in self.numeric.iter_mut().zip(&cells) {
            *numeric &= cell.is_number();
        }
        self.rows.push(cells.into_iter().map(cell).collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells
                .chain(self.columns.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for row in std::iter::once(&self.columns).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), numeric) in row.iter().zip(&widths).zip(&self.numeric) {
                let padding = " ".repeat(width - cell.chars().count());
                let (before, after) = if *numeric && !self.rows.is_empty() {
                    (padding.as_str(), "")
                } else {
                    ("", padding.as_str())
                };
                line.push_str(&format!("{before}{cell}{after}  "));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A value as one cell: `yes`/`no`, `-` for nothing, compact JSON for what has structure.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.chars().flat_map(escaped).collect(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Object(fields) if fields.is_empty() => "-".to_owned(),
        Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

fn escaped(c: char) -> Vec<char> {
    if c.is_control() {
        c.escape_default().collect()
    } else {
        vec![c]
    }
}

/// Any JSON as indented text: the form of answers whose shape is a tree.
pub fn outline(value: &Value) -> String {
    let mut text = String::new();
    outline_into(value, 0, &mut text);
    text
}

fn outline_into(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            let width = fields
                .iter()
                .filter(|(_, v)| is_plain(v))
                .map(|(k, _)| k.chars().count())
                .max()
                .unwrap_or(0);
            for (key, field) in fields {
                if is_plain(field) {
                    text.push_str(&format!("{indent}{key:width$}  {}\n", cell(field)));
                } else {
                    text.push_str(&format!("{indent}{key}\n"));
                    outline_into(field, depth + 1, text);
                }
            }
        }
        Value::Array(items) => match flat_columns(items) {
            Some(columns) => {
                for line in Table::of(&columns, items).to_string().lines() {
                    text.push_str(&format!("{indent}{line}\n"));
                }
            }
            None => {
                for (number, item) in items.iter().enumerate() {
                    if number > 0 && item.is_object() {
                        text.push('\n');
                    }
                    outline_into(item, depth, text);
                }
            }
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&format!("{indent}{}\n", cell(value)))
        }
    }
}

/// Whether a value fits a cell: a scalar, something empty, or a list of scalars.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::Array(items) => items
            .iter()
            .all(|item| !item.is_array() && !item.is_object()),
        Value::Object(fields) => fields.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// The columns of a list of objects that a table can show: no field holds objects of its own, but for `arguments`.
fn flat_columns(items: &[Value]) -> Option<Vec<&str>> {
    let mut columns: Vec<&str> = Vec::new();
    for item in items {
        for (key, field) in item.as_object()? {
            if !is_plain(field) && key != "arguments" {
                return None;
            }
            if !columns.contains(&key.as_str()) {
                columns.push(key);
            }
        }
    }
    (!columns.is_empty()).then_some(columns)
}

/// Prints `value` as JSON, or what `table` makes of it.
pub fn print(format: Format, value: &Value, table: impl FnOnce() -> String) -> Result<(), Failure> {
    let text = match format {
        Format::Json => format!("{value:#}\n"),
        Format::Table => table(),
    };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has seen enough, such as `head`, is no failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Output(error.to_string()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_aligned_and_numbers_stand_to_the_right() {
        let rows = [
            json!({"name": "a", "messages": 12000, "durable": true}),
            json!({"name": "orders", "messages": 7, "durable": false}),
        ];
        let table = Table::of(&["name", "messages", "durable"], &rows).to_string();
        assert_eq!(
            table,
            "name    messages  durable\na          12000  yes\norders         7  no\n"
        );
    }

    #[test]
    fn an_empty_table_shows_its_columns() {
        assert_eq!(
            Table::of(&["name", "type"], &[]).to_string(),
            "name  type\n"
        );
    }

    #[test]
    fn cells_stay_on_one_line_and_nothing_is_invisible() {
        assert_eq!(cell(&json!("a\nb\u{1b}[0m")), "a\\nb\\u{1b}[0m");
        assert_eq!(cell(&json!("")), "\"\"");
        assert_eq!(cell(&Value::Null), "-");
        assert_eq!(cell(&json!({"x-match": "any"})), "{\"x-match\":\"any\"}");
    }

    #[test]
    fn a_tree_is_outlined_with_tables_for_flat_lists() {
        let tree = json!({
            "vhost": "/", "ring_epoch": 4,
            "exchanges": [
                {"name": "topic", "bindings": [{"routing_key": "a.#", "matched": true}, {"routing_key": "b", "matched": false}]},
                {"name": "fan", "bindings": []},
            ],
        });
        let expected = "vhost       /\nring_epoch  4\nexchanges\n  name  topic\n  bindings\n    routing_key  matched\n    a.#          yes\n    b            no\n\n  name      fan\n  bindings  -\n";
        assert_eq!(outline(&tree), expected);
    }
}
