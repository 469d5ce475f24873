//! What tables of nodes differ in, for operators. They never should: a difference is a bug, or a broken disk.
//!
//! Flow: nodes are asked for their tables' digests until they give them at one index. If those are equal, that is all. If not, each tells a sum and a count for
//! each of [`BUCKETS`] parts of its records; of parts that differ, the hashes of their records; and of hashes that not all have, what those records say.
//! Cost: equal tables cost nothing. Each of the three questions about unequal ones is a pass over the table under its lock, off the threads that serve.
//! Bounds: answers have at most [`HASHES_MAX`] hashes, and at most [`DIFFERENCES_MAX`] differences are described.

use crate::node::Node;
use crate::observe::Question;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use warren_model::NodeId;
use warren_routing::{Table, describe_record};

/// Parts into which records are divided by their hashes.
const BUCKETS: usize = 4096;
/// Hashes in one answer, about.
const HASHES_MAX: u64 = 20_000;
/// Differences that are described.
const DIFFERENCES_MAX: usize = 1000;
/// How long nodes are asked for digests at one index.
const AGREE_DEADLINE: Duration = Duration::from_millis(1500);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How long a question about unequal tables may take in all: a large table takes a second a pass.
const PASSES_DEADLINE: Duration = Duration::from_secs(8);

/// A table's digest and the index that it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableDigest {
    /// What was applied last.
    pub index: u64,
    /// Sum over the hashes of all records.
    pub digest: Vec<u8>,
}

/// Something that some nodes' tables have, exactly so, and others do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What it says.
    pub record: Described,
    /// Nodes that have it.
    pub present_on: Vec<NodeId>,
    /// Nodes that do not, or have it otherwise.
    pub absent_on: Vec<NodeId>,
}

/// A record in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Described {
    /// Of its key and its value.
    pub hash: u64,
    /// What it defines.
    pub kind: String,
    /// Its fields.
    pub fields: BTreeMap<String, String>,
    /// Raw entries of a field table, where it has arguments.
    pub arguments: Option<Vec<u8>>,
}

/// How the nodes' tables compare.
#[derive(Clone, Debug)]
pub struct TableDiff {
    /// What each node answered; none if it did not.
    pub nodes: BTreeMap<NodeId, Option<TableDigest>>,
    /// Whether all tables are equal; none if that is not known.
    pub equal: Option<bool>,
    /// What they differ in.
    pub differences: Vec<Difference>,
    /// There may be more differences.
    pub more: bool,
}

/// Sums and counts of a table's parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sums {
    index: u64,
    sums: Vec<(u64, u64)>,
}

/// Hashes of the records of some parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hashes {
    index: u64,
    hashes: BTreeSet<u64>,
}

trait Indexed {
    fn index(&self) -> u64;
}

impl Indexed for TableDigest {
    fn index(&self) -> u64 {
        self.index
    }
}

impl Indexed for Sums {
    fn index(&self) -> u64 {
        self.index
    }
}

impl Indexed for Hashes {
    fn index(&self) -> u64 {
        self.index
    }
}

type Answers<T> = BTreeMap<NodeId, T>;

impl Node {
    /// Compares the tables of all nodes. Nodes that are silent for the deadline are named as such.
    pub async fn table_diff(self: &Arc<Self>, deadline: Duration) -> TableDiff {
        let started = Instant::now();
        let mut diff = TableDiff {
            nodes: BTreeMap::new(),
            equal: None,
            differences: Vec::new(),
            more: false,
        };
        let everybody: Vec<NodeId> = {
            let table = self.metadata().table().read();
            table.nodes().map(|known| known.id).collect()
        };
        diff.nodes.extend(everybody.iter().map(|id| (*id, None)));
        let question = Question::Digest;
        let mut digests: Answers<TableDigest> = self
            .of_nodes(&everybody, &question, started + deadline)
            .await;
        while !at_one_index(&digests) && started.elapsed() < AGREE_DEADLINE {
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
            let answered: Vec<NodeId> = digests.keys().copied().collect();
            let again = self
                .of_nodes(&answered, &question, started + deadline)
                .await;
            digests.extend(again);
        }
        let silent = digests.len() < everybody.len();
        let compared = at_one_index(&digests).then(|| are_equal(&digests));
        diff.nodes
            .extend(digests.iter().map(|(id, said)| (*id, Some(said.clone()))));
        match compared {
            Some(true) => diff.equal = (!silent).then_some(true),
            Some(false) => {
                diff.equal = Some(false);
                let nodes: Vec<NodeId> = digests.into_keys().collect();
                (diff.differences, diff.more) = self.differences(&nodes).await;
            }
            None => {}
        }
        diff
    }

