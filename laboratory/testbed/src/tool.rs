//! Other bonding tools, started by a command of the user.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, ensure};
use hawser_netem::scenario::{Direction, Network, Scenario};
use hawser_units::Duration;
use serde::Serialize;

use crate::world::{HUB, SERVER, World};

/// A tool that uses several networks, and how to start it.
///
/// `COMMAND hub` and `COMMAND client` run in the namespaces of hub and client until they are
/// killed. The client has a route to the hub over each network, and one for each of its addresses
/// as a source, but no route to the server: the tool creates it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tool {
    /// Name in results.
    pub name: String,
    /// Shell command.
    pub command: String,
    /// Output of `COMMAND version`, if it was run.
    pub version: Option<String>,
}

/// A tool of a directory that cannot run on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Name of the tool.
    pub name: String,
    /// Output of the tool.
    pub why: String,
}

/// The text is not `NAME=COMMAND`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("write NAME=COMMAND, with a name of 1 to 15 letters, digits, `-` or `_`")]
pub struct ToolError;

impl FromStr for Tool {
    type Err = ToolError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, command) = text.split_once('=').ok_or(ToolError)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !(1..=15).contains(&name.len()) || !name.chars().all(is_plain) || command.trim().is_empty() {
            return Err(ToolError);
        }
        Ok(Self {
            name: name.to_owned(),
            command: command.trim().to_owned(),
            version: None,
        })
    }
}

impl Tool {
    /// Returns the programs of a directory by name, with their versions: `FILE version` prints one
    /// line, or fails with one line that names the missing dependency.
    ///
    /// # Errors
    /// When the directory cannot be read, or a program in it has an invalid name.
    pub fn all_of(directory: &Path) -> anyhow::Result<(Vec<Self>, Vec<LeftOut>)> {
        let cannot = || format!("cannot read {}", directory.display());
        let directory = directory.canonicalize().with_context(cannot)?;
        let entries = std::fs::read_dir(&directory).with_context(cannot)?;
        let mut paths = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
            .with_context(cannot)?;
        paths.sort();
        let (mut tools, mut left_out) = (Vec::new(), Vec::new());
        for path in paths {
            let is_program = |of: std::fs::Metadata| of.is_file() && of.permissions().mode() & 0o111 != 0;
            if !path.metadata().is_ok_and(is_program) {
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let command = format!("'{}'", path.display().to_string().replace('\'', "'\\''"));
            let mut tool: Self = format!("{name}={command}")
                .parse()
                .with_context(|| path.display().to_string())?;
            match version(&path) {
                Ok(said) => {
                    tool.version = Some(said);
                    tools.push(tool);
                }
                Err(error) => left_out.push(LeftOut {
                    name: tool.name,
                    why: format!("{error:#}"),
                }),
            }
        }
        Ok((tools, left_out))
    }

    /// Returns the environment of both ends; lists are separated by spaces, in the order of the
    /// networks.
    pub(crate) fn environment(
        scenario: &Scenario,
        world: &World,
        directory: &Path,
    ) -> Vec<(&'static str, String)> {
        let addresses = world.network_addresses();
        let best = best(scenario);
        let list = |n: usize| {
            addresses
                .iter()
                .map(|network| network[n].as_str())
                .collect::<Vec<_>>()
                .join(" ")
        };
        vec![
            ("LAB_NETWORKS", list(0)),
            ("LAB_ADDRESSES", list(1)),
            ("LAB_GATEWAYS", list(2)),
            ("LAB_BEST", addresses[best][0].clone()),
            ("LAB_BEST_GATEWAY", addresses[best][2].clone()),
            ("LAB_HUB", HUB.to_string()),
            ("LAB_SERVER", SERVER.to_string()),
            ("LAB_DIR", directory.display().to_string()),
        ]
    }
}

/// Returns the output of `COMMAND version`.
fn version(program: &Path) -> anyhow::Result<String> {
    let asked = Command::new(program).arg("version").stdin(Stdio::null()).output();
    let asked = asked.with_context(|| format!("cannot run {}", program.display()))?;
    let line = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.lines().next().unwrap_or_default().trim().to_owned()
    };
    let said = line(&asked.stdout);
    ensure!(
        asked.status.success(),
        "{} ({})",
        line(&asked.stderr),
        asked.status
    );
    ensure!(!said.is_empty(), "it says no version");
    Ok(said)
}

