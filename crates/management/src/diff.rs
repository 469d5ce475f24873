//! Whether the nodes' routing tables are equal, and what they differ in if not. They never should differ; who suspects that they do finds out here.

use crate::access::Access;
use crate::error::Error;
use crate::status::hex;
use crate::{PEERS_DEADLINE, Shared, arguments};
use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_model::NodeId;
use warren_node::Difference;
use warren_routing::Table;

/// Compares the tables of all nodes. A definition that two nodes have in two forms stands there twice.
pub(crate) async fn diff(
    State(node): Shared,
    Extension(access): Extension<Access>,
) -> Result<Json<Value>, Error> {
    access.monitoring()?;
    let diff = node.table_diff(PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    let mut said: Vec<_> = diff.nodes.iter().collect();
    said.sort_by_key(|(id, _)| name(&table, **id));
    let nodes = said.into_iter().map(|(id, said)| {
        let error = said.is_none().then(|| why_silent(&table, *id));
        json!({
            "node": name(&table, *id),
            "applied_index": said.as_ref().map(|said| said.index),
            "digest": said.as_ref().map(|said| hex(&said.digest)),
            "error": error,
        })
    });
    let differences = diff.differences.iter().map(|one| described(&table, one));
    Ok(Json(json!({
        "nodes": nodes.collect::<Vec<_>>(),
        "equal": diff.equal,
        "differences": differences.collect::<Vec<_>>(),
        "more": diff.more,
    })))
}

fn name(table: &Table, id: NodeId) -> String {
    table
        .node(id)
        .map_or_else(|| id.to_string(), |known| known.name.clone())
}

fn why_silent(table: &Table, id: NodeId) -> String {
    if table.node(id).is_some_and(|known| known.up) {
        format!(
            "it did not answer within {} s: it cannot be reached, or is of a release that knows no such question",
            PEERS_DEADLINE.as_secs()
        )
    } else {
        "it is down".to_owned()
    }
}

fn described(table: &Table, difference: &Difference) -> Value {
    let names = |ids: &[NodeId]| {
        let mut names: Vec<_> = ids.iter().map(|id| name(table, *id)).collect();
        names.sort_unstable();
        names
    };
    let record = &difference.record;
    let mut object = json!(record.fields);
    if let Some(given) = &record.arguments {
        let field = if record.kind.ends_with("policy") {
            "definition"
        } else {
            "arguments"
        };
        object[field] = arguments::to_json(given);
    }
    json!({
        "kind": record.kind,
        "object": object,
        "present_on": names(&difference.present_on),
        "absent_on": names(&difference.absent_on),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use warren_node::Described;

    #[test]
    fn a_difference_names_its_nodes_and_its_arguments() {
        let record = Described {
            hash: 1,
            kind: "queue".into(),
            fields: BTreeMap::from([("name".to_owned(), "q".to_owned())]),
            arguments: Some(Vec::new()),
        };
        let difference = Difference {
            record,
            present_on: vec![NodeId(1)],
            absent_on: vec![NodeId(2), NodeId(3)],
        };
        let id = |number: u64| NodeId(number).to_string();
        assert_eq!(
            described(&Table::new(), &difference),
            json!({"kind": "queue", "object": {"name": "q", "arguments": {}}, "present_on": [id(1)], "absent_on": [id(2), id(3)]})
        );
    }
}