    /// What these nodes' tables differ in, and whether there may be more.
    async fn differences(self: &Arc<Self>, nodes: &[NodeId]) -> (Vec<Difference>, bool) {
        let until = Instant::now() + PASSES_DEADLINE;
        loop {
            let sums: Answers<Sums> = self.of_nodes(nodes, &Question::Sums, until).await;
            let (buckets, more) = differing_parts(&sums);
            let question = Question::Hashes { buckets };
            let hashes: Answers<Hashes> = self.of_nodes(nodes, &question, until).await;
            let complete = sums.len() == nodes.len() && hashes.len() == nodes.len();
            let before = sums.values().map(Indexed::index).next();
            let after = hashes.values().map(Indexed::index).next();
            if complete && at_one_index(&sums) && at_one_index(&hashes) && before == after {
                let found = holders(&hashes);
                let more = more || found.len() > DIFFERENCES_MAX;
                return self.describe(nodes, found, until, more).await;
            }
            if !complete || Instant::now() >= until {
                return (Vec::new(), true);
            }
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    }

    async fn describe(
        self: &Arc<Self>,
        nodes: &[NodeId],
        found: BTreeMap<u64, Vec<NodeId>>,
        until: Instant,
        mut more: bool,
    ) -> (Vec<Difference>, bool) {
        let found: BTreeMap<_, _> = found.into_iter().take(DIFFERENCES_MAX).collect();
        let mut described: BTreeMap<u64, Described> = BTreeMap::new();
        for node in nodes {
            let of_node = found.iter().filter(|(_, on)| on.first() == Some(node));
            let hashes: BTreeSet<u64> = of_node.map(|(hash, _)| *hash).collect();
            if hashes.is_empty() {
                continue;
            }
            let question = Question::Describe { hashes };
            let answer: Option<Vec<Described>> = self.ask(*node, &question, until).await;
            described.extend(answer.unwrap_or_default().into_iter().map(|d| (d.hash, d)));
        }
        let mut differences = Vec::new();
        for (hash, present_on) in found {
            // One that has gone meanwhile cannot be told any more.
            let Some(record) = described.remove(&hash) else {
                more = true;
                continue;
            };
            let lacks = |node: &&NodeId| !present_on.contains(*node);
            let absent_on = nodes.iter().filter(lacks).copied().collect();
            differences.push(Difference {
                record,
                present_on,
                absent_on,
            });
        }
        differences.sort_by(|a, b| {
            let key = |d: &Difference| (d.record.kind.clone(), d.record.fields.clone());
            key(a).cmp(&key(b))
        });
        (differences, more)
    }

    async fn of_nodes<T: DeserializeOwned>(
        self: &Arc<Self>,
        nodes: &[NodeId],
        question: &Question,
        until: Instant,
    ) -> Answers<T> {
        let asked = nodes.iter().map(|node| self.ask(*node, question, until));
        let answers = futures::future::join_all(asked).await;
        let all = nodes.iter().copied().zip(answers);
        all.filter_map(|(node, answer)| Some((node, answer?)))
            .collect()
    }

    /// Looks through the table where that holds up nobody.
    pub(crate) async fn look_through<T: Send + 'static>(
        self: &Arc<Self>,
        look: impl FnOnce(&Table) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let node = self.clone();
        self.in_background(move || {
            let found = look(&node.metadata().table().read());
            // Who asked may have gone.
            drop(sender.send(found));
        });
        receiver.await.ok()
    }
}

fn at_one_index<T: Indexed>(answers: &Answers<T>) -> bool {
    let mut all = answers.values().map(Indexed::index);
    let first = all.next();
    all.all(|index| Some(index) == first)
}

fn are_equal(digests: &Answers<TableDigest>) -> bool {
    let mut all = digests.values().map(|said| &said.digest);
    let first = all.next();
    all.all(|digest| Some(digest) == first)
}

pub(crate) fn digest(table: &Table) -> TableDigest {
    TableDigest {
        index: table.index(),
        digest: table.digest().to_vec(),
    }
}

