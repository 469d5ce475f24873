//! The ring of members.

use crate::hash;
use warren_model::{NodeId, ShardId};

/// Virtual nodes of a member. 128 keep every member's share of many shards within about a quarter of the fair one.
pub const VNODES: u16 = 128;

/// Members that hold a shard.
pub const REPLICAS: usize = 3;

/// A member of the cluster, as the ring sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Identity.
    pub node: NodeId,
    /// Name: positions on the ring are made from it, so a node that replaces another one under its name takes its place.
    pub name: &'a str,
    /// Whether it can own anything at present.
    pub up: bool,
}

/// A virtual node, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vnode {
    /// Position on the ring.
    pub position: u64,
    /// The member that it stands for.
    pub node: NodeId,
    /// Whether that member is up.
    pub up: bool,
}

/// What a change of the ring does to one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The shard.
    pub shard: ShardId,
    /// Its owner before.
    pub from: Option<NodeId>,
    /// Its owner afterwards; equal to `from` if only its replicas change.
    pub to: Option<NodeId>,
    /// Nodes that become replicas, in the order of preference.
    pub added: Vec<NodeId>,
    /// Nodes that are replicas no longer, in the order of preference.
    pub removed: Vec<NodeId>,
}

/// Members on a consistent-hash ring.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ring {
    /// By name, so that equal memberships are equal whatever order they came in.
    members: Vec<Known>,
    /// By position; the member's place in `members`.
    points: Vec<(u64, u16)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    node: NodeId,
    name: String,
    up: bool,
}

impl Ring {
    /// Makes the ring of these members. Their names are distinct; of equal ones, the one with the lowest id that is up counts.
    pub fn new<'a>(members: impl Iterator<Item = Member<'a>>) -> Self {
        let mut members: Vec<Known> = members
            .map(|member| Known {
                node: member.node,
                name: member.name.to_owned(),
                up: member.up,
            })
            .collect();
        members.sort_by(|a, b| (&a.name, !a.up, a.node).cmp(&(&b.name, !b.up, b.node)));
        members.dedup_by(|later, first| later.name == first.name);
        members.truncate(usize::from(u16::MAX));
        let mut points = Vec::with_capacity(members.len() * usize::from(VNODES));
        for (number, member) in members.iter().enumerate() {
            let position =
                |vnode: u16| hash(&[b"vnode", member.name.as_bytes(), &vnode.to_le_bytes()]);
            points.extend((0..VNODES).map(|vnode| (position(vnode), number as u16)));
        }
        points.sort_unstable();
        Self { members, points }
    }

    /// The shard's first member, up or not: the one that it goes back to.
    pub fn preferred(&self, shard: ShardId) -> Option<NodeId> {
        self.clockwise(position_of(shard))
            .next()
            .map(|member| member.node)
    }

    /// The shard's first member that is up.
    pub fn owner(&self, shard: ShardId) -> Option<NodeId> {
        self.first_up(position_of(shard))
    }

    /// The shard's first `n` members, up or not, preferred first; fewer if there are fewer.
    pub fn replicas(&self, shard: ShardId, n: usize) -> Vec<NodeId> {
        let n = n.min(self.members.len());
        let mut replicas = Vec::with_capacity(n);
        for member in self.clockwise(position_of(shard)) {
            if replicas.len() == n {
                break;
            }
            if !replicas.contains(&member.node) {
                replicas.push(member.node);
            }
        }
        replicas
    }

    /// Where a non-replicated queue that is declared now lives: with the first member up from the queue's position on.
    pub fn place(&self, vhost: &str, name: &str) -> Option<NodeId> {
        self.first_up(hash(&[b"queue", vhost.as_bytes(), name.as_bytes()]))
    }

    /// All virtual nodes in ring order.
    pub fn vnodes(&self) -> impl Iterator<Item = Vnode> + '_ {
        self.points.iter().map(|(position, number)| {
            let member = &self.members[usize::from(*number)];
            Vnode {
                position: *position,
                node: member.node,
                up: member.up,
            }
        })
    }

    /// Each member's share of the shards that it would own at present, in the order of names: node, name, up, shards owned.
    pub fn shares(&self, shards: u16) -> Vec<(NodeId, &str, bool, u32)> {
        let mut shares: Vec<_> = self
            .members
            .iter()
            .map(|member| (member.node, member.name.as_str(), member.up, 0))
            .collect();
        for shard in (0..shards).map(ShardId) {
            let owner = self.owner(shard);
            if let Some(share) = shares.iter_mut().find(|share| Some(share.0) == owner) {
                share.3 += 1;
            }
        }
        shares
    }

    /// What going from this ring to `other` changes, shard by shard: the owner, and which [`REPLICAS`] members hold it.
    pub fn plan(&self, other: &Ring, shards: u16) -> Vec<Move> {
        let moves = (0..shards).map(ShardId).map(|shard| {
            let (before, after) = (
                self.replicas(shard, REPLICAS),
                other.replicas(shard, REPLICAS),
            );
            Move {
                shard,
                from: self.owner(shard),
                to: other.owner(shard),
                added: after
                    .iter()
                    .filter(|node| !before.contains(node))
                    .copied()
                    .collect(),
                removed: before
                    .iter()
                    .filter(|node| !after.contains(node))
                    .copied()
                    .collect(),
            }
        });
        moves
            .filter(|change| {
                change.from != change.to || !change.added.is_empty() || !change.removed.is_empty()
            })
            .collect()
    }

    fn first_up(&self, position: u64) -> Option<NodeId> {
        self.clockwise(position)
            .find(|member| member.up)
            .map(|member| member.node)
    }

    /// The members of the virtual nodes from a position on, once around.
    fn clockwise(&self, position: u64) -> impl Iterator<Item = &Known> {
        let start = self.points.partition_point(|(point, _)| *point < position);
        let (before, from) = self.points.split_at(start);
        from.iter()
            .chain(before)
            .map(|(_, number)| &self.members[usize::from(*number)])
    }
}

