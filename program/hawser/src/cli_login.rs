//! `hawser login`: opens the login page of a network in a browser that uses only that network.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use hawser_host::control_socket::{Request, ask};
use hawser_host::dns::NameServers;
use hawser_host::program;
use hawser_linux::direct::mark;
use hawser_linux::resolving::resolve_by;
use hawser_linux::udp::OUTER_MARK;
use hawser_terminal::unknown;
use serde_json::Value;

use crate::cli_run::{Left, run_in_group};
use crate::directories::Directories;
use crate::runtime::runtime;

/// Opens the login page of a network (a hotel's, a train's) in a browser that uses only that
/// network.
///
/// The browser's connections and DNS queries use that network, outside the tunnel and the kill
/// switch. Other programs are not affected. The browser runs with the privileges of the user who
/// called sudo, with a profile that is deleted afterwards. Its child processes end with it. `hawser
/// status` shows which networks have such a page.
#[derive(Debug, clap::Args)]
pub(crate) struct LoginArgs {
    /// The network (interface); needed only if several have a login page.
    #[arg(value_name = "NETWORK")]
    network: Option<String>,
    /// Program to use instead of an installed browser; the page's address is added to its
    /// arguments.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    directories: Directories,
}

/// Opens the page and waits until the browser ends.
///
/// # Errors
/// Hawser is not running, no browser is installed, or the kernel refuses.
pub(crate) fn run(args: &LoginArgs) -> anyhow::Result<ExitCode> {
    let status = ask(&args.directories.client_socket(), &Request::Status)?;
    let network = match select_network(&status, args.network.as_deref()) {
        Ok(network) => network,
        Err(problem) => return Ok(unknown(problem)),
    };
    let name = network["name"].as_str().unwrap_or_default();
    let page = network["portal"].as_str().unwrap_or(ANY_PAGE);
    let caller = Caller::of_sudo();
    let scratch = Scratch::new(caller.as_ref()).context("cannot create a browser profile")?;
    let wanted = match args.command.as_slice() {
        [] => browser(&scratch.profile()).context(
            "no browser is installed (firefox, chromium, w3m, lynx ...): install one, or name a program with `hawser login NETWORK -- COMMAND`",
        )?,
        command => command.to_vec(),
    };
    if args.command.is_empty() && caller.is_none() {
        bail!("a browser must not run as root: run `sudo hawser login` from your own account");
    }
    let mut command = command_of(caller.as_ref(), &wanted, page);
    let (mark, device) = if status["role"] == "direct" {
        // Hawser's own resolver answers over the network that a program has chosen.
        let number = number(network, "number").context("the network has no number")?;
        (mark(0, number), None)
    } else {
        let index = number(network, "index").context("the network has no interface")?;
        let resolvers = resolvers(network, name, index)?;
        let lines: String = resolvers
            .iter()
            .map(|address| format!("nameserver {address}\n"))
            .collect();
        let file = scratch.0.join("resolv.conf");
        std::fs::write(&file, lines).context("cannot write the file of the network's resolvers")?;
        std::fs::set_permissions(&file, Permissions::from_mode(0o644))?;
        resolve_by(&mut command, &file).context("cannot set the network's resolvers for the browser")?;
        (OUTER_MARK, Some(index))
    };
    eprintln!("{name}: {page}");
    run_in_group(mark, device, Left::Ends, &mut command)
}

fn number<T: TryFrom<u64>>(network: &Value, key: &str) -> Option<T> {
    network[key].as_u64()?.try_into().ok()
}

/// Returns the network's resolvers: those known to the client, else those reported by the machine's
/// services. The client queries services only about networks that do not work.
fn resolvers(network: &Value, name: &str, index: u32) -> anyhow::Result<Vec<String>> {
    let known = network["resolvers"].as_array().into_iter().flatten();
    let known: Vec<_> = known.filter_map(Value::as_str).map(str::to_owned).collect();
    if !known.is_empty() {
        return Ok(known);
    }
    let servers = runtime()?.block_on(NameServers::read()).of(name, index);
    if servers.addresses.is_empty() {
        bail!(
            "no resolver is known for {name}: write dns = [\"ADDRESS\"] under [networks.{name}] in client.toml"
        );
    }
    Ok(servers.addresses.iter().map(ToString::to_string).collect())
}

