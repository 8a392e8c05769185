//! `hawser dashboard`.

use std::net::SocketAddr;
use std::process::ExitCode;

use hawser_config::identity::random;
use hawser_host::dashboard;
use hawser_terminal::say;

use crate::directories::DaemonArgs;
use crate::runtime::runtime;

/// Shows the daemon in a browser: networks, rates over time, flows and why each goes where it goes.
///
/// Serves a page on this machine until Ctrl-C. Whoever opens the whole address that is printed can
/// pause and cap networks and change schedulers and rules too; without what follows its #, the page
/// only shows. Nobody else reaches it; from another machine: ssh -L 9468:127.0.0.1:9468
/// root@MACHINE, then open the same address there.
#[derive(Debug, clap::Args)]
pub(crate) struct DashboardArgs {
    /// Where to serve: an address of this machine alone.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9468")]
    listen: SocketAddr,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn run(args: &DashboardArgs) -> anyhow::Result<ExitCode> {
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
        // By address: `localhost` is also [::1], where another user may listen on the same port and
        // be handed the token.
        say!("http://{at}/#{token} (Ctrl-C ends it)")?;
        tokio::signal::ctrl_c().await?;
        anyhow::Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
