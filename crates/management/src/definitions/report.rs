//! What an import would do: how much of each kind is given, made and changed, and what of it is kept without having an effect here.

use crate::{CHUNK, arguments, policies};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use warren_model::Definition;
use warren_node::Node;
use warren_routing::Effect;

/// Arguments of queues that have an effect; the other ones that RabbitMQ knows are kept and shown.
const EFFECTIVE: [&str; 1] = ["x-queue-type"];
/// Kinds of objects, in the order of a report.
const KINDS: [&str; 11] = [
    "vhosts",
    "users",
    "permissions",
    "topic_permissions",
    "exchanges",
    "queues",
    "bindings",
    "policies",
    "parameters",
    "global_parameters",
    "limits",
];

fn kind(definition: &Definition) -> &'static str {
    match definition {
        Definition::Vhost { .. } | Definition::VhostDetails { .. } => "vhosts",
        Definition::User(_) => "users",
        Definition::Permission(_) => "permissions",
        Definition::TopicPermission(_) => "topic_permissions",
        Definition::Exchange(_) => "exchanges",
        Definition::Queue(_) => "queues",
        Definition::Binding(_) => "bindings",
        // RabbitMQ's exports have operator policies among the parameters.
        Definition::Policy(policy) if policy.operator => "parameters",
        Definition::Policy(_) => "policies",
        Definition::Parameter { .. } => "parameters",
        Definition::GlobalParameter { .. } => "global_parameters",
        Definition::VhostLimit { .. } | Definition::UserLimit { .. } => "limits",
    }
}

/// What is in it that has no effect.
fn without_effect(definition: &Definition) -> Vec<String> {
    match definition {
        Definition::Queue(queue) => {
            let given = arguments::to_json(&queue.arguments);
            let names = given.as_object().into_iter().flat_map(Map::keys);
            names
                .filter(|name| name.starts_with("x-") && !EFFECTIVE.contains(&name.as_str()))
                .cloned()
                .collect()
        }
        Definition::Policy(policy) => policies::without_effect(policy),
        Definition::Parameter { parameter, .. } => {
            vec![format!("component {}", parameter.component)]
        }
        Definition::Vhost { .. }
        | Definition::VhostDetails { .. }
        | Definition::User(_)
        | Definition::Permission(_)
        | Definition::TopicPermission(_)
        | Definition::Exchange(_)
        | Definition::Binding(_)
        | Definition::GlobalParameter { .. }
        | Definition::VhostLimit { .. }
        | Definition::UserLimit { .. } => Vec::new(),
    }
}

/// Whether it only takes a limit away that a parameter does not name.
fn is_nothing(definition: &Definition) -> bool {
    matches!(definition, Definition::VhostLimit { value: None, .. })
}

/// The report of an import that has not been carried out yet.
pub(super) async fn of(node: &Node, definitions: &[Definition]) -> Value {
    let mut counts: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    let mut idle = Vec::new();
    for chunk in definitions.chunks(CHUNK) {
        {
            let table = node.metadata().table().read();
            for definition in chunk {
                let [given, created, changed] = counts.entry(kind(definition)).or_default();
                // What is said of a virtual host belongs to it.
                let of_another = matches!(definition, Definition::VhostDetails { .. });
                *given += u64::from(!of_another && !is_nothing(definition));
                match table.effect(definition) {
                    Effect::Creates => *created += 1,
                    Effect::Changes if of_another && !is_known(&table, definition) => {}
                    Effect::Changes => *changed += 1,
                    Effect::Nothing => {}
                }
            }
        }
        let named = |definition: &Definition| {
            let of = definition.to_string();
            let parts = without_effect(definition).into_iter();
            parts
                .map(|what| json!({"object": of, "what": what}))
                .collect::<Vec<_>>()
        };
        idle.extend(chunk.iter().flat_map(named));
        tokio::task::yield_now().await;
    }
    let of = |which: usize| {
        let count = |kind: &&str| counts.get(*kind).map_or(0, |counts| counts[which]);
        let fields = KINDS
            .iter()
            .map(|kind| (kind.to_string(), count(kind).into()));
        fields.collect::<Map<_, _>>()
    };
    let mut report = of(0);
    report.insert("creates".into(), of(1).into());
    report.insert("changes".into(), of(2).into());
    report.insert("without_effect".into(), idle.into());
    report.into()
}

/// Whether the virtual host of details is there already; one that comes new is counted as such.
fn is_known(table: &warren_routing::Table, definition: &Definition) -> bool {
    !matches!(definition, Definition::VhostDetails { vhost, .. } if table.vhost_details(vhost).is_none())
}