/// Returns the network with the highest mean rate for the bulk transfer; among equal ones, that
/// with the shortest delay.
fn best(scenario: &Scenario) -> usize {
    let direction = scenario.bulk_direction();
    let key = |network: &Network| {
        let links = network.links.as_ref();
        let rate = links.map_or(u64::MAX, |links| {
            let link = match direction {
                Direction::Down => &links.down,
                Direction::Up => &links.up,
            };
            link.capacity.mean().map_or(u64::MAX, |rate| rate.as_bps())
        });
        let delay = links.map_or(Duration::ZERO, |links| links.down.delay + links.up.delay);
        (rate, std::cmp::Reverse(delay))
    };
    // Among networks equal in all, the first.
    let all = scenario.networks.iter().map(key).enumerate().rev();
    all.max_by_key(|(_, key)| *key).map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_a_directory_say_their_version_or_are_left_out() {
        let directory = std::env::temp_dir().join(format!("hawser-tools-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let write = |name: &str, text: &str, mode: u32| {
            let path = directory.join(name);
            std::fs::write(&path, text).expect("a file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        };
        write("b", "#!/bin/sh\necho \"b 2.1\"\n", 0o755);
        write("a", "#!/bin/sh\necho \"no a here\" >&2\nexit 1\n", 0o755);
        write("notes", "no program", 0o644);
        let found = Tool::all_of(&directory);
        std::fs::remove_dir_all(&directory).expect("it was there");
        let (tools, left_out) = found.expect("readable");
        assert_eq!(tools.len(), 1);
        assert_eq!(
            (tools[0].name.as_str(), tools[0].version.as_deref()),
            ("b", Some("b 2.1"))
        );
        assert_eq!(left_out.len(), 1);
        assert!(left_out[0].why.starts_with("no a here"), "{left_out:?}");
        assert!(Tool::all_of(&directory).is_err(), "it is gone");
    }

    #[test]
    fn the_best_network_is_the_fastest_and_then_the_nearest() {
        let of = |delays: [u32; 3]| {
            let network = |(n, delay)| {
                let rate = if n == 0 { 5 } else { 20 };
                format!(
                    "[[network]]\nname = \"n{n}\"\ndown = {{ rate = \"{rate}mbit\", delay = \"{delay}ms\" }}\n"
                )
            };
            let networks: String = delays.iter().enumerate().map(network).collect();
            let text = format!(
                "name = \"b\"\nduration = \"1s\"\nvia = \"hub\"\n{networks}[[workload]]\nkind = \"tcp\"\n"
            );
            best(&Scenario::parse(&text, Path::new("b"), &[], &mut |_| Ok(Vec::new())).expect("legal"))
        };
        assert_eq!(of([1, 20, 10]), 2);
        assert_eq!(of([1, 10, 20]), 1);
        assert_eq!(of([1, 10, 10]), 1);
    }

    #[test]
    fn a_tool_is_a_name_and_a_command() {
        let tool: Tool = "ecmp=./ecmp --policy=1".parse().expect("a tool");
        assert_eq!(
            (tool.name.as_str(), tool.command.as_str()),
            ("ecmp", "./ecmp --policy=1")
        );
        for wrong in ["ecmp", "=x", "e cmp=x", "ecmp= ", "sixteen-letters-x=y"] {
            assert_eq!(wrong.parse::<Tool>(), Err(ToolError), "{wrong}");
        }
    }
}
