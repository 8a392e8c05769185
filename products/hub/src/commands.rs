//! Commands of `hawser hub` except running a hub: creation, its clients, and requests to a running
//! hub.

use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use hawser_config::atomic_file;
use hawser_config::identity::{Identity, random};
use hawser_config::invitation::{HubAddress, Invitation, InvitedTo};
use hawser_config::{Net4, Net6, StoreConfig};
use hawser_control::enrolment::{
    ClientStore, LogEntry, Unconfirmed, author, hubs_of_fleet, pool_of_fleet, unconfirmed_hubs,
};
use hawser_host::control_socket::{Declined, Request, ask};
use hawser_host::run_dir;
use hawser_wire::control::KeyExpiry;
use serde_json::{Value, json};

use super::limits::standings;
use super::stores::{CLIENTS, CONFIG, KEY, load, open_damaged_store, open_store};
use super::usage;

/// Parameters of `hawser hub init`.
#[derive(Clone, Debug)]
pub struct HubInit {
    /// Addresses of the hub for clients.
    pub endpoints: Vec<HubAddress>,
    /// Inner IPv4 pool; if absent, that of the other hubs of its database, or 100.96.0.0/16.
    pub pool: Option<Net4>,
    /// Inner IPv6 pool; if absent, that of the other hubs, or a random one.
    pub pool6: Option<Net6>,
    /// Network address translation of clients to the hub's address.
    pub nat: bool,
    /// Database of the clients, for several hubs.
    pub store: Option<StoreConfig>,
}

/// Creates the key and the configuration of a hub.
///
/// # Errors
/// If a configuration exists, the directory cannot be written, or the database cannot be used.
pub fn init(dir: &Path, init: &HubInit) -> anyhow::Result<PathBuf> {
    atomic_file::private_directory(dir)?;
    let path = dir.join(CONFIG);
    if path.exists() {
        bail!(
            "{} exists: edit it, or remove it to start again (clients stay enrolled while hub.key exists)",
            path.display()
        );
    }
    let (pool, pool6) = pools(init)?;
    Identity::load_or_create(&dir.join(KEY))?;
    let endpoints: Vec<_> = init
        .endpoints
        .iter()
        .map(|endpoint| format!("\"{endpoint}\""))
        .collect();
    let nat = if init.nat { "\"auto\"" } else { "false" };
    let text = format!(
        "# The hub's configuration. `hawser check {path}` tests a change, `hawser reload` applies it.\n\
         \n\
         # Address of this hub for clients: public name or address, and UDP port.\n\
         endpoints = [{endpoints}]\n\
         \n\
         # Inner addresses: one of each pool for the hub and every client.\n\
         pool = \"{}/{}\"\n\
         pool6 = \"{}/{}\"\n\
         \n\
         # NAT: whether packets of clients get the hub's own address: \"auto\" (if the pool is private), true, false.\n\
         nat = {nat}\n\
         \n\
         # What clients reach in addition to public addresses, and which hosts reach them; none unless listed here.\n\
         # [reach]\n\
         # clients = true                    # other clients\n\
         # hub = [\"tcp 22\"]                  # services of this machine\n\
         # networks = [\"192.168.7.0/24\"]     # private networks behind it\n\
         # from = [\"192.168.7.0/24\"]         # networks whose hosts may open connections to clients\n\
         \n\
         # Default limits of clients; `hawser hub limit` sets others for single clients.\n\
         # [limits]\n\
         # cap = \"20mbit\"                    # in each direction\n\
         # quota = \"100GB\"                   # per month, both directions together\n\
         # when_used = \"slow\"                # or \"stop\"\n\
         # slow = \"256kbit\"\n\
         \n\
         # Clients whose networks block UDP use TLS on TCP 443 by default.\n\
         # [tls]\n\
         # listen = \"[::]:8443\"             # clients set port = 8443; \"off\" disables it\n\
         # [tls.acme]                        # a certificate of Let's Encrypt for this name\n\
         # names = [\"hub.example.org\"]\n\
         \n\
         # Phones and other devices with WireGuard's own apps: `hawser hub invite NAME --wireguard`.\n\
         # [wireguard]\n\
         # listen = \"[::]:51820\"\n",
        pool.0,
        pool.1,
        pool6.0,
        pool6.1,
        path = path.display(),
        endpoints = endpoints.join(", "),
    );
    let (store, mode) = match &init.store {
        Some(store) => (store_table(store), 0o600),
        None => (String::new(), 0o644),
    };
    atomic_file::write(&path, format!("{text}{store}").as_bytes(), mode)?;
    let written = load(dir).and_then(|config| open_store(dir, &config));
    if let Err(error) = written {
        // The next attempt starts from the beginning.
        std::fs::remove_file(&path).ok();
        return Err(error);
    }
    Ok(path)
}

