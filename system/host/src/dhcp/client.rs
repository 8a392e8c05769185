//! DHCP clients: detects the installed one, runs it so that it only negotiates, and reads its
//! events.
//!
//! Every client runs a program on each event. This program is Hawser itself (a script could not be
//! run from `/run`), which writes the event to a named pipe as one line ([`report`]); only the
//! daemon then sets address and route, and nothing else in the system is changed. Both sides open
//! the pipe for reading and writing, so that neither blocks.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use data_encoding::HEXLOWER_PERMISSIVE;
use hawser_linux::process::{NONBLOCK, command_lines};
use hawser_linux::system::{LeasedAddress, System};

use crate::program::{Started, find};

/// Lease of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Address, prefix length, gateway and lease time.
    pub address: LeasedAddress,
    /// Resolvers.
    pub servers: Vec<IpAddr>,
    /// Domain of the network.
    pub domain: Option<String>,
    /// The address of its captive portal API (option 114, RFC 8910 section 2.1).
    pub portal_api: Option<String>,
}

/// Event of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Leased(Lease),
    /// No lease was obtained, or the lease has ended.
    Lost,
}

/// An installed client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Udhcpc(PathBuf),
    /// BusyBox that contains the client.
    BusyBox(PathBuf),
    Dhcpcd(PathBuf),
}

impl Program {
    /// Returns the first client found. The simplest is tried first: it is a single process that
    /// stores nothing on disk.
    pub(super) fn installed() -> Option<Self> {
        let udhcpc = || find("udhcpc").map(Self::Udhcpc);
        let busybox = || find("busybox").filter(|path| has_udhcpc(path)).map(Self::BusyBox);
        let dhcpcd = || find("dhcpcd").map(Self::Dhcpcd);
        udhcpc().or_else(busybox).or_else(dhcpcd)
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Udhcpc(_) => "udhcpc",
            Self::BusyBox(_) => "busybox udhcpc",
            Self::Dhcpcd(_) => "dhcpcd",
        }
    }

    /// Returns the command that keeps a lease for the device, in the foreground, without an end.
    fn command(&self, device: &str, report: &[(&str, String); 2]) -> anyhow::Result<Vec<OsString>> {
        let (path, applet, options) = match self {
            Self::Udhcpc(path) => (path, None, UDHCPC.as_slice()),
            Self::BusyBox(path) => (path, Some("udhcpc"), UDHCPC.as_slice()),
            Self::Dhcpcd(path) => (path, None, DHCPCD.as_slice()),
        };
        let mut words: Vec<OsString> = std::iter::once(path.into())
            .chain(applet.map(OsString::from))
            .chain(options.iter().map(OsString::from))
            .collect();
        // It does not pass its own environment to the program.
        if matches!(self, Self::Dhcpcd(_)) {
            let all = report.iter().map(|(name, value)| format!("{name}={value}"));
            words.extend(all.flat_map(|pair| ["--env".into(), pair.into()]));
            words.extend(["--script".into(), own_program()?.into(), device.into()]);
        } else {
            words.extend(["-s".into(), own_program()?.into(), "-i".into(), device.into()]);
        }
        Ok(words)
    }

    /// Starts the client for a device.
    ///
    /// `run` is a number that its messages to the pipe contain.
    pub(super) fn start(
        &self,
        system: &mut System,
        device: &str,
        pipe: &Path,
        run: u64,
    ) -> anyhow::Result<Started> {
        let report = [(RUN, run.to_string()), (PIPE, pipe.display().to_string())];
        Started::start(system, &self.command(device, &report)?, &report)
    }
}

/// Returns this program's file, even after another version has replaced it.
fn own_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_string_lossy();
    Ok(text
        .strip_suffix(" (deleted)")
        .map_or_else(|| path.clone(), PathBuf::from))
}

