//! A process tree of its own for the test: its own network, mounts and process ids.
//!
//! The program runs itself again under `unshare`. Network namespaces that are made inside have names that nobody else sees, and the kernel
//! ends all processes of the tree with its first one, and takes the namespaces away with the last: nothing can be left behind, not even
//! after a SIGKILL. It takes root, or a kernel that lets users make namespaces for themselves.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::interrupt::{EX_INTERRUPTED, Interrupt};

const TICK: Duration = Duration::from_millis(50);
/// How long the program inside may take to end after Ctrl-C.
const GRACE: Duration = Duration::from_secs(10);

/// The namespaces; `--kill-child` ends the tree when the outer process ends.
const OWN: [&str; 6] = [
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];
const AS_USER: [&str; 2] = ["--user", "--map-root-user"];

/// What came of the attempt to run inside.
pub enum Outcome {
    /// It ran there, and ended with this code.
    Ran(u8),
    /// It cannot, for this reason.
    Cannot(String),
}

/// Runs this program again inside, and waits for it.
pub fn enter() -> Result<Outcome> {
    let mut arguments: Vec<&str> = OWN.to_vec();
    if !nix::unistd::geteuid().is_root() {
        arguments.extend(AS_USER);
    }
    if let Err(reason) = attempt(&arguments) {
        return Ok(Outcome::Cannot(reason));
    }
    let interrupt = Interrupt::watch()?;
    let program = std::env::current_exe().context("cannot tell where this program itself is")?;
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare"])
        .args(&arguments)
        .arg(program)
        .args(std::env::args_os().skip(1))
        .arg("--inside")
        .spawn()
        .context("cannot run setpriv (package util-linux)")?;
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Ok(Outcome::Ran(code.unwrap_or(EX_INTERRUPTED)));
        }
        // Ctrl-C reaches the program inside too, which then stops its nodes; a signal to this process alone does not.
        if interrupt.came() && asked.get_or_insert_with(Instant::now).elapsed() > GRACE {
            child.kill()?;
        }
        std::thread::sleep(TICK);
    }
}

/// Tries what the network will need, in a tree that ends at once.
fn attempt(arguments: &[&str]) -> Result<(), String> {
    let probe = "mount -t tmpfs tmpfs /run && ip netns add probe && ip link add probe type bridge \
                 && ip link add probe-a type veth peer name probe-b netns probe";
    let output = Command::new("unshare")
        .args(arguments)
        .args(["sh", "-c", probe])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("unshare (package util-linux): {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().last().unwrap_or("unshare fails").to_owned())
}
