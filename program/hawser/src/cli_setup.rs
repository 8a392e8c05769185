//! `hawser hub setup`: from a fresh server to an invitation.

use std::io::{BufRead, IsTerminal, Write};
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use anyhow::{Context, bail};
use hawser_config::invitation::HubAddress;
use hawser_host::control_socket::is_alive;
use hawser_host::run_dir::{self, Role};
use hawser_hub::{self as hub, HubInit};
use hawser_linux::process::is_root;
use hawser_terminal::say;
use hawser_units::is_private;

use crate::directories::Directories;
use crate::firewall;
use crate::guests::{LIFETIME, address, span};

/// Sets up a hub on a fresh server: asks three questions, and prints an invitation.
///
/// Writes the key and the configuration, opens the hub's ports in an active firewall (ufw,
/// firewalld, nftables), starts the unit hawser-hub, and invites the first client. It may be run
/// again: an existing key and configuration are not changed.
#[derive(Debug, clap::Args)]
pub(crate) struct SetupArgs {
    /// Address of this machine for clients: public name or address, and UDP port.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    endpoint: Option<HubAddress>,
    /// The name of the first client.
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    /// Asks no questions: uses the proposed values for options that are not given.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: &SetupArgs) -> anyhow::Result<()> {
    if !is_root() {
        bail!("needs root to write /etc/hawser and to start a unit: run `sudo hawser hub setup`");
    }
    let asks = !args.yes && std::io::stdin().is_terminal();
    let dir = &args.directories.dir;
    if dir.join("hub.toml").exists() {
        say!(
            "there is a hub already in {}: its key and configuration are not changed",
            dir.display()
        )?;
    } else {
        let endpoint = endpoint(args, asks)?;
        let init = HubInit {
            endpoints: vec![endpoint],
            pool: None,
            pool6: None,
            nat: true,
            store: None,
        };
        say!("wrote {}", hub::init(dir, &init)?.display())?;
    }
    let ways = hub::admitted_ports(dir)?;
    for line in firewall::open(&ways)? {
        say!("{line}")?;
    }
    let is_running = start(&args.directories.run_dir(Role::Hub))?;
    let client = match &args.client {
        Some(name) => name.clone(),
        None if asks => ask("the name of the first client", FIRST)?,
        None => FIRST.to_owned(),
    };
    let lifetime = span(LIFETIME).map_err(anyhow::Error::msg)?;
    let invitation = hub::invite(dir, &client, lifetime.0, None)?.to_string();
    say!("\non {client}, within {LIFETIME}: sudo hawser up\nasks for the invitation: {invitation}")?;
    if std::io::stdout().is_terminal() {
        say!("{}", crate::qr::code(&invitation)?)?;
    }
    if !is_running {
        say!("first start the hub with `sudo hawser hub run` (this machine has no systemd unit hawser-hub)")?;
    }
    Ok(())
}

/// Returns the address of this machine for clients.
fn endpoint(args: &SetupArgs, asks: bool) -> anyhow::Result<HubAddress> {
    if let Some(endpoint) = &args.endpoint {
        return Ok(endpoint.clone());
    }
    let own = public_address();
    let host = match own {
        Some(own) if !asks => own.to_string(),
        None if !asks => bail!(
            "this machine has no public address of its own: give the address at which clients reach it, --endpoint HOST:PORT"
        ),
        own => {
            let own = own.map(|own| own.to_string()).unwrap_or_default();
            ask("the public name or address of this machine", &own)?
        }
    };
    // The answer may contain the port. An address of IPv6 alone contains none.
    if host.parse::<IpAddr>().is_err()
        && let Ok(with_port) = address(&host)
    {
        return Ok(with_port);
    }
    let port = if asks {
        ask("the UDP port", PORT)?
    } else {
        PORT.to_owned()
    };
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    address(&format!("{host}:{port}")).map_err(anyhow::Error::msg)
}

/// Returns this machine's source address towards the Internet, if it is a public one.
fn public_address() -> Option<IpAddr> {
    // Connecting sends no packet; it queries the routing table (RFC 5737, RFC 3849).
    let own = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let v4 = own("0.0.0.0:0", "203.0.113.1:9");
    let v6 = || own("[::]:0", "[2001:db8::1]:9");
    v4.filter(|ip| !is_private(*ip))
        .or_else(|| v6().filter(|ip| !is_private(*ip)))
}

/// Asks the person at the terminal; an empty answer accepts the proposed value.
fn ask(what: &str, proposal: &str) -> anyhow::Result<String> {
    let mut error = std::io::stderr();
    write!(error, "{what} [{proposal}]: ")?;
    error.flush()?;
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        bail!("no answer");
    }
    let answer = line.trim();
    let answer = if answer.is_empty() { proposal } else { answer };
    if answer.is_empty() {
        bail!("{what} is needed");
    }
    Ok(answer.to_owned())
}

/// Starts the unit, if there is one; returns whether the hub is running. The service manager
/// reports when it is ready.
fn start(run_dir: &Path) -> anyhow::Result<bool> {
    let socket = run_dir::socket(run_dir);
    if is_alive(&socket) {
        return Ok(true);
    }
    let is_systemd = Path::new("/run/systemd/system").is_dir();
    if !is_systemd || firewall::say("systemctl", &["cat", UNIT]).is_err() {
        return Ok(false);
    }
    firewall::say("systemctl", &["enable", "--now", UNIT])
        .with_context(|| format!("the hub does not start: see `journalctl -u {UNIT}`"))?;
    say!("{UNIT} is running, and starts with the machine")?;
    Ok(true)
}

const UNIT: &str = "hawser-hub";
/// UDP port of HTTP/3, which few networks block.
const PORT: &str = "443";
const FIRST: &str = "laptop";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_of_the_internet_is_not_proposed() {
        let is_public = |text: &str| !is_private(text.parse().unwrap());
        for own in [
            "10.0.0.1",
            "192.168.1.2",
            "100.64.3.4",
            "169.254.1.1",
            "127.0.0.1",
            "fd00::1",
            "fe80::1",
            "::1",
        ] {
            assert!(!is_public(own), "{own}");
        }
        assert!(is_public("198.51.100.1") && is_public("2001:db8::1"));
    }
}