/// Reports an event to the daemon, if a DHCP client has started this program for it; the program
/// then does nothing else.
#[must_use]
pub fn report() -> Option<ExitCode> {
    let (pipe, run) = (std::env::var_os(PIPE)?, std::env::var(RUN).ok()?);
    let event = std::env::args().nth(1);
    let line = line(&run, event, |name| std::env::var(name).ok());
    // Neither case blocks: a daemon that has ended receives nothing, and one with a full pipe will
    // receive the next renewal.
    let opened = File::options()
        .read(true)
        .write(true)
        .custom_flags(NONBLOCK)
        .open(pipe);
    let written = opened.and_then(|mut pipe| pipe.write_all(line.as_bytes()));
    Some(written.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

/// Returns the line of an event: both kinds of clients have the same values in different variables.
fn line(run: &str, event: Option<String>, variable: impl Fn(&str) -> Option<String>) -> String {
    let of = |name: &str| variable(name).unwrap_or_default();
    let mut fields = vec![run.to_owned(), event.unwrap_or_else(|| of("reason"))];
    fields.extend(
        VARIABLES
            .iter()
            .map(|(dhcpcd, udhcpc)| variable(dhcpcd).unwrap_or_else(|| of(udhcpc))),
    );
    // Values from the network must not look like the next field, or the next line.
    let clean = fields
        .iter()
        .map(|field| field.replace(|c: char| c.is_control(), " "));
    format!("{}\n", clean.collect::<Vec<_>>().join("\t"))
}

/// Returns another program's client that serves the device, by its name and number.
pub(super) fn other_client(device: &str) -> Option<String> {
    let all = command_lines();
    let (id, words) = all.iter().find(|(_, words)| serves(words, device))?;
    Some(format!("{} (process {id})", program(words)))
}

fn program(words: &[String]) -> &str {
    let first = words.first().map_or("", String::as_str).trim_end_matches(':');
    let name = first.rsplit('/').next().unwrap_or(first);
    match words.get(1) {
        Some(applet) if name == "busybox" => applet,
        _ => name,
    }
}

fn serves(words: &[String], device: &str) -> bool {
    let names_it = |word: &String| {
        word == device
            || word.strip_prefix("-i") == Some(device)
            // The name of a dhcpcd process that serves all devices.
            || ["[manager]", "[master]"].contains(&word.as_str())
    };
    ["dhclient", "dhcpcd", "udhcpc"].contains(&program(words)) && words.iter().skip(1).any(names_it)
}

/// Parses a line from the pipe and returns the event with the number of its client; `None` for an
/// irrelevant line.
pub(super) fn parse(line: &str) -> Option<(u64, Event)> {
    let fields: Vec<_> = line.split('\t').collect();
    let [run, event, address, mask, routers, servers, domain, lasts, api] = fields[..] else {
        return None;
    };
    let run = run.parse().ok()?;
    match event {
        "bound" | "renew" | "BOUND" | "RENEW" | "REBIND" | "REBOOT" => {}
        "deconfig" | "NAK" | "EXPIRE" | "FAIL" => return Some((run, Event::Lost)),
        _ => return None,
    }
    let address = address.parse().ok().filter(is_usable)?;
    let lasts: Option<u32> = lasts.parse().ok().filter(|lasts| *lasts != u32::MAX);
    let address = LeasedAddress {
        address,
        prefix: prefix(mask.parse().ok()?)?,
        gateway: routers
            .split(' ')
            .find_map(|router| router.parse().ok().filter(is_usable)),
        lasts: lasts.map(|lasts| Duration::from_secs(lasts.into())),
    };
    let lease = Lease {
        address,
        servers: servers
            .split(' ')
            .filter_map(|server| server.parse().ok())
            .collect(),
        domain: domain
            .split(' ')
            .next()
            .filter(|domain| !domain.is_empty())
            .map(ToOwned::to_owned),
        portal_api: unwrapped(api),
    };
    Some((run, Event::Leased(lease)))
}

/// Returns the text of an option, which is in hexadecimal digits if the client does not know the
/// option.
fn unwrapped(option: &str) -> Option<String> {
    let bytes = HEXLOWER_PERMISSIVE.decode(option.as_bytes());
    let text = bytes.map_or_else(|_| Ok(option.to_owned()), String::from_utf8);
    text.ok().filter(|text| !text.is_empty())
}

fn is_usable(address: &Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.is_broadcast())
}

/// Returns the prefix length of a mask; `None` for one that is not contiguous.
fn prefix(mask: Ipv4Addr) -> Option<u8> {
    let bits = mask.to_bits();
    let length = bits.leading_ones();
    (bits.count_ones() == length && length > 0).then_some(length as u8)
}

fn has_udhcpc(busybox: &Path) -> bool {
    let listed = Command::new(busybox).arg("--list").stdin(Stdio::null()).output();
    listed.is_ok_and(|listed| {
        listed
            .stdout
            .split(|byte| *byte == b'\n')
            .any(|name| name == b"udhcpc")
    })
}

/// Names of address, mask, routers, resolvers, domain, seconds and captive portal API: of dhcpcd,
/// and of udhcpc.
const VARIABLES: [(&str, &str); 7] = [
    ("new_ip_address", "ip"),
    ("new_subnet_mask", "subnet"),
    ("new_routers", "router"),
    ("new_domain_name_servers", "dns"),
    ("new_domain_name", "domain"),
    ("new_dhcp_lease_time", "lease"),
    ("new_captive_portal_uri", "opt114"),
];
/// Four questions two seconds apart, then a pause of five, and so on; with the option of captive
/// portals, for which it has no name.
const UDHCPC: [&str; 9] = ["-f", "-t", "4", "-T", "2", "-A", "5", "-O", "114"];
/// Arguments of dhcpcd: it changes nothing itself, waits without end, and neither pauses before it
/// begins nor probes the address for five seconds. The option of captive portals is not requested:
/// version 9 does not know it, and would end.
const DHCPCD: [&str; 14] = [
    "--nobackground",
    "--noconfigure",
    "--ipv4only",
    "--noarp",
    "--nodelay",
    "--timeout",
    "0",
    "--config",
    "/dev/null",
    "--option",
    "subnet_mask,routers,domain_name_servers,domain_name,dhcp_lease_time",
    "--require",
    "dhcp_server_identifier",
    "--quiet",
];
/// Environment variables of the program that a client runs: the pipe, and the client's number.
const PIPE: &str = "HAWSER_DHCP_PIPE";
const RUN: &str = "HAWSER_DHCP_RUN";

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn lease(last: u8) -> Lease {
        Lease {
            address: LeasedAddress {
                address: Ipv4Addr::new(192, 168, 0, last),
                prefix: 24,
                gateway: Some(Ipv4Addr::new(192, 168, 0, 1)),
                lasts: Some(Duration::from_secs(120)),
            },
            servers: vec!["192.168.0.1".parse().unwrap(), "9.9.9.9".parse().unwrap()],
            domain: Some("home.example".to_owned()),
            portal_api: Some("https://api".to_owned()),
        }
    }

    #[test]
    fn both_sorts_of_clients_are_understood() {
        let values = [
            "192.168.0.7",
            "255.255.255.0",
            "192.168.0.1",
            "192.168.0.1 9.9.9.9",
            "home.example",
            "120",
            "https://api",
        ];
        let tell = |event: Option<&str>, variables: Vec<(&str, &str)>| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            let said = line("4", event.map(ToOwned::to_owned), |name| {
                Some(find(name)?.1.to_owned())
            });
            assert!(said.ends_with('\n') && said.lines().count() == 1, "{said:?}");
            parse(said.trim_end_matches('\n'))
        };
        let udhcpc = VARIABLES.iter().map(|(_, name)| *name).zip(values);
        let mut udhcpc: Vec<_> = udhcpc.collect();
        udhcpc[6].1 = "68747470733a2f2f617069";
        assert_eq!(tell(Some("bound"), udhcpc), Some((4, Event::Leased(lease(7)))));
        let dhcpcd = VARIABLES.iter().map(|(name, _)| *name).zip(values);
        let dhcpcd = dhcpcd.chain([("reason", "BOUND")]).collect();
        assert_eq!(tell(None, dhcpcd), Some((4, Event::Leased(lease(7)))));
        assert_eq!(tell(Some("deconfig"), Vec::new()), Some((4, Event::Lost)));
        assert_eq!(tell(None, vec![("reason", "PREINIT")]), None);
        // A network cannot forge an event of another one.
        let forged = vec![("domain", "x\t120\n9\tdeconfig\t\t\t\t\t\t\t")];
        assert_eq!(tell(Some("deconfig"), forged), Some((4, Event::Lost)));
    }

    #[test]
    fn nonsense_is_no_lease() {
        for line in [
            "",
            "1\tbound",
            "1\tbound\t192.168.0.7\t255.255.255.0\t\t\t\t60\t\t",
            "x\tbound\t192.168.0.7\t255.255.255.0\t\t\t\t60\t",
            "1\tbound\t0.0.0.0\t255.255.255.0\t\t\t\t60\t",
            "1\tbound\t192.168.0.7\t255.0.255.0\t\t\t\t60\t",
            "1\tbound\t192.168.0.7\t\t\t\t\t60\t",
        ] {
            assert_eq!(parse(line), None, "{line:?}");
        }
        let (_, event) = parse("1\trenew\t192.168.0.7\t255.255.255.255\tnobody\t\t\t4294967295\t").unwrap();
        let Event::Leased(lease) = event else {
            panic!("{event:?}")
        };
        assert_eq!(
            (lease.address.prefix, lease.address.gateway, lease.address.lasts),
            (32, None, None)
        );
    }

    #[test]
    fn clients_of_others_are_known() {
        let words = |line: &str| line.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>();
        for (line, is_so) in [
            ("/sbin/dhclient -4 -v eth0", true),
            ("/sbin/dhclient -4 -v eth1", false),
            ("dhcpcd: eth0 [ip4]", true),
            ("dhcpcd: [manager] [ip4] [ip6]", true),
            ("udhcpc -f -ieth0", true),
            ("busybox udhcpc -i eth0", true),
            ("vim dhclient eth0", false),
            ("", false),
        ] {
            assert_eq!(serves(&words(line), "eth0"), is_so, "{line}");
        }
    }
}