/// Returns the pools of a new hub.
fn pools(init: &HubInit) -> anyhow::Result<(Net4, Net6)> {
    let theirs = init.store.as_ref().map(pool_of_fleet).transpose()?.flatten();
    let mut theirs = theirs.as_deref().unwrap_or_default().split(' ');
    let pool = theirs.next().and_then(|text| text.parse().ok());
    let pool6 = theirs.next().and_then(|text| text.parse().ok());
    let default = || DEFAULT_POOL.parse().expect("a network");
    Ok((
        init.pool.or(pool).unwrap_or_else(default),
        init.pool6.or(pool6).unwrap_or_else(random_ula),
    ))
}

fn store_table(store: &StoreConfig) -> String {
    let ca = store
        .ca
        .as_ref()
        .map(|ca| format!("ca = {:?}\n", ca.display().to_string()));
    format!(
        "\n# Database with the clients, shared by all hubs that use it.\n\
         [store]\n\
         url = {:?}\n\
         {}",
        store.url.text(),
        ca.unwrap_or_default()
    )
}

/// Drains a running hub: its clients change to other hubs, and it accepts no new ones. With `is_on`
/// false, ends the drain.
///
/// # Errors
/// If the hub does not run or does not answer.
pub fn drain(dir: &Path, is_on: bool) -> anyhow::Result<()> {
    ask_running(dir, &Request::Drain { is_on }).map(drop)
}

/// Clients with a session at a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Number of clients, except those that use WireGuard, which cannot change to another hub.
    pub sessions: usize,
    /// Number of clients among them without a control connection: they are off, or change networks.
    pub away: usize,
}

/// Returns the clients that a running hub serves.
///
/// # Errors
/// If the hub does not run or does not answer.
pub fn remaining(dir: &Path) -> anyhow::Result<Remaining> {
    let status = ask_running(dir, &Request::Status)?;
    let clients = status["clients"].as_array().into_iter().flatten();
    let served = clients.filter(|client| client["session"].is_u64() && client["wireguard"].is_null());
    let served: Vec<_> = served.collect();
    Ok(Remaining {
        sessions: served.len(),
        away: served
            .iter()
            .filter(|client| client["connected"] == false)
            .count(),
    })
}

fn ask_running(dir: &Path, request: &Request) -> anyhow::Result<Value> {
    let hub = run_dir::hub_of(dir)?.context("the hub is not running")?;
    ask(&run_dir::socket(&hub), request)
}

/// Copies the clients in the files of a hub to its database. Returns their number.
///
/// # Errors
/// If the hub has no database, or one of the clients is already in it; nothing is changed.
pub fn migrate(dir: &Path) -> anyhow::Result<usize> {
    let config = load(dir)?;
    let Some(store) = &config.store else {
        bail!("hub.toml names no database: [store], url = \"postgresql://...\"");
    };
    let files = ClientStore::open(&dir.join(CLIENTS), config.pools())?;
    ClientStore::in_database(store, config.pools())?.take_over(&files)
}

/// Ports that a firewall must admit for a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedPorts {
    /// UDP port for clients.
    pub udp: u16,
    /// UDP port of WireGuard.
    pub wireguard: Option<u16>,
    /// TCP port for clients whose networks block UDP.
    pub tcp: Option<u16>,
    /// Interface on which their packets leave the tunnel.
    pub interface: String,
}

/// Returns the ports that a firewall must admit for the hub of a directory.
///
/// # Errors
/// If the hub has not been initialised.
pub fn admitted_ports(dir: &Path) -> anyhow::Result<AdmittedPorts> {
    let config = load(dir)?;
    Ok(AdmittedPorts {
        udp: config.listen_address().port(),
        wireguard: config.wireguard.as_ref().map(|wireguard| wireguard.listen.port()),
        tcp: config.tls_address().map(|at| at.port()),
        interface: config.interface.0.clone(),
    })
}