/// Returns the selected network, or an error that lists the available ones.
fn select_network<'a>(status: &'a Value, wanted: Option<&str>) -> Result<&'a Value, String> {
    let networks = status["networks"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let names = |list: &[&Value]| {
        let names: Vec<_> = list
            .iter()
            .filter_map(|network| network["name"].as_str())
            .collect();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    };
    if let Some(wanted) = wanted {
        let of_machine: Vec<_> = networks
            .iter()
            .filter(|network| network["neighbour"].is_null())
            .collect();
        let found = of_machine.iter().find(|network| network["name"] == wanted);
        let there = || {
            format!(
                "{wanted}: there is no such network now; available: {}",
                names(&of_machine)
            )
        };
        return found.copied().ok_or_else(there);
    }
    let captive: Vec<_> = networks
        .iter()
        .filter(|network| network["state"] == "portal")
        .collect();
    match captive.as_slice() {
        [one] => Ok(one),
        [] => Err("no network has a login page now (`hawser login NETWORK` opens a page anyway)".to_owned()),
        several => Err(format!(
            "several networks have login pages: name one of {}",
            names(several)
        )),
    }
}

/// Returns the command of the program, with the privileges of the caller.
fn command_of(caller: Option<&Caller>, wanted: &[String], page: &str) -> Command {
    let mut words = Vec::new();
    if let Some(caller) = caller {
        words = program::as_user(caller.uid, caller.gid, caller.surroundings());
    }
    words.extend(wanted.iter().cloned());
    words.push(page.to_owned());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Caller of sudo.
#[derive(Debug)]
struct Caller {
    uid: u32,
    gid: u32,
}

impl Caller {
    fn of_sudo() -> Option<Self> {
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        let (uid, gid) = (number("SUDO_UID")?, number("SUDO_GID")?);
        (uid != 0).then_some(Self { uid, gid })
    }

    /// Returns the variables that a program needs to find the caller's screen.
    fn surroundings(&self) -> Vec<String> {
        let runtime = format!("/run/user/{}", self.uid);
        let mut found: Vec<_> = ["DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY", "TERM", "LANG"]
            .into_iter()
            .filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)))
            .collect();
        // Sudo does not pass this variable on.
        let is_said = found.iter().any(|said| said.starts_with("WAYLAND_DISPLAY="));
        if !is_said && Path::new(&runtime).join("wayland-0").exists() {
            found.push("WAYLAND_DISPLAY=wayland-0".to_owned());
        }
        found.push(format!("XDG_RUNTIME_DIR={runtime}"));
        found
    }
}

/// Returns the command of the first installed browser, with a separate profile.
fn browser(profile: &Path) -> Option<Vec<String>> {
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    let profile = profile.display().to_string();
    let chromium = vec![format!("--user-data-dir={profile}"), "--no-first-run".to_owned()];
    let firefox = ["--no-remote", "--new-instance", "--profile", &profile].map(str::to_owned);
    let graphical = [
        ("firefox", firefox.to_vec()),
        ("firefox-esr", firefox.to_vec()),
        ("chromium", chromium.clone()),
        ("google-chrome", chromium),
        ("epiphany", vec!["--private-instance".to_owned()]),
        ("falkon", vec!["--private-browsing".to_owned()]),
    ];
    let textual = ["w3m", "lynx", "elinks", "links"].map(|name| (name, Vec::new()));
    let graphical = graphical.into_iter().filter(|_| has_screen);
    graphical
        .chain(textual)
        .find(|(name, _)| program::find(name).is_some())
        .map(|(name, arguments)| [vec![name.to_owned()], arguments].concat())
}

/// A directory that is removed when this value is dropped. Only the profile in it is owned by the
/// caller.
struct Scratch(PathBuf);

impl Scratch {
    fn new(caller: Option<&Caller>) -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("hawser-login-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        let scratch = Self(path);
        std::fs::create_dir(scratch.profile())?;
        std::fs::set_permissions(scratch.profile(), Permissions::from_mode(0o700))?;
        if let Some(caller) = caller {
            chown(scratch.profile(), Some(caller.uid), Some(caller.gid))?;
        }
        Ok(scratch)
    }

    fn profile(&self) -> PathBuf {
        self.0.join("profile")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A page that a portal can intercept, because it has no TLS; it is the page by which portals are
/// detected.
const ANY_PAGE: &str = "http://network-test.debian.org/nm";
