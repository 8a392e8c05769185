//! Other tools than Hawser as a way to carry a scenario, started by a command of the user's.

use std::path::Path;
use std::str::FromStr;

use crate::world::{HUB, SERVER, World};

/// A tool that uses several networks, and how to start it.
///
/// `COMMAND hub` and `COMMAND client` run in the namespaces of hub and client until they are
/// killed. The client has a route to the hub over each network, and one for each of its addresses
/// as a source, but none to the server: making that one is the tool's task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// What it is called in results.
    pub name: String,
    /// A command of the shell.
    pub command: String,
}

/// A tool that is not `NAME=COMMAND`.
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
        })
    }
}

impl Tool {
    /// What both sides are told; lists are separated by spaces, in the order of the networks.
    pub(crate) fn environment(&self, world: &World, directory: &Path) -> Vec<(&'static str, String)> {
        let places = world.places();
        let list = |n: usize| {
            places
                .iter()
                .map(|place| place[n].as_str())
                .collect::<Vec<_>>()
                .join(" ")
        };
        vec![
            ("LAB_NETWORKS", list(0)),
            ("LAB_ADDRESSES", list(1)),
            ("LAB_GATEWAYS", list(2)),
            ("LAB_HUB", HUB.to_string()),
            ("LAB_SERVER", SERVER.to_string()),
            ("LAB_DIR", directory.display().to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
