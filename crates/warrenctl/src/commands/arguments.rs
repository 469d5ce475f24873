//! `--argument NAME=VALUE`: the optional arguments of declarations, and other pairs of that form.

use serde_json::{Map, Value};

/// One pair. A value that is JSON is taken for that: `5`, `true`, `{"a": 1}`; all else, and what is quoted, for text.
pub fn pair(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            Ok((name.to_owned(), value))
        }
        Some(_) | None => Err("use NAME=VALUE".to_owned()),
    }
}

/// Pairs as an object.
pub fn object(pairs: &[(String, Value)]) -> Value {
    Value::Object(pairs.iter().cloned().collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_json_or_text() {
        let value = |text: &str| pair(text).map(|(_, value)| value);
        assert_eq!(value("a=5"), Ok(json!(5)));
        assert_eq!(value("a=\"5\""), Ok(json!("5")));
        assert_eq!(value("a=b=c"), Ok(json!("b=c")));
        assert_eq!(value("a="), Ok(json!("")));
        assert!(value("=b").is_err() && value("a").is_err());
    }
}
