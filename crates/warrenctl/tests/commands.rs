//! The binary against a small HTTP server: what is asked, what is printed, which exit code a script sees.
#![allow(clippy::unwrap_used)]

use base64::Engine as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Prefix of the path, status, body.
type Answers = Vec<(&'static str, u16, &'static str)>;

/// A server on a free port that answers by path prefix, for as long as the test runs, and notes what it was asked.
struct Server {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// `answers`: prefix of the path, status, body; `{address}` in a body becomes this server's own.
    fn start(answers: impl Into<Answers>) -> Self {
        let answers = answers.into();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (own, log) = (address.clone(), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines: Vec<String> = BufReader::new(stream.try_clone().unwrap())
                    .lines()
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let Some(first) = lines.first() else { continue };
                let path = first.split(' ').nth(1).unwrap_or_default();
                log.lock().unwrap().push(lines.join("\n"));
                let (_, status, body) = answers
                    .iter()
                    .find(|(prefix, ..)| path.starts_with(prefix))
                    .unwrap_or(&("", 404, "{}"));
                let body = body.replace("{address}", &own);
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Self { address, requests }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        warrenctl(&[&["--url", &format!("http://{}", self.address)], arguments].concat())
    }

    fn asked(&self) -> String {
        self.requests.lock().unwrap().join("\n\n")
    }
}

fn warrenctl(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warrenctl"));
    for variable in ["WARREN_URL", "WARREN_USER", "WARREN_PASSWORD"] {
        command.env_remove(variable);
    }
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const CLUSTER: &str = r#"{"cluster":"warren","leader":2,"term":3,"level":2,"applied_index":17,"lease_held":true,"members":[
    {"name":"node1","node":1,"address":"127.0.0.1:7671","amqp":"127.0.0.1:5672","http":"{address}","up":true,"voter":true,"level":2,"draining":false,"shards_placed":16,"shards_led":9,"incarnation":1,"last_seen_ms":12},
    {"name":"node2","node":2,"address":"127.0.0.1:7672","amqp":"127.0.0.1:5673","http":"{address}","up":false,"voter":true,"level":null,"draining":true,"shards_placed":7,"shards_led":0,"incarnation":4,"last_seen_ms":90000}]}"#;

