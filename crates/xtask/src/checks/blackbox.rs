//! The black-box tests: clients of several languages, driven by pytest, against the release binaries.
//!
//! pytest lives in a virtual environment in the target folder with the versions of `tests/requirements.txt`. The tests start their own
//! cluster through this very program, so what they need from the build is built here first.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::packages::{self, Need};
use crate::repository::Repository;
use crate::run;

/// Packages of which the tests run single programs: RabbitMQ's administration tool, and Prometheus.
const UNPACKED: [&str; 2] = ["rabbitmq-server", "prometheus"];

/// Runs pytest with these arguments.
pub fn run(repository: &Repository, arguments: &[String]) -> Result<()> {
    packages::ensure(&needs())?;
    repository.build(&[])?;
    let python = environment(repository)?;
    let unpacked = repository.target().join("packages");
    packages::unpack(&UNPACKED, &unpacked)?;
    let mut pytest = repository.command(&python);
    pytest
        .args(["-m", "pytest", "tests/blackbox"])
        .args(arguments)
        .env("WARREN_PACKAGES", &unpacked);
    for (variable, program) in [
        ("WARREN_BIN", "warren"),
        ("WARREN_XTASK", "xtask"),
        ("WARRENCTL", "warrenctl"),
    ] {
        pytest.env(variable, repository.binaries.join(program));
    }
    run::visibly(&mut pytest)
}

fn needs() -> Vec<Need> {
    let venv = run::quietly("python3", &["-c", "import venv, ensurepip"]).is_some();
    vec![
        Need {
            what: "Python with venv, for the tests",
            package: "python3-venv".to_owned(),
            present: venv,
        },
        Need::program("node", "nodejs", "Node.js, for its client"),
        Need::program("npm", "npm", "npm, for the client of Node.js"),
        Need::program(
            "javac",
            "default-jdk-headless",
            "a JDK, for the Java client",
        ),
        Need::package("librabbitmq-client-java", "the Java client"),
        Need::program("go", "golang-go", "Go, for its client"),
        Need::package("golang-github-rabbitmq-amqp091-go-dev", "the Go client"),
        Need::package("amqp-tools", "the C client"),
        Need::program("dpkg-deb", "dpkg", "dpkg, to unpack packages"),
    ]
}

/// The virtual environment's Python; made anew when the requirements have changed.
fn environment(repository: &Repository) -> Result<PathBuf> {
    let requirements = repository.root.join("tests/requirements.txt");
    let wanted = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let folder = repository.target().join("venv");
    let (python, stamp) = (
        folder.join("bin/python"),
        folder.join("requirements.installed"),
    );
    if python.is_file() && fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    run::visibly(
        repository
            .command("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&folder),
    )?;
    install(repository, &python, &requirements)?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}

fn install(repository: &Repository, python: &Path, requirements: &Path) -> Result<()> {
    let mut pip = repository.command(python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--requirement",
    ])
    .arg(requirements);
    run::visibly(&mut pip)
}