/// Invites a client. Returns the invitation, a line of text; in a fleet it also names other hubs.
/// `expiry` is that of the key which will enrol, `None` for a key that does not expire.
///
/// # Errors
/// If the hub has not been initialised, the name is taken, or writing fails.
pub fn invite(
    dir: &Path,
    name: &str,
    lifetime: Duration,
    expiry: Option<KeyExpiry>,
) -> anyhow::Result<Invitation> {
    let config = load(dir)?;
    let identity = Identity::load_or_create(&dir.join(KEY))?;
    let mut store = open_store(dir, &config)?;
    let hub = InvitedTo {
        endpoints: config.addresses(),
        key: identity.hash(),
    };
    let others = config.store.as_ref().map(|store| hubs_of_fleet(store, hub.key));
    let others = others.transpose()?.unwrap_or_default();
    // This is the last step that can fail, so that every created invitation is printed.
    let token = store.invite_until(name, lifetime, expiry, SystemTime::now())?;
    Ok(Invitation {
        hub,
        others,
        name: name.to_owned(),
        token,
    })
}

/// Revokes a client's enrolment. If the hub runs, it does so, and the revocation has taken effect
/// on return, at every hub of a fleet that has confirmed. Returns the hubs that have not confirmed.
///
/// # Errors
/// If there is no such client, or writing fails. If the running hub does not confirm the end of the
/// client's session, or the hubs of the fleet cannot be asked, the enrolment is nevertheless
/// revoked, and the message names the unknown part.
pub fn revoke(dir: &Path, name: &str) -> anyhow::Result<Vec<Unconfirmed>> {
    take_back(dir, name)?;
    let config = load(dir)?;
    let Some(store) = &config.store else {
        return Ok(Vec::new());
    };
    // A stopped hub serves no client.
    let is_down = matches!(run_dir::hub_of(dir), Ok(None));
    let own = is_down.then(|| Identity::load_or_create(&dir.join(KEY)));
    let own = own.transpose()?.map(|identity| identity.hash());
    unconfirmed_hubs(store, own, CONFIRMATION).with_context(|| {
        format!("{name} is no longer enrolled, but it is not known whether all hubs have ended its session")
    })
}

/// Returns a message for the operator about hubs that have not confirmed a revocation.
#[must_use]
pub fn not_confirmed(name: &str, hubs: &[Unconfirmed]) -> String {
    let each = |hub: &Unconfirmed| {
        let (at, silent) = (hub.endpoints.join(" "), hub.silent.as_secs());
        match hub.until {
            Some(until) => format!(
                "{at} (no announcement for {silent} s; it ends all sessions within {} s)",
                until.as_secs()
            ),
            None => {
                format!("{at} (no announcement for {silent} s; its version continues without the database)")
            }
        }
    };
    let hubs: Vec<_> = hubs.iter().map(each).collect();
    format!(
        "{name} is no longer enrolled, but these hubs have not confirmed the end of its session: \
         stop them if they are running: {}",
        hubs.join(", ")
    )
}

fn take_back(dir: &Path, name: &str) -> anyhow::Result<()> {
    let hub = run_dir::hub_of(dir);
    let asked = match &hub {
        Ok(None) => None,
        Ok(Some(hub)) => {
            let name = name.to_owned();
            let by = Some(author());
            Some(ask(&run_dir::socket(hub), &Request::Revoke { name, by }))
        }
        Err(_) => None,
    };
    let trouble = match asked {
        Some(Ok(_)) => return Ok(()),
        Some(Err(error)) if error.is::<Declined>() => return Err(error),
        Some(Err(error)) => Some(error),
        None => hub.err(),
    };
    let config = load(dir)?;
    open_damaged_store(dir, &config)?.revoke(name)?;
    match trouble {
        None => Ok(()),
        Some(error) => Err(error.context(format!(
            "{name} is no longer enrolled, but it is not known whether the hub has ended its session: restart the hub"
        ))),
    }
}

/// Returns the logged changes of a hub's clients since a time, the oldest first; of one client if
/// it is named.
///
/// # Errors
/// If the hub has not been initialised, or the log cannot be read.
pub fn log(dir: &Path, client: Option<&str>, since: SystemTime) -> anyhow::Result<Vec<LogEntry>> {
    let config = load(dir)?;
    let since = since
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let mut all = open_damaged_store(dir, &config)?.log()?;
    all.retain(|entry| entry.at_unix_s >= since && client.is_none_or(|name| entry.client == name));
    Ok(all)
}