#[test]
fn cluster_status_shows_leader_and_nodes() {
    let server = Server::start([("/api/cluster", 200, CLUSTER)]);
    let output = server.run(&["cluster", "status"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        shown.starts_with(
            "cluster warren, leader node2, term 3, level 2, applied index 17, this node may route: yes\n"
        ),
        "{shown}"
    );
    let row: Vec<&str> = shown
        .lines()
        .find(|line| line.contains("node2") && line.contains("7672"))
        .map_or_else(Vec::new, |line| line.split_whitespace().collect());
    assert_eq!(
        row[..11],
        [
            "2",
            "node2",
            "no",
            "yes",
            "-",
            "yes",
            "7",
            "0",
            "4",
            "90000",
            "127.0.0.1:7672"
        ],
        "{shown}"
    );
    assert!(
        server
            .asked()
            .to_lowercase()
            .contains("authorization: basic z3vlc3q6z3vlc3q="),
        "{}",
        server.asked()
    );
}

#[test]
fn lists_take_a_virtual_host_and_print_json() {
    let server = Server::start([(
        "/api/queues/a%2Fb",
        200,
        r#"[{"vhost":"a/b","name":"q","messages":3,"node":"node1"}]"#,
    )]);
    let output = server.run(&["queue", "list", "--vhost", "a/b"]);
    let shown = text(&output.stdout);
    assert!(shown.starts_with("vhost  name  durable"), "{shown}");
    assert!(shown.contains("\na/b    q     -"), "{shown}");
    let output = server.run(&["queue", "list", "--vhost", "a/b", "--output", "json"]);
    assert!(
        text(&output.stdout).contains("\"messages\": 3"),
        "{}",
        text(&output.stdout)
    );
    // Without a virtual host the whole list is asked for, which this server does not have.
    assert_eq!(server.run(&["queue", "list"]).status.code(), Some(65));
}

#[test]
fn explain_encodes_what_it_asks() {
    let server = Server::start([(
        "/api/routing/explain",
        200,
        r#"{"ring_epoch":4,"queues":[{"name":"q","node":"node1"}]}"#,
    )]);
    let output = server.run(&[
        "routing",
        "explain",
        "amq.topic",
        "a b&c",
        "--header",
        "x=1",
        "--header",
        "y=a=b",
    ]);
    assert_eq!(
        text(&output.stdout),
        "ring_epoch  4\nqueues\n  name  node\n  q     node1\n"
    );
    let asked = server.asked();
    for part in [
        "vhost=%2F",
        "exchange=amq.topic",
        "key=a%20b%26c",
        "header=x%3D1",
        "header=y%3Da%3Db",
    ] {
        assert!(asked.contains(part), "{part} in {asked}");
    }
    assert_eq!(
        server
            .run(&["routing", "explain", "e", "k", "--header", "novalue"])
            .status
            .code(),
        Some(64)
    );
    // Whose publish it is, is not who asks.
    let other = ["routing", "explain", "e", "k", "--of-user", "alice"];
    server.run(&other);
    let asked = server.asked();
    assert!(asked.contains("user=alice"), "{asked}");
    assert!(!asked.contains(&base64_of("alice:guest")), "{asked}");
}

fn base64_of(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[test]
fn digest_asks_every_member_and_fails_when_one_cannot_be_asked() {
    let server = Server::start([
        ("/api/cluster", 200, CLUSTER),
        (
            "/api/routing/digest",
            200,
            r#"{"node":"n","applied_index":17,"digest":"abc","ring_epoch":2}"#,
        ),
    ]);
    let output = server.run(&["routing", "digest", "--output", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).starts_with("{\n  \"equal\": true,"),
        "{}",
        text(&output.stdout)
    );
    assert_eq!(server.asked().matches("GET /api/routing/digest").count(), 2);

    let broken = Server::start([
        ("/api/cluster", 200, CLUSTER),
        ("/api/routing/digest", 503, r#"{"reason":"catching up"}"#),
    ]);
    let output = broken.run(&["routing", "digest", "--wait", "0"]);
    assert_eq!(output.status.code(), Some(69));
    assert!(
        text(&output.stdout).contains("catching up"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn diff_shows_what_a_node_lacks_and_waits_for_equal_indices() {
    const DIFFER: &str = r#"{"equal":false,"nodes":[{"node":"node1","applied_index":17,"digest":"abc","error":null},
        {"node":"node2","applied_index":17,"digest":"abd","error":null}],
        "differences":[{"kind":"binding","object":{"source":"e"},"present_on":["node1"],"absent_on":["node2"]}]}"#;
    const APART: &str = r#"{"equal":null,"nodes":[{"node":"node1","applied_index":17,"digest":"abc","error":null},
        {"node":"node2","applied_index":18,"digest":"abd","error":null}],"differences":[]}"#;
    const SILENT: &str = r#"{"equal":null,"nodes":[{"node":"node1","applied_index":17,"digest":"abc","error":null},
        {"node":"node2","applied_index":null,"digest":null,"error":"it is down"}],"differences":[]}"#;
    for (answer, code, shown, asked) in [
        (DIFFER, 70, "node1       node2", 1..=1),
        (APART, 69, "no node has", 2..=30),
        (SILENT, 69, "it is down", 1..=1),
    ] {
        let server = Server::start([
            ("/api/routing/diff", 200, answer),
            ("/api/routing/digest", 200, "{}"),
        ]);
        let output = server.run(&["routing", "diff", "--wait", "1"]);
        let table = text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{table}");
        assert!(table.contains(shown), "{table}");
        let times = server.asked().matches("GET /api/routing/diff").count();
        assert!(asked.contains(&times), "{times}");
    }
}

