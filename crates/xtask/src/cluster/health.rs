//! Waiting until nodes route, with each node's own reason while it does not.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use base64::Engine as _;
use serde_json::Value;

use super::interrupt::Interrupt;
use super::nodes::Node;
use super::process::{Started, log_tail};

/// A first start makes the cluster, elects leaders and may share two cores with a build.
const DEADLINE: Duration = Duration::from_secs(90);
const REQUEST: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// How often an unchanged reason is said again.
const REMINDER: Duration = Duration::from_secs(10);

/// Waits until every node says that it routes. Fails with the end of the log when one of `children` ends, or when time is up.
pub fn wait(nodes: &[&Node], children: &mut [Started], interrupt: &Interrupt) -> Result<()> {
    let begin = Instant::now();
    let mut said: Vec<Option<(String, Instant)>> = nodes.iter().map(|_| None).collect();
    let mut ready = vec![false; nodes.len()];
    loop {
        interrupt.check()?;
        for ((node, said), ready) in nodes.iter().zip(&mut said).zip(&mut ready) {
            if *ready {
                continue;
            }
            let child = children
                .iter_mut()
                .find(|child| child.number == node.number);
            if let Some(status) = child.map(Started::ended).transpose()?.flatten() {
                bail!(
                    "{} ended ({status}); the end of {}:\n{}",
                    node.name,
                    node.log_file().display(),
                    log_tail(node)
                );
            }
            match state(node) {
                Ok(()) => {
                    *ready = true;
                    println!(
                        "{} routes after {:.1} s",
                        node.name,
                        begin.elapsed().as_secs_f64()
                    );
                }
                Err(reason) => {
                    let new = said
                        .as_ref()
                        .is_none_or(|(last, at)| *last != reason || at.elapsed() > REMINDER);
                    if new {
                        println!("{} does not route yet: {reason}", node.name);
                        *said = Some((reason, Instant::now()));
                    }
                }
            }
        }
        if ready.iter().all(|ready| *ready) {
            return Ok(());
        }
        if begin.elapsed() > DEADLINE {
            let late: Vec<&&Node> = nodes
                .iter()
                .zip(&ready)
                .filter(|(_, ready)| !**ready)
                .map(|(node, _)| node)
                .collect();
            let tails: String = late
                .iter()
                .map(|node| {
                    format!(
                        "the end of {}:\n{}",
                        node.log_file().display(),
                        log_tail(node)
                    )
                })
                .collect();
            bail!(
                "not all nodes route within {} s; {tails}",
                DEADLINE.as_secs()
            );
        }
        std::thread::sleep(PAUSE);
    }
}

fn state(node: &Node) -> Result<(), String> {
    match get(node.http, "/api/health") {
        Ok((200, _)) => Ok(()),
        Ok((status, body)) => {
            Err(reason(&body).unwrap_or_else(|| format!("its health is {status}")))
        }
        Err(_) => Err("it does not answer HTTP yet".to_owned()),
    }
}

fn reason(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    body.get("reason")?.as_str().map(str::to_owned)
}

/// Status and body of a `GET` as guest.
pub fn get(http: SocketAddr, path: &str) -> Result<(u16, String)> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(REQUEST))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into();
    let secret = base64::engine::general_purpose::STANDARD.encode("guest:guest");
    let mut response = agent
        .get(format!("http://{http}{path}"))
        .header("Authorization", format!("Basic {secret}"))
        .call()?;
    Ok((
        response.status().as_u16(),
        response.body_mut().read_to_string()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_reason_is_shown() {
        assert_eq!(
            reason(r#"{"status":"failed","reason":"no leader"}"#),
            Some("no leader".to_owned())
        );
        assert_eq!(reason("<html>"), None);
    }
}
