//! Common parts of the commands about other machines (`hawser hub`, `hawser peer`): names,
//! addresses, results.

use hawser_config::Span;
use hawser_config::invitation::HubAddress;
use hawser_terminal::say;
use serde_json::Value;

use crate::directories::Directories;

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Prints the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) directories: Directories,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NameArgs {
    /// Name of the client, peer or device.
    pub(crate) name: String,
    /// Prints the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) directories: Directories,
}

pub(crate) fn address(text: &str) -> Result<HubAddress, String> {
    text.parse()
        .map_err(|_| "HOST:PORT, such as host.example.org:443".to_owned())
}

pub(crate) fn span(text: &str) -> Result<Span, String> {
    text.parse()
        .map_err(|()| "a time with its unit (s, min, h, d), such as 7d".to_owned())
}

pub(crate) fn print(as_json: bool, json: impl FnOnce() -> Value, text: &str) -> anyhow::Result<()> {
    if as_json {
        say!("{}", json())
    } else {
        say!("{text}")
    }
}

/// Default validity of an invitation.
pub(crate) const LIFETIME: &str = "7d";
