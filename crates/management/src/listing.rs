//! Lists as RabbitMQ answers them: whole, or a page of those whose name fits (`page`, `page_size`, `name`, `use_regex`), sorted (`sort`, `sort_reverse`)
//! and with only some fields (`columns`).
//!
//! Without `sort`, the order is the table's: virtual host, then name. Pages count from 1; the first one may be empty, one beyond the last is refused.

use crate::error::Error;
use crate::extract::Parameters;
use axum::Json;
use axum::http::StatusCode;
use regex::{Regex, RegexBuilder};
use serde_json::{Value, json};
use std::cmp::Ordering;
use warren_node::Node;
use warren_routing::Table;

const PAGE_SIZE: usize = 100;
const PAGE_SIZE_MAX: usize = 500;
/// Compiled size of a regular expression.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// What is asked of a list.
#[derive(Debug)]
pub(crate) struct Listing {
    page: Option<Page>,
    sort: Vec<String>,
    reverse: bool,
    columns: Vec<String>,
}

#[derive(Debug)]
struct Page {
    number: usize,
    size: usize,
    /// Names are looked for only in pages, as in RabbitMQ.
    filter: Option<Regex>,
}

/// Answers a list whose rows are read from the table in one go.
pub(crate) fn of_table(
    node: &Node,
    parameters: &Parameters,
    rows: impl FnOnce(&Table) -> Result<Vec<Value>, Error>,
) -> Result<Json<Value>, Error> {
    let listing = Listing::new(parameters)?;
    let rows = rows(&node.metadata().table().read())?;
    listing.of_rows(rows).map(Json)
}

/// Items chosen for a page, with the numbers that go along.
#[derive(Debug)]
pub(crate) struct Chosen<T> {
    pub(crate) items: Vec<T>,
    total: usize,
    filtered: usize,
}

impl Listing {
    pub(crate) fn new(parameters: &Parameters) -> Result<Self, Error> {
        let names = |key| {
            parameters
                .get(key)
                .unwrap_or_default()
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        };
        Ok(Self {
            page: Page::new(parameters)?,
            sort: names("sort"),
            reverse: parameters.is_true("sort_reverse"),
            columns: names("columns"),
        })
    }

    /// Whether rows must be complete before a page can be chosen from them.
    pub(crate) fn sorts(&self) -> bool {
        !self.sort.is_empty()
    }

    /// Sorts rows by what is asked for; the order of equal ones stays.
    pub(crate) fn sort(&self, rows: &mut [Value]) {
        if self.sorts() {
            rows.sort_by(|a, b| {
                self.sort.iter().fold(Ordering::Equal, |order, key| {
                    order.then_with(|| compare(field(a, key), field(b, key)))
                })
            });
        }
        if self.reverse {
            rows.reverse();
        }
    }

    /// Leaves those items whose names fit.
    pub(crate) fn filter<T>(&self, items: Vec<T>, name: impl Fn(&T) -> &str) -> Chosen<T> {
        let total = items.len();
        let items = match self.page.as_ref().and_then(|page| page.filter.as_ref()) {
            None => items,
            Some(filter) => items
                .into_iter()
                .filter(|item| filter.is_match(name(item)))
                .collect(),
        };
        Chosen {
            total,
            filtered: items.len(),
            items,
        }
    }

    /// Leaves the items of the page.
    pub(crate) fn page<T>(&self, chosen: Chosen<T>) -> Result<Chosen<T>, Error> {
        let Some(page) = &self.page else {
            return Ok(chosen);
        };
        let first = (page.number - 1).saturating_mul(page.size);
        if first > chosen.items.len() {
            let reason = format!(
                "Page out of range, page: {} page size: {}, len: {}",
                page.number,
                page.size,
                chosen.items.len()
            );
            return Err(Error::new(
                StatusCode::BAD_REQUEST,
                "page_out_of_range",
                reason,
            ));
        }
        Ok(Chosen {
            items: chosen
                .items
                .into_iter()
                .skip(first)
                .take(page.size)
                .collect(),
            ..chosen
        })
    }

