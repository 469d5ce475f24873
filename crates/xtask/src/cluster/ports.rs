//! Whether a node's ports are free, and who has them if not.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::nodes::Node;
use crate::run::{EX_UNAVAILABLE, Stop};

/// How long ports may still be held by a node that has just been killed: a process counts as ended when its first thread has, before the others have let go of its sockets.
const LET_GO: Duration = Duration::from_secs(2);

/// An error that names the first port that stays taken, and by whom as far as that can be seen.
pub fn must_be_free(nodes: &[&Node]) -> Result<()> {
    let until = Instant::now() + LET_GO;
    loop {
        match are_free(nodes) {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            verdict => return verdict,
        }
    }
}

fn are_free(nodes: &[&Node]) -> Result<()> {
    for node in nodes {
        let tcp = |address: SocketAddr| TcpListener::bind(address).map(drop);
        let ports = [
            ("AMQP", node.amqp, "tcp", tcp(node.amqp)),
            ("HTTP", node.http, "tcp", tcp(node.http)),
            (
                "cluster",
                node.cluster,
                "udp",
                UdpSocket::bind(node.cluster).map(drop),
            ),
        ];
        for (what, address, protocol, bound) in ports {
            let Err(error) = bound else { continue };
            let why = if error.kind() == ErrorKind::AddrInUse {
                let holder = holder(address.port(), protocol);
                format!(
                    "is taken by {}",
                    holder.as_deref().unwrap_or("another program")
                )
            } else {
                format!("cannot be used: {error}")
            };
            let text = format!(
                "{}'s {what} address {address} ({protocol}) {why}; end that program, or change {}",
                node.name,
                node.config.display()
            );
            return Err(Stop::error(EX_UNAVAILABLE, text));
        }
    }
    Ok(())
}

/// The process that listens on a port, as far as `/proc` shows it to this user.
fn holder(port: u16, protocol: &str) -> Option<String> {
    let tables = [
        format!("/proc/net/{protocol}"),
        format!("/proc/net/{protocol}6"),
    ];
    let sockets: Vec<String> = tables
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| inodes(&table, port, protocol))
        .collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    for process in processes.filter(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .bytes()
            .all(|byte| byte.is_ascii_digit())
    }) {
        let files = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        let has = |link: std::path::PathBuf| {
            sockets
                .iter()
                .any(|inode| link.to_string_lossy() == format!("socket:[{inode}]"))
        };
        if files
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(has)
        {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            return Some(format!(
                "process {} ({})",
                process.file_name().to_string_lossy(),
                line.trim().chars().take(120).collect::<String>()
            ));
        }
    }
    None
}

/// The socket inodes that a `/proc/net/{tcp,udp}` table has for a port: listening ones for TCP, all for UDP.
fn inodes(table: &str, port: u16, protocol: &str) -> Vec<String> {
    const LISTEN: &str = "0A";
    let wanted = format!(":{port:04X}");
    let rows = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|fields| {
        fields.get(1).is_some_and(|local| local.ends_with(&wanted))
            && (protocol == "udp" || fields.get(3).is_some_and(|state| *state == LISTEN))
    });
    ours.filter_map(|fields| fields.get(9).map(ToString::to_string))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn whoever_has_a_port_is_named() {
        let own = format!("process {} (", std::process::id());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = holder(listener.local_addr().unwrap().port(), "tcp").unwrap();
        assert!(found.starts_with(&own), "{found}");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let found = holder(socket.local_addr().unwrap().port(), "udp").unwrap();
        assert!(found.starts_with(&own), "{found}");
    }

    #[test]
    fn a_taken_port_stops_the_start_and_a_free_one_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let node = |amqp| Node {
            number: 1,
            name: "node1".to_owned(),
            config: "c.toml".into(),
            data: "d".into(),
            amqp,
            http: any,
            cluster: any,
        };
        let text = must_be_free(&[&node(taken)]).unwrap_err().to_string();
        assert!(
            text.starts_with(&format!(
                "node1's AMQP address {taken} (tcp) is taken by process "
            )),
            "{text}"
        );
        assert!(must_be_free(&[&node(any)]).is_ok());
        let letting_go = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(listener);
        });
        assert!(must_be_free(&[&node(taken)]).is_ok(), "it is let go of");
        letting_go.join().unwrap();
    }
}
