//! `hawser dashboard`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use hawser_config::identity::random;
use hawser_host::administration::{self, Certificate, Passwords};
use hawser_host::dashboard;
use hawser_host::run_dir::{self, Role};
use hawser_linux::confine::Duty;
use hawser_terminal::{say, unknown};

use crate::directories::{DaemonArgs, Directories, confine};
use crate::logs::LogArgs;
use crate::runtime::runtime;

/// Shows the daemon in a browser: networks, rates over time, and flows with their paths and the
/// reasons.
///
/// Serves a page on this machine until Ctrl-C. The printed address contains a key after its #. With
/// the key, the page can pause and cap networks, and change schedulers and rules. Without it, the
/// page only displays the status. The page is reachable from this machine only. From another
/// machine, run ssh -L 9468:127.0.0.1:9468 root@MACHINE, then open the same address there.
///
/// On a gateway, `dashboard = { listen = "lan" }` in client.toml serves a page to the devices
/// behind it, at https://hawser.local. It has a password, which the first visitor sets with the
/// code that `hawser dashboard code` prints.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DashboardArgs {
    #[command(subcommand)]
    command: Option<DashboardCommand>,
    #[command(flatten)]
    local: LocalArgs,
}

#[derive(Debug, clap::Subcommand)]
enum DashboardCommand {
    /// Prints the code with which the first visitor sets the password of the page for the LAN, and
    /// the fingerprint of its certificate.
    Code(ConfigArgs),
    /// Removes the password of the page for the LAN, ends all its sessions, and prints a code to
    /// set a new password.
    ResetPassword(ConfigArgs),
    /// Serves the LAN's page; the daemon runs it.
    #[command(hide = true)]
    Serve(ServeArgs),
}

#[derive(Debug, clap::Args)]
struct ServeArgs {
    #[command(flatten)]
    directories: Directories,
    #[command(flatten)]
    logs: LogArgs,
}

#[derive(Debug, clap::Args)]
struct ConfigArgs {
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct LocalArgs {
    /// Loopback address to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9468")]
    listen: SocketAddr,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn run(args: &DashboardArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        None => show(&args.local),
        Some(DashboardCommand::Code(place)) => code(&place.directories.dir, false),
        Some(DashboardCommand::ResetPassword(place)) => code(&place.directories.dir, true),
        Some(DashboardCommand::Serve(args)) => serve(args),
    }
}

/// Prints a code; with `resets`, the code replaces an existing password.
fn code(dir: &Path, resets: bool) -> anyhow::Result<ExitCode> {
    let passwords = Passwords::new(dir);
    let code = if resets {
        Some(passwords.reset()?)
    } else {
        passwords.code()?
    };
    let Some(code) = code else {
        return Ok(unknown(
            "the page already has a password: `sudo hawser dashboard reset-password` removes it",
        ));
    };
    say!("{}-{}", &code[..4], &code[4..])?;
    say!("Open https://hawser.local on a device of the LAN, and set a password with this code.")?;
    if let Some(certificate) = Certificate::load(dir) {
        say!(
            "The browser warns that the certificate is unknown. Compare its SHA-256 fingerprint with this one:"
        )?;
        say!("{}", certificate.fingerprint())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let directories = &args.directories;
    args.logs.start()?;
    let run_dir = directories.run_dir(Role::Client);
    confine(Duty::Page, &directories.dir, &run_dir)?;
    let served = administration::serve(run_dir::socket(&run_dir), directories.dir.clone());
    runtime()?.block_on(served)?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &LocalArgs) -> anyhow::Result<ExitCode> {
    let socket = args.daemon.socket()?;
    runtime()?.block_on(async {
        let token: [u8; 16] = random();
        let token: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
        let served = dashboard::Served {
            socket,
            dir: args.daemon.directories.dir.clone(),
            token: token.clone(),
        };
        let at = dashboard::serve(args.listen, served).await?;
        // Print the numeric address: `localhost` is also [::1], where another user may listen on
        // the same port and receive the token.
        say!("http://{at}/#{token} (Ctrl-C ends it)")?;
        tokio::signal::ctrl_c().await?;
        anyhow::Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