    /// The answer.
    pub(crate) fn answer(&self, rows: Chosen<Value>) -> Value {
        let items: Vec<Value> = rows
            .items
            .into_iter()
            .map(|row| self.narrowed(row))
            .collect();
        let Some(page) = &self.page else {
            return Value::Array(items);
        };
        json!({
            "filtered_count": rows.filtered,
            "item_count": items.len(),
            "items": items,
            "page": page.number,
            "page_count": rows.filtered.div_ceil(page.size),
            "page_size": page.size,
            "total_count": rows.total,
        })
    }

    /// For lists whose rows are all made anyway.
    pub(crate) fn of_rows(&self, rows: Vec<Value>) -> Result<Value, Error> {
        let mut chosen = self.filter(rows, |row| {
            row.get("name").and_then(Value::as_str).unwrap_or_default()
        });
        self.sort(&mut chosen.items);
        Ok(self.answer(self.page(chosen)?))
    }

    /// Leaves the fields that are asked for; `a.b` stands for the field `b` within `a`.
    pub(crate) fn narrowed(&self, row: Value) -> Value {
        if self.columns.is_empty() {
            return row;
        }
        let paths = self
            .columns
            .iter()
            .map(|column| column.split('.').collect());
        narrowed(row, &paths.collect::<Vec<Vec<&str>>>())
    }
}

/// What of a value is on one of the paths. What has no fields of its own is on none that goes on.
fn narrowed(value: Value, paths: &[Vec<&str>]) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let chosen = fields.into_iter().filter_map(|(name, value)| {
        let mut deeper = Vec::new();
        for path in paths {
            match path.split_first() {
                Some((first, [])) if *first == name => return Some((name, value)),
                Some((first, rest)) if *first == name => deeper.push(rest.to_vec()),
                Some(_) | None => {}
            }
        }
        if deeper.is_empty() || !value.is_object() {
            return None;
        }
        Some((name, narrowed(value, &deeper)))
    });
    Value::Object(chosen.collect())
}

impl Chosen<Value> {
    /// Rows made of chosen items, which may be fewer when some are gone by now.
    pub(crate) fn made_of<T>(chosen: Chosen<T>, rows: Vec<Value>) -> Self {
        Self {
            items: rows,
            total: chosen.total,
            filtered: chosen.filtered,
        }
    }
}

impl Page {
    fn new(parameters: &Parameters) -> Result<Option<Self>, Error> {
        let number = |key| {
            let parse = |text: &str| {
                text.parse::<usize>().map_err(|_| {
                    Error::bad_request(format!(
                        "Pagination parameters are invalid: {key} is '{text}'"
                    ))
                })
            };
            parameters.get(key).map(parse).transpose()
        };
        let (page, size) = (number("page")?, number("page_size")?);
        let Some(page) = page else { return Ok(None) };
        let size = size.unwrap_or(PAGE_SIZE);
        if page == 0 || !(1..=PAGE_SIZE_MAX).contains(&size) {
            let reason = format!(
                "Invalid pagination parameters: page number {page}, page size {size}; pages count from 1 and hold at most {PAGE_SIZE_MAX}"
            );
            return Err(Error::new(
                StatusCode::BAD_REQUEST,
                "invalid_pagination_parameters",
                reason,
            ));
        }
        let filter = parameters
            .get("name")
            .filter(|name| !name.is_empty())
            .map(|name| pattern(name, parameters.is_true("use_regex")))
            .transpose()?;
        Ok(Some(Self {
            number: page,
            size,
            filter,
        }))
    }
}

/// Fits names that contain the text or match the regular expression, in any case.
fn pattern(text: &str, regex: bool) -> Result<Regex, Error> {
    let pattern = if regex {
        text.to_owned()
    } else {
        regex::escape(text)
    };
    let built = RegexBuilder::new(&pattern)
        .case_insensitive(true)
        .size_limit(PATTERN_BYTES_MAX)
        .build();
    built.map_err(|error| Error::bad_request(format!("name is no regular expression: {error}")))
}

fn field<'a>(row: &'a Value, path: &str) -> &'a Value {
    path.split('.')
        .try_fold(row, |value, key| value.get(key))
        .unwrap_or(&Value::Null)
}