fn hash(key: &[u8], value: &[u8]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(&(key.len() as u64).to_le_bytes())
        .update(key)
        .update(value);
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

fn part(hash: u64) -> u16 {
    (hash % BUCKETS as u64) as u16
}

pub(crate) fn sums(table: &Table) -> Sums {
    let mut sums = vec![(0u64, 0u64); BUCKETS];
    for (key, value) in table.records() {
        let hash = hash(&key, &value);
        let (sum, count) = &mut sums[usize::from(part(hash))];
        *sum = sum.wrapping_add(hash);
        *count += 1;
    }
    let index = table.index();
    Sums { index, sums }
}

/// The parts in which not all are equal, as many as an answer takes, and whether there are more.
fn differing_parts(all: &Answers<Sums>) -> (BTreeSet<u16>, bool) {
    let (mut parts, mut records) = (BTreeSet::new(), 0);
    for part in 0..BUCKETS {
        let mut of_nodes = all.values().map(|said| said.sums.get(part));
        let first = of_nodes.next();
        if of_nodes.all(|sum| Some(sum) == first) {
            continue;
        }
        let counts = all
            .values()
            .filter_map(|said| said.sums.get(part).map(|(_, count)| *count));
        records += counts.max().unwrap_or(0);
        if records > HASHES_MAX && !parts.is_empty() {
            return (parts, true);
        }
        parts.insert(part as u16);
    }
    (parts, false)
}

pub(crate) fn hashes(table: &Table, buckets: &BTreeSet<u16>) -> Hashes {
    let all = table.records().map(|(key, value)| hash(&key, &value));
    Hashes {
        index: table.index(),
        hashes: all.filter(|hash| buckets.contains(&part(*hash))).collect(),
    }
}

/// Who has each of the records that not all have.
fn holders(all: &Answers<Hashes>) -> BTreeMap<u64, Vec<NodeId>> {
    let mut on: BTreeMap<u64, Vec<NodeId>> = BTreeMap::new();
    for (node, said) in all {
        for hash in &said.hashes {
            on.entry(*hash).or_default().push(*node);
        }
    }
    on.retain(|_, nodes| nodes.len() < all.len());
    on
}

pub(crate) fn describe(table: &Table, hashes: &BTreeSet<u64>) -> Vec<Described> {
    let chosen = table.records().filter_map(|(key, value)| {
        let hash = hash(&key, &value);
        hashes.contains(&hash).then_some((hash, key, value))
    });
    let described = chosen.map(|(hash, key, value)| match describe_record(&key, &value) {
        Ok(said) => Described {
            hash,
            kind: said.kind.to_owned(),
            fields: said
                .fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            arguments: said.arguments,
        },
        Err(error) => Described {
            hash,
            kind: "damaged".to_owned(),
            fields: BTreeMap::from([("error".to_owned(), error.to_string())]),
            arguments: None,
        },
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_model::Command;
    use warren_routing::Applied;

    fn table(vhosts: &[String]) -> Table {
        let mut table = Table::new();
        let found = Command::FoundCluster {
            cluster: 1,
            shards: 1,
        };
        let put = vhosts
            .iter()
            .map(|name| Command::PutVhost { name: name.clone() });
        let commands: Vec<Command> = std::iter::once(found).chain(put).collect();
        table.apply(1, &commands, &mut Applied::default());
        table
    }

    fn of<T>(tables: &[Table], ask: impl Fn(&Table) -> T) -> Answers<T> {
        (1..).map(NodeId).zip(tables.iter().map(ask)).collect()
    }

    #[test]
    fn tables_that_differ_in_one_virtual_host_are_told_apart_by_it() {
        let names: Vec<String> = (0..200).map(|n| format!("v{n}")).collect();
        let tables = [table(&names), table(&names[..199]), table(&names)];
        assert!(at_one_index(&of(&tables, digest)) && !are_equal(&of(&tables, digest)));
        assert!(are_equal(&of(&tables[..1], digest)));
        let (parts, more) = differing_parts(&of(&tables, sums));
        assert!((1..=8).contains(&parts.len()) && !more, "{parts:?}");
        let found = holders(&of(&tables, |table| hashes(table, &parts)));
        // A virtual host comes with seven exchanges, of which one has no name.
        let here = vec![NodeId(1), NodeId(3)];
        assert!(found.values().all(|nodes| *nodes == here), "{found:?}");
        let wanted: BTreeSet<u64> = found.into_keys().collect();
        let described = describe(&tables[0], &wanted);
        assert_eq!(described.len(), wanted.len());
        let vhost = described.iter().find(|one| one.kind == "vhost").unwrap();
        assert_eq!(vhost.fields["name"], "v199");
        let mut others = described.iter().filter(|one| one.kind != "vhost");
        assert!(others.all(|one| one.kind == "exchange" && one.fields["vhost"] == "v199"));
        assert!(describe(&tables[1], &wanted).is_empty());
    }

    #[test]
    fn equal_tables_have_no_differing_part_and_unequal_indexes_are_seen() {
        let tables = [table(&[]), table(&[])];
        assert!(are_equal(&of(&tables, digest)));
        assert_eq!(
            differing_parts(&of(&tables, sums)),
            (BTreeSet::new(), false)
        );
        let mut later = table(&[]);
        later.apply(2, &[], &mut Applied::default());
        assert!(!at_one_index(&of(&[table(&[]), later], digest)));
    }

    #[test]
    fn tables_with_nothing_in_common_are_compared_as_far_as_an_answer_goes() {
        let names = |tag: &str| (0..4000).map(|n| format!("{tag}{n}")).collect::<Vec<_>>();
        let tables = [table(&names("a")), table(&names("b"))];
        let (parts, more) = differing_parts(&of(&tables, sums));
        assert!(more && !parts.is_empty() && parts.len() < BUCKETS);
        let said = of(&tables, |table| hashes(table, &parts));
        let most = said.values().map(|said| said.hashes.len() as u64).max();
        assert!(most.is_some_and(|most| most > HASHES_MAX / 2 && most <= HASHES_MAX));
    }
}
