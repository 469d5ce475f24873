//! How answers look: aligned tables for people, JSON for programs.
//!
//! A table's column is a JSON field by its own name, so that what the table shows can be found again in
//! `--output json`. Cells never wrap; text that would break a line is escaped.

use std::io::{self, Write};

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::cli::Format;
use crate::failure::Failure;

/// Whether whoever read the answer has gone.
static UNREAD: AtomicBool = AtomicBool::new(false);

/// Whether there is nobody left to write for: what goes on until it is interrupted ends then.
pub fn nobody_reads() -> bool {
    UNREAD.load(Ordering::Relaxed)
}

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
                    .map(|column| field(object, column).unwrap_or(&Value::Null)),
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

/// Prints a list: `columns` are those of a table, and narrow JSON only if they were `chosen`.
pub fn list(
    format: Format,
    rows: &[Value],
    columns: &[&str],
    chosen: bool,
    headings: bool,
) -> Result<(), Failure> {
    let text = match format {
        Format::Json if !chosen => format!("{:#}\n", Value::Array(rows.to_vec())),
        Format::Json => {
            let narrowed = rows.iter().map(|row| {
                let fields = columns.iter().map(|column| {
                    let value = field(row, column).cloned().unwrap_or_default();
                    ((*column).to_owned(), value)
                });
                Value::Object(fields.collect())
            });
            format!("{:#}\n", Value::Array(narrowed.collect()))
        }
        Format::Table => {
            let table = Table::of(columns, rows).to_string();
            let headed = table.split_inclusive('\n');
            headed.skip(usize::from(!headings)).collect()
        }
        Format::Csv => csv(columns, rows, !headings),
        Format::Tabs => tabs(columns, rows, headings),
    };
    write(&text)
}

/// A field, also of an object within, as `queue.name`.
pub fn field<'a>(row: &'a Value, path: &str) -> Option<&'a Value> {
    row.get(path)
        .or_else(|| path.split('.').try_fold(row, |value, key| value.get(key)))
}

/// The column that rows are sorted by.
pub fn sorted_by(by: &str) -> &str {
    by.strip_prefix('-').unwrap_or(by)
}

/// Sorts rows by a column: numbers by size, all else as it is shown. A minus turns the order round.
pub fn sort(rows: &mut [Value], by: &str) {
    let (reverse, column) = (by.starts_with('-'), sorted_by(by));
    rows.sort_by(|a, b| {
        let (a, b) = (field(a, column), field(b, column));
        let numbers = (a.and_then(Value::as_f64), b.and_then(Value::as_f64));
        let order = match numbers {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (None, None) => text(a).cmp(&text(b)),
            (a, b) => a.is_some().cmp(&b.is_some()),
        };
        if reverse { order.reverse() } else { order }
    });
}

fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// RFC 4180, with what has structure as JSON.
fn csv(columns: &[&str], rows: &[Value], quiet: bool) -> String {
    let quoted = |text: String| {
        if text.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text
        }
    };
    let line = |cells: Vec<String>| {
        let cells: Vec<String> = cells.into_iter().map(quoted).collect();
        format!("{}\r\n", cells.join(","))
    };
    let heading = columns.iter().map(ToString::to_string).collect();
    let mut out = if quiet { String::new() } else { line(heading) };
    for row in rows {
        let cells = columns.iter().map(|column| text(field(row, column)));
        out.push_str(&line(cells.collect()));
    }
    out
}

/// A line a row and a tab between cells. What would break a line is escaped, and what is not there is empty.
fn tabs(columns: &[&str], rows: &[Value], headings: bool) -> String {
    let mut out = String::new();
    if headings {
        out.push_str(&format!("{}\n", columns.join("\t")));
    }
    for row in rows {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| text(field(row, column)).chars().flat_map(escaped).collect())
            .collect();
        out.push_str(&format!("{}\n", cells.join("\t")));
    }
    out
}

/// Prints `value` as JSON, or what `table` makes of it.
pub fn print(format: Format, value: &Value, table: impl FnOnce() -> String) -> Result<(), Failure> {
    let text = match format {
        Format::Json => format!("{value:#}\n"),
        Format::Table | Format::Tabs => table(),
        Format::Csv => match value {
            Value::Object(fields) => {
                let pairs = fields.iter().map(|(name, value)| {
                    Value::Object(
                        [
                            ("field".to_owned(), name.as_str().into()),
                            ("value".to_owned(), value.clone()),
                        ]
                        .into_iter()
                        .collect(),
                    )
                });
                csv(&["field", "value"], &pairs.collect::<Vec<_>>(), false)
            }
            Value::Array(rows) => csv(&flat_columns(rows).unwrap_or_default(), rows, false),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                format!("{}\r\n", text(Some(value)))
            }
        },
    };
    write(&text)
}

/// Writes to standard output.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has seen enough, such as `head`, is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            UNREAD.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => Err(Failure::Output(error.to_string())),
        Ok(()) => Ok(()),
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
    fn rows_are_sorted_by_number_or_text() {
        let names = |by: &str| {
            let mut rows = vec![
                json!({"name": "b", "n": 10, "q": {"m": 1}}),
                json!({"name": "a", "n": 9, "q": {"m": 2}}),
                json!({"name": "c"}),
            ];
            sort(&mut rows, by);
            let names = rows.iter().map(|row| text(row.get("name")));
            names.collect::<Vec<_>>().concat()
        };
        assert_eq!(
            [names("name"), names("n"), names("-n"), names("-q.m")],
            ["abc", "cab", "bac", "abc"]
        );
    }

    #[test]
    fn csv_is_quoted_where_it_must_be() {
        let rows = [
            json!({"a": "x,\"y\"", "b": {"c": 1}, "d": true}),
            json!({"a": "1\n2"}),
        ];
        let expected = "a,b.c,d,e\r\n\"x,\"\"y\"\"\",1,true,\r\n\"1\n2\",,,\r\n";
        assert_eq!(csv(&["a", "b.c", "d", "e"], &rows, false), expected);
        assert_eq!(csv(&["d"], &rows[..1], true), "true\r\n");
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
