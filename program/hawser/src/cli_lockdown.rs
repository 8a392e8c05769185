//! `hawser lockdown`.

use std::process::ExitCode;

use hawser_client::close_at_boot;
use hawser_host::run_dir::Role;
use hawser_terminal::say;
use serde_json::json;

use crate::directories::Directories;
use crate::runtime::runtime;

/// Enables the kill switch now, without starting the client, if client.toml has kill_switch = true.
///
/// For the boot, before any network is up: `systemctl enable hawser-lockdown`. From then on no
/// packet leaves outside the tunnel. `hawser up` takes the kill switch over, `hawser down` disables
/// it.
#[derive(Debug, clap::Args)]
pub(crate) struct LockdownArgs {
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: &LockdownArgs) -> anyhow::Result<ExitCode> {
    let is_closed = runtime()?.block_on(close_at_boot(
        &args.directories.dir,
        &args.directories.run_dir(Role::Client),
    ))?;
    if args.json {
        say!("{}", json!({ "version": 1, "closed": is_closed }))?;
    } else if is_closed {
        say!(
            "closed: no packet leaves outside the tunnel; `hawser up` starts the tunnel, `hawser down` disables the kill switch"
        )?;
    } else {
        say!("open: client.toml does not have kill_switch = true")?;
    }
    Ok(ExitCode::SUCCESS)
}