/// Nothing comes first, then truth values, numbers and texts; what has structure is not told apart.
fn compare(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) | Value::Object(_) => 4,
    };
    rank(a).cmp(&rank(b)).then_with(|| match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => a
            .as_f64()
            .unwrap_or_default()
            .total_cmp(&b.as_f64().unwrap_or_default()),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        _ => Ordering::Equal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(query: &[(&str, &str)]) -> Result<Listing, Error> {
        Listing::new(&Parameters::of(query))
    }

    fn rows(names: &[&str]) -> Vec<Value> {
        names
            .iter()
            .map(|name| json!({"name": name, "messages": name.len()}))
            .collect()
    }

    #[test]
    fn without_a_page_all_are_listed() {
        let all = rows(&["a", "bb"]);
        assert_eq!(
            listing(&[("name", "bb"), ("page_size", "1")])
                .unwrap()
                .of_rows(all.clone())
                .unwrap(),
            Value::Array(all)
        );
    }

    #[test]
    fn pages_carry_their_numbers() {
        let names: Vec<String> = (0..5)
            .map(|i| format!("q{i}"))
            .chain(["other".to_owned()])
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let page = listing(&[("page", "3"), ("page_size", "2"), ("name", "Q")])
            .unwrap()
            .of_rows(rows(&names))
            .unwrap();
        let expected = json!({"filtered_count": 5, "item_count": 1, "items": rows(&["q4"]), "page": 3, "page_count": 3, "page_size": 2, "total_count": 6});
        assert_eq!(page, expected);
        let beyond = listing(&[("page", "5"), ("page_size", "2")])
            .unwrap()
            .of_rows(rows(&names))
            .unwrap_err();
        assert_eq!(
            beyond,
            Error::new(
                StatusCode::BAD_REQUEST,
                "page_out_of_range",
                "Page out of range, page: 5 page size: 2, len: 6"
            )
        );
        let empty = listing(&[("page", "1")]).unwrap().of_rows(vec![]).unwrap();
        assert_eq!(
            (&empty["page_count"], &empty["page_size"], &empty["items"]),
            (&json!(0), &json!(100), &json!([]))
        );
    }

    #[test]
    fn names_are_texts_unless_they_are_said_to_be_patterns() {
        let names = ["a.b", "axb", "cd"];
        let found = |query: &[(&str, &str)]| {
            listing(&[&[("page", "1")], query].concat())
                .unwrap()
                .of_rows(rows(&names))
                .unwrap()["items"]
                .clone()
        };
        assert_eq!(found(&[("name", "a.b")]), json!(rows(&["a.b"])));
        assert_eq!(
            found(&[("name", "^A.B$"), ("use_regex", "true")]),
            json!(rows(&["a.b", "axb"]))
        );
        assert!(listing(&[("page", "1"), ("name", "("), ("use_regex", "true")]).is_err());
    }

    #[test]
    fn bad_pages_are_refused() {
        for (page, size) in [
            ("0", "1"),
            ("1", "0"),
            ("1", "501"),
            ("x", "1"),
            ("1", "-1"),
            ("1.0", "2"),
        ] {
            assert!(
                listing(&[("page", page), ("page_size", size)]).is_err(),
                "{page} {size}"
            );
        }
    }

    #[test]
    fn rows_are_sorted_and_narrowed() {
        let sorted = listing(&[
            ("sort", "messages"),
            ("sort_reverse", "true"),
            ("columns", "name"),
        ])
        .unwrap()
        .of_rows(rows(&["a", "ccc", "bb"]))
        .unwrap();
        assert_eq!(
            sorted,
            json!([{"name": "ccc"}, {"name": "bb"}, {"name": "a"}])
        );
    }

    #[test]
    fn columns_reach_into_fields() {
        let row = json!({"name": "a", "stats": {"publish": 1, "ack": 2, "rates": {"publish": 0.5}}, "state": "running"});
        let with = |columns| {
            let asked = listing(&[("columns", columns)]).unwrap();
            asked.narrowed(row.clone())
        };
        assert_eq!(
            with("name,stats.publish,stats.rates.publish"),
            json!({"name": "a", "stats": {"publish": 1, "rates": {"publish": 0.5}}})
        );
        assert_eq!(
            with("stats.publish,stats"),
            json!({"stats": row["stats"]}),
            "the whole field counts"
        );
        assert_eq!(with("state.x,none"), json!({}));
        assert_eq!(with("stats.none"), json!({"stats": {}}));
    }
}