fn position_of(shard: ShardId) -> u64 {
    hash(&[b"shard", &shard.0.to_le_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const SHARDS: u16 = 4096;

    fn ring(members: &[(u64, bool)]) -> Ring {
        let names: Vec<String> = members
            .iter()
            .map(|(node, _)| format!("node-{node}"))
            .collect();
        Ring::new(members.iter().zip(&names).map(|((node, up), name)| Member {
            node: NodeId(*node),
            name,
            up: *up,
        }))
    }

    fn owners(ring: &Ring) -> Vec<Option<NodeId>> {
        (0..SHARDS)
            .map(|shard| ring.owner(ShardId(shard)))
            .collect()
    }

    #[test]
    fn an_empty_ring_owns_nothing() {
        let none = ring(&[]);
        assert_eq!(
            (
                none.owner(ShardId(0)),
                none.preferred(ShardId(0)),
                none.place("/", "q")
            ),
            (None, None, None)
        );
        assert!(none.replicas(ShardId(0), 3).is_empty());
        assert_eq!(ring(&[(1, false)]).owner(ShardId(0)), None, "nobody is up");
        assert_eq!(ring(&[(1, false)]).preferred(ShardId(0)), Some(NodeId(1)));
    }

    #[test]
    fn order_and_identity_do_not_matter_and_the_ring_never_changes() {
        let abc = ring(&[(1, true), (2, true), (3, true)]);
        assert_eq!(abc, ring(&[(3, true), (1, true), (2, true)]));
        // A node of another identity under the same name takes its place.
        let replaced = Ring::new(
            [(1, "node-1"), (9, "node-2"), (3, "node-3")]
                .into_iter()
                .map(|(node, name)| Member {
                    node: NodeId(node),
                    name,
                    up: true,
                }),
        );
        for shard in (0..SHARDS).map(ShardId) {
            let expected = abc
                .owner(shard)
                .map(|node| if node == NodeId(2) { NodeId(9) } else { node });
            assert_eq!(replaced.owner(shard), expected);
        }
        let golden: Vec<u64> = (0..16)
            .map(|shard| abc.preferred(ShardId(shard)).unwrap().0)
            .collect();
        assert_eq!(golden, [3, 3, 3, 2, 2, 3, 3, 1, 3, 3, 2, 2, 2, 3, 1, 2]);
    }

    #[test]
    fn shares_are_balanced() {
        for n in 2..=9 {
            let members: Vec<(u64, bool)> = (1..=n).map(|node| (node, true)).collect();
            let fair = f64::from(SHARDS) / n as f64;
            for (node, _, _, owned) in ring(&members).shares(SHARDS) {
                let ratio = f64::from(owned) / fair;
                assert!(
                    (0.7..1.3).contains(&ratio),
                    "node {node} of {n} has {ratio:.2} of its fair share"
                );
            }
        }
    }

    #[test]
    fn a_node_going_down_moves_only_its_share_and_gets_exactly_that_back() {
        let up = ring(&[(1, true), (2, true), (3, true), (4, true)]);
        let down = ring(&[(1, true), (2, false), (3, true), (4, true)]);
        let (before, during) = (owners(&up), owners(&down));
        let mut heirs: BTreeMap<NodeId, u32> = BTreeMap::new();
        for (shard, (before, during)) in before.iter().zip(&during).enumerate() {
            if *before == Some(NodeId(2)) {
                assert_ne!(*during, Some(NodeId(2)));
                *heirs.entry(during.unwrap()).or_default() += 1;
            } else {
                assert_eq!(
                    before, during,
                    "shard {shard} did not belong to the node that went"
                );
            }
            let shard = ShardId(shard as u16);
            assert_eq!(down.preferred(shard), *before, "the preferred owner stays");
            assert_eq!(
                down.replicas(shard, 3),
                up.replicas(shard, 3),
                "replicas stay"
            );
        }
        assert_eq!(
            heirs.len(),
            3,
            "its share is spread over the others: {heirs:?}"
        );
        let moved = up.plan(&down, SHARDS);
        assert!(moved.iter().all(|change| change.from == Some(NodeId(2))
            && change.added.is_empty()
            && change.removed.is_empty()));
        let back = down.plan(&up, SHARDS);
        assert_eq!(moved.len(), back.len());
        assert!(
            moved
                .iter()
                .zip(&back)
                .all(|(there, back)| there.shard == back.shard
                    && back.to == there.from
                    && back.from == there.to)
        );
    }

    #[test]
    fn a_node_that_joins_takes_no_more_than_its_share() {
        for n in 1..=8u64 {
            let members: Vec<(u64, bool)> = (1..=n).map(|node| (node, true)).collect();
            let more: Vec<(u64, bool)> = (1..=n + 1).map(|node| (node, true)).collect();
            let (before, after) = (ring(&members), ring(&more));
            let mut gained = 0;
            for (was, is) in owners(&before).into_iter().zip(owners(&after)) {
                if was != is {
                    assert_eq!(is, Some(NodeId(n + 1)), "what moves, moves to the new node");
                    gained += 1;
                }
            }
            let fair = f64::from(SHARDS) / (n + 1) as f64;
            assert!(
                f64::from(gained) < fair * 1.3,
                "{gained} of {SHARDS} moved when {n} became {}",
                n + 1
            );
            assert!(f64::from(gained) > fair * 0.7);
        }
    }

    #[test]
    fn replicas_are_distinct_and_as_many_as_there_are() {
        let five = ring(&[(1, true), (2, false), (3, true), (4, true), (5, true)]);
        for shard in (0..SHARDS).map(ShardId) {
            let replicas = five.replicas(shard, 3);
            assert_eq!(replicas.len(), 3);
            assert_eq!(Some(replicas[0]), five.preferred(shard));
            assert!(
                replicas[0] != replicas[1]
                    && replicas[1] != replicas[2]
                    && replicas[0] != replicas[2]
            );
            assert_eq!(five.replicas(shard, 9).len(), 5);
        }
    }

    #[test]
    fn a_forgotten_node_changes_only_the_replica_sets_that_it_was_in() {
        let (four, three) = (
            ring(&[(1, true), (2, true), (3, true), (4, true)]),
            ring(&[(1, true), (2, true), (3, true)]),
        );
        let changes = four.plan(&three, SHARDS);
        for change in &changes {
            assert_eq!(change.removed, [NodeId(4)]);
            assert_eq!(change.added.len(), 1);
        }
        let held = (0..SHARDS)
            .filter(|shard| four.replicas(ShardId(*shard), 3).contains(&NodeId(4)))
            .count();
        assert_eq!(changes.len(), held);
    }

    #[test]
    fn queues_without_replicas_spread_and_avoid_nodes_that_are_down() {
        let three = ring(&[(1, true), (2, true), (3, true)]);
        let two = ring(&[(1, true), (2, true), (3, false)]);
        let mut counts: BTreeMap<NodeId, u32> = BTreeMap::new();
        for i in 0..9000 {
            let name = format!("q{i}");
            let place = three.place("/", &name).unwrap();
            *counts.entry(place).or_default() += 1;
            let without = two.place("/", &name).unwrap();
            assert!(if place == NodeId(3) {
                without != NodeId(3)
            } else {
                without == place
            });
        }
        assert!(
            counts.values().all(|count| (2000..4000).contains(count)),
            "{counts:?}"
        );
    }
}