/// Returns the clients of a hub, with their state if the hub runs.
///
/// # Errors
/// If the hub has not been initialised, its store is damaged, or the running hub does not answer.
pub fn list(dir: &Path) -> anyhow::Result<Value> {
    if let Some(hub) = run_dir::hub_of(dir)? {
        let mut status = ask(&run_dir::socket(&hub), &Request::Status)?;
        let hubs = status["store"]["hubs"].take();
        return Ok(json!({ "version": 1, "clients": status["clients"].take(), "hubs": hubs }));
    }
    let config = load(dir)?;
    let store = open_store(dir, &config)?;
    let now = SystemTime::now();
    let standings = standings(dir, &usage(dir, false)?)?;
    let clients: Vec<_> = store
        .iter()
        .map(|c| {
            let limits = standings.get(&c.name);
            json!({
                "name": c.name, "state": c.state(now), "inner": c.inner(), "subnets": c.subnets, "connected": false, "limits": limits,
                "key_expires_unix_s": c.expiry.map(|expiry| expiry.0),
                "wireguard": c.wireguard.map(|_| json!({})),
            })
        })
        .collect();
    Ok(json!({ "version": 1, "clients": clients }))
}

/// Returns a random unique local prefix (RFC 4193 section 3.2).
fn random_ula() -> Net6 {
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[1..6].copy_from_slice(&random::<5>());
    Net6(Ipv6Addr::from(octets), 64)
}

/// Time for which a revocation waits for the hubs of a fleet. Source: each hub reads the database
/// five times a second and confirms 0.5 s later, so a hub without a confirmation after ten times as
/// long does not reach the database.
const CONFIRMATION: Duration = Duration::from_secs(5);
const DEFAULT_POOL: &str = "100.96.0.0/16";

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_config::Nat;
    use hawser_host::run_dir::HubClaim;

    fn example() -> HubInit {
        HubInit {
            endpoints: vec!["hub.example.org:443".parse().unwrap()],
            pool: None,
            pool6: None,
            nat: true,
            store: None,
        }
    }

    #[test]
    fn what_init_writes_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = init(dir.path(), &example()).unwrap();
        let config = load(dir.path()).unwrap();
        assert_eq!(config.addresses(), example().endpoints);
        assert_eq!(config.nat, Nat::Auto);
        assert!(config.pool6.unwrap().0.is_unique_local());
        assert!(
            init(dir.path(), &example())
                .unwrap_err()
                .to_string()
                .contains("exists")
        );
        assert_eq!(path, dir.path().join("hub.toml"));
    }

    #[test]
    fn invites_lists_and_revokes_without_a_daemon() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            invite(dir.path(), "alice", Duration::from_secs(60), None)
                .unwrap_err()
                .to_string()
                .contains("hub init")
        );
        init(dir.path(), &example()).unwrap();
        let line = invite(dir.path(), "alice", Duration::from_secs(60), None)
            .unwrap()
            .to_string();
        assert!(line.parse::<Invitation>().is_ok());
        let clients = list(dir.path()).unwrap();
        assert_eq!(clients["clients"][0]["state"], "invited");
        revoke(dir.path(), "alice").unwrap();
        assert!(revoke(dir.path(), "alice").is_err());
    }

    #[test]
    fn names_the_hubs_that_have_not_confirmed() {
        let hub = |until| Unconfirmed {
            endpoints: vec!["hub2.example.org:443".to_owned()],
            silent: Duration::from_secs(40),
            until,
        };
        let limited = not_confirmed("alice", &[hub(Some(Duration::from_secs(870)))]);
        assert!(
            limited.contains(
                "hub2.example.org:443 (no announcement for 40 s; it ends all sessions within 870 s"
            ),
            "{limited}"
        );
        let unlimited = not_confirmed("alice", &[hub(None)]);
        assert!(
            unlimited.contains("continues without the database"),
            "{unlimited}"
        );
    }

    #[test]
    fn a_hub_that_does_not_answer_is_said_and_the_enrolment_is_taken_back_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &example()).unwrap();
        invite(dir.path(), "alice", Duration::from_secs(60), None).unwrap();
        let _claim = HubClaim::take(dir.path(), &dir.path().join("run")).unwrap();
        assert!(list(dir.path()).is_err());
        let said = format!("{:#}", revoke(dir.path(), "alice").unwrap_err());
        assert!(said.contains("not known whether the hub has ended"), "{said}");
        assert!(!dir.path().join("clients/alice.toml").exists());
    }
}
