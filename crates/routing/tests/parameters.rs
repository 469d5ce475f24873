//! Parameters of virtual hosts: kept as they are given, and gone with their virtual host.

#![allow(clippy::unwrap_used)]

mod world;

use warren_model::Command;
use warren_model::command::ParameterKey;
use warren_routing::Table;
use world::World;

fn key(vhost: &str, component: &str, name: &str) -> ParameterKey {
    ParameterKey {
        vhost: vhost.into(),
        component: component.into(),
        name: name.into(),
    }
}

fn put(parameter: ParameterKey, value: &str) -> Command {
    Command::PutParameter {
        parameter,
        value: value.into(),
    }
}

#[test]
fn parameters_are_kept_by_vhost_component_and_name() {
    let mut world = World::new();
    world.done(Command::PutVhost { name: "v".into() });
    let empty = world.table.digest();
    for parameter in [key("v", "b", "n"), key("v", "a", "n"), key("/", "a", "n")] {
        world.done(put(parameter, "1"));
    }
    world.done(put(key("v", "a", "n"), "{}"));
    world.done(put(key("v", "a", "n"), "{}"));
    let table = &world.table;
    let all: Vec<_> = table.parameters("v").collect();
    assert_eq!(
        all,
        [(&key("v", "a", "n"), "{}"), (&key("v", "b", "n"), "1")]
    );
    assert_eq!(table.parameter(&key("/", "a", "n")), Some("1"));
    assert_eq!(table.parameters("none").count(), 0);
    let restored = Table::restore(table.records(), table.index()).unwrap();
    assert_eq!(restored.parameters("v").collect::<Vec<_>>(), all);
    assert_eq!(restored.digest(), table.digest());

    assert_eq!(world.refused(put(key("none", "a", "n"), "1")).code, 530);
    world.done(Command::DeleteParameter(key("/", "a", "n")));
    world.done(Command::DeleteParameter(key("/", "a", "n")));
    world.done(Command::DeleteVhost { name: "v".into() });
    world.done(Command::PutVhost { name: "v".into() });
    assert_eq!(world.table.digest(), empty);
}
