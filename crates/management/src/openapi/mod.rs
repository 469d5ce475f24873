//! What the API offers, in the form of OpenAPI 3.0: `GET /api/openapi.json`, without a login, since it tells nothing of the cluster.
//!
//! Flow: [`document`] makes it of a table of operations ([`operations`]) and of the shapes of bodies and answers ([`schemas`]). Invariant, which a test
//! keeps: the table has exactly the router's paths and methods. Names in a path are one segment, percent-encoded.

mod operations;
mod schemas;

use axum::Json;
use operations::{Answer, OPERATIONS, Operation};
use serde_json::{Map, Value, json};

/// What `/api/openapi.json` answers.
pub(crate) async fn document() -> Json<Value> {
    Json(described())
}

fn described() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in OPERATIONS {
        let entry = paths
            .entry(operation.path)
            .or_insert_with(|| path_item(operation.path));
        entry[operation.method] = described_operation(operation);
    }
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Warren's HTTP API",
            "description": "RabbitMQ's management API, and what Warren has besides under /api/cluster, /api/ring and /api/routing. Any node answers for the whole cluster.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"basic": []}],
        "tags": tags(),
        "paths": paths,
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "parameters": schemas::listing_parameters(),
            "responses": schemas::responses(),
            "schemas": schemas::all(),
        },
    })
}

fn tags() -> Value {
    let mut names: Vec<&str> = Vec::new();
    for operation in OPERATIONS {
        if !names.contains(&operation.tag()) {
            names.push(operation.tag());
        }
    }
    names.iter().map(|name| json!({"name": name})).collect()
}

/// What holds for all methods of a path: the names in it.
fn path_item(path: &str) -> Value {
    let names = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let described = |name: &str| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "schema": schemas::of_name(name),
            "description": schemas::meaning(name),
        })
    };
    let parameters: Vec<Value> = names.map(described).collect();
    if parameters.is_empty() {
        json!({})
    } else {
        json!({"parameters": parameters})
    }
}

fn described_operation(operation: &Operation) -> Value {
    let mut described = json!({
        "operationId": operation.id(),
        "summary": operation.what,
        "tags": [operation.tag()],
        "responses": answers(operation),
    });
    let parameters = schemas::query(operation);
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(body) = operation.body {
        described["requestBody"] = json!({
            "required": true,
            "content": {"application/json": {"schema": reference(body)}},
        });
    }
    if operation.is_open() {
        described["security"] = json!([]);
    }
    described
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

fn answers(operation: &Operation) -> Value {
    let said = |description: &str, schema: Value| json!({"description": description, "content": {"application/json": {"schema": schema}}});
    let empty = |description: &str| json!({"description": description});
    let mut answers = match operation.answer {
        Answer::One(schema) => json!({"200": said("What is asked for", reference(schema))}),
        Answer::Array(schema) => {
            let list = json!({"type": "array", "items": reference(schema)});
            json!({"200": said("All of them", list)})
        }
        Answer::List(schema) => {
            let list = json!({"type": "array", "items": reference(schema)});
            let page = json!({"allOf": [
                reference("Page"),
                {"type": "object", "required": ["items"], "properties": {"items": list}},
            ]});
            let either = json!({"oneOf": [list, page]});
            json!({"200": said("All of them, or, if a page is asked for, that page", either)})
        }
        Answer::Put => json!({
            "201": empty("It is new"),
            "204": empty("It was there; it is now as asked"),
        }),
        Answer::Done => json!({"204": empty("Done")}),
        Answer::Bound => json!({"201": {
            "description": "It is bound; Location says where the binding is found",
            "headers": {"Location": {"schema": {"type": "string"}}},
        }}),
        Answer::Imported => json!({
            "200": said("What is declared, or would be if it was only tried (report, dry_run)", reference("Imported")),
            "204": empty("All of it is declared"),
        }),
        Answer::Check => json!({
            "200": said("The check has passed", reference("Passed")),
            "503": said("The check has failed", reference("Failed")),
        }),
        Answer::Metrics => json!({"200": {
            "description": "Prometheus' text form",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }}),
    };
    if !operation.is_open() {
        answers["401"] = json!({"$ref": "#/components/responses/Refused"});
    }
    // A check that has failed says so with 503 itself.
    answers["default"] = json!({"$ref": "#/components/responses/Error"});
    answers
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn operations_have_ids_of_their_own() {
        let ids: BTreeSet<String> = OPERATIONS.iter().map(Operation::id).collect();
        assert_eq!(ids.len(), OPERATIONS.len());
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(target)) = fields.get("$ref") {
                        found.insert(target);
                    }
                    fields.values().for_each(|inner| references(inner, found));
                }
                Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let document = described();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 20);
        for target in &found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
        for name in document["components"]["schemas"]
            .as_object()
            .unwrap()
            .keys()
        {
            let target = format!("#/components/schemas/{name}");
            assert!(found.contains(target.as_str()), "{name} is used nowhere");
        }
    }

    #[test]
    fn every_name_in_a_path_has_a_meaning() {
        for operation in OPERATIONS {
            for parameter in path_item(operation.path)["parameters"]
                .as_array()
                .into_iter()
                .flatten()
            {
                assert_ne!(
                    parameter["description"], "",
                    "{parameter} in {}",
                    operation.path
                );
            }
        }
    }
}