#[test]
fn a_long_import_says_that_it_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("d.json");
    std::fs::write(&file, "{}").unwrap();
    let node = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while lines
            .next()
            .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
        {}
        // As long as it takes a large table to change.
        std::thread::sleep(Duration::from_millis(2500));
        let _ = write!(
            stream,
            "HTTP/1.1 200 X\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
        );
    });
    let file = file.to_str().unwrap();
    let output = warrenctl(&["--url", &url, "definitions", "import", file, "--yes"]);
    node.join().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("importing the definitions in") && said.contains("2 s so far"),
        "{said}"
    );
}

/// An address that takes connections and never answers, as a node that is stopped with SIGSTOP does.
fn hanging() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[test]
fn a_node_that_hangs_costs_its_deadline_and_no_more() {
    let (_held, address) = hanging();
    let url = format!("http://{address}");
    let begun = Instant::now();
    let output = warrenctl(&["--url", &url, "queue", "list"]);
    let took = begun.elapsed();
    assert_eq!(output.status.code(), Some(69));
    assert!(took < Duration::from_millis(3500), "{took:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("did not answer within 2.3 s") && said.contains("--deadline"),
        "{said}"
    );
    // Changes have more time, unless the command line says otherwise.
    for arguments in [["vhost", "list"], ["vhost", "declare"]] {
        let begun = Instant::now();
        let mut all = vec!["--url", &url, "--deadline", "0.2"];
        all.extend(arguments);
        all.extend((arguments[1] == "declare").then_some("v"));
        assert_eq!(warrenctl(&all).status.code(), Some(69));
        assert!(begun.elapsed() < Duration::from_secs(2), "{arguments:?}");
    }
}

#[test]
fn digest_asks_all_members_at_once_and_not_again_when_one_hangs() {
    let (_held, address) = hanging();
    let cluster = CLUSTER.replacen(
        "\"http\":\"{address}\"",
        &format!("\"http\":\"{address}\""),
        1,
    );
    let cluster = cluster.replace(
        "]}",
        &format!(",{{\"name\":\"node3\",\"node\":3,\"http\":\"{address}\",\"up\":true}}]}}"),
    );
    let digest = r#"{"node":"n","applied_index":17,"digest":"abc","ring_epoch":2}"#;
    let server = Server::start(vec![
        ("/api/cluster", 200, &*cluster.leak()),
        ("/api/routing/digest", 200, digest),
    ]);
    let begun = Instant::now();
    let output = server.run(&["routing", "digest", "--deadline", "1"]);
    let took = begun.elapsed();
    assert_eq!(output.status.code(), Some(69));
    assert!(took < Duration::from_millis(1900), "{took:?}");
    assert!(
        text(&output.stderr).contains("node1, node3"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn exit_codes_say_what_went_wrong() {
    let server = Server::start([
        (
            "/api/cluster",
            401,
            r#"{"error":"not_authorised","reason":"Login failed"}"#,
        ),
        ("/api/ring", 503, r#"{"reason":"no leader"}"#),
        ("/api/exchanges", 500, "{}"),
        ("/api/queues", 200, "<html>"),
        ("/api/bindings", 200, "{}"),
    ]);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["cluster", "status"], 77, "Login failed"),
        (&["ring", "show"], 69, "no leader"),
        (&["exchange", "list"], 70, "log says more"),
        (&["queue", "list"], 76, "did not answer with JSON"),
        (&["binding", "list"], 76, "did not answer with a list"),
        (&["binding", "list", "--bogus"], 64, "--bogus"),
    ];
    for (arguments, code, words) in cases {
        let output = server.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        assert!(
            text(&output.stderr).contains(words),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn an_address_without_a_node_is_unavailable_and_a_bad_one_is_configuration() {
    // A port that was just free and is closed again.
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let output = warrenctl(&["--url", &format!("http://{address}"), "cluster", "status"]);
    assert_eq!(output.status.code(), Some(69));
    assert!(
        text(&output.stderr).contains("is the node running?"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(
        warrenctl(&["--url", "https://127.0.0.1:1", "cluster", "status"])
            .status
            .code(),
        Some(78)
    );
    assert_eq!(warrenctl(&["--help"]).status.code(), Some(0));
}
