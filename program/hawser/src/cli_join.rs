//! `hawser join`, `hawser leave`: other hubs of a client.

use std::process::ExitCode;

use hawser_client::hubs;
use hawser_config::invitation::Invitation;
use hawser_host::control_socket::{Request, ask, is_alive};
use serde_json::json;

use crate::directories::Directories;
use crate::guests::print;
use crate::runtime::runtime;
use crate::secrets::{Secret, invitation};

/// Joins another hub, which is used if the hub in use does not answer.
///
/// The first hub is joined by `hawser up`. A client uses the same hub while that answers. When
/// another hub takes over, existing connections end, because their public address changes. New
/// connections succeed within a second or two. `hawser status` shows the hubs.
#[derive(Debug, clap::Args)]
pub(crate) struct JoinArgs {
    /// The line that `hawser hub invite NAME` printed on that hub; - reads it from standard input,
    /// @FILE from a file. If it is not given, the command asks for it on the terminal.
    invitation: Option<Secret>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

/// Removes one of several hubs; if it is in use, the client changes to the first of the others.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaveArgs {
    /// A host or endpoint of the hub, as `hawser status` shows it.
    hub: String,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn join(args: &JoinArgs) -> anyhow::Result<ExitCode> {
    let invitation: Invitation = invitation(args.invitation.as_ref())?;
    runtime()?.block_on(hubs::join(&args.directories.dir, &invitation))?;
    let is_told = notify_running(&args.directories)?;
    let place = invitation.hub.endpoints.first().map(ToString::to_string);
    let place = place.unwrap_or_default();
    let when = if is_told { "now" } else { "at the next `hawser up`" };
    print(
        args.json,
        || json!({ "version": 1, "joined": place, "running": is_told }),
        &format!("{place} is joined in addition to the present hubs; the invitation is used {when}"),
    )?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn leave(args: &LeaveArgs) -> anyhow::Result<ExitCode> {
    hubs::leave(&args.directories.dir, &args.hub)?;
    notify_running(&args.directories)?;
    print(
        args.json,
        || json!({ "version": 1, "left": args.hub }),
        &format!(
            "{} is removed (on that hub, `hawser hub revoke` ends the enrolment)",
            args.hub
        ),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Notifies a running client; returns false if none is running.
fn notify_running(directories: &Directories) -> anyhow::Result<bool> {
    let socket = directories.client_socket();
    let is_running = is_alive(&socket);
    if is_running {
        ask(&socket, &Request::Reload)?;
    }
    Ok(is_running)
}
