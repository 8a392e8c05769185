//! What `hawser hub` does beside running a hub: making one, its clients, and asking one that runs.

use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_config::atomic_file;
use hawser_config::identity::{Identity, random};
use hawser_config::invitation::{HubAddress, Invitation, InvitedTo};
use hawser_config::{Net4, Net6, StoreConfig};
use hawser_control::enrolment::{ClientStore, Unconfirmed, hubs_of_fleet, pool_of_fleet, unconfirmed_hubs};
use hawser_host::control_socket::{Declined, Request, ask};
use hawser_host::run_dir;
use serde_json::{Value, json};

use super::limits::standings;
use super::{CLIENTS, CONFIG, KEY, load, open_damaged_store, open_store, usage};

/// What `hawser hub init` is told.
#[derive(Clone, Debug)]
pub struct HubInit {
    /// Where clients reach the hub.
    pub endpoints: Vec<HubAddress>,
    /// Inner IPv4 pool; as the other hubs of its database have it, or 100.96.0.0/16, when absent.
    pub pool: Option<Net4>,
    /// Inner IPv6 pool; as the other hubs have it, or drawn at random, when absent.
    pub pool6: Option<Net6>,
    /// Whether to hide clients behind the hub's address.
    pub nat: bool,
    /// The database that keeps the clients, for several hubs.
    pub store: Option<StoreConfig>,
}

/// Makes the key and the configuration of a hub.
///
/// # Errors
/// There is a configuration already, the directory cannot be written, or the database is of no use.
pub fn init(dir: &Path, init: &HubInit) -> anyhow::Result<PathBuf> {
    atomic_file::private_directory(dir)?;
    let path = dir.join(CONFIG);
    if path.exists() {
        bail!(
            "{} exists: edit it, or remove it to begin anew (clients stay enrolled while hub.key stays)",
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
         # Where clients reach this hub: its public name or address, and a UDP port.\n\
         endpoints = [{endpoints}]\n\
         \n\
         # Inner addresses: one of each for the hub and every client.\n\
         pool = \"{}/{}\"\n\
         pool6 = \"{}/{}\"\n\
         \n\
         # Whether clients appear under the hub's own address: \"auto\" (when the pool is private), true, false.\n\
         nat = {nat}\n\
         \n\
         # What clients reach beside public addresses, and who reaches them: nothing and nobody unless named here.\n\
         # [reach]\n\
         # clients = true                    # each other\n\
         # hub = [\"tcp 22\"]                  # services of this machine\n\
         # networks = [\"192.168.7.0/24\"]     # private networks behind it\n\
         # from = [\"192.168.7.0/24\"]         # whose hosts may begin connections to clients\n\
         \n\
         # What each client may use, unless `hawser hub limit` says otherwise for it.\n\
         # [limits]\n\
         # cap = \"20mbit\"                    # in each direction\n\
         # quota = \"100GB\"                   # a month, both directions together\n\
         # when_used = \"slow\"                # or \"stop\"\n\
         # slow = \"256kbit\"\n\
         \n\
         # Clients whose networks block UDP come by TLS on TCP 443 unless this says something else.\n\
         # [tls]\n\
         # listen = \"[::]:8443\"             # clients say port = 8443; \"off\": nowhere\n\
         # [tls.acme]                        # a certificate of Let's Encrypt for this name\n\
         # names = [\"hub.example.org\"]\n",
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
        // The next attempt begins anew.
        std::fs::remove_file(&path).ok();
        return Err(error);
    }
    Ok(path)
}

/// The pools that a new hub has.
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
        "\n# The database that keeps the clients, for all hubs that name it.\n\
         [store]\n\
         url = {:?}\n\
         {}",
        store.url.text(),
        ca.unwrap_or_default()
    )
}

/// Sends the clients of a hub that runs to other hubs, and lets no others in; or, with `is_on`
/// false, serves them as before.
///
/// # Errors
/// The hub does not run or does not answer.
pub fn drain(dir: &Path, is_on: bool) -> anyhow::Result<()> {
    ask_running(dir, &Request::Drain { is_on }).map(drop)
}

/// How many clients are connected to a hub that runs.
///
/// # Errors
/// The hub does not run or does not answer.
pub fn connected(dir: &Path) -> anyhow::Result<usize> {
    let status = ask_running(dir, &Request::Status)?;
    let clients = status["clients"].as_array().into_iter().flatten();
    Ok(clients.filter(|client| client["connected"] == true).count())
}

fn ask_running(dir: &Path, request: &Request) -> anyhow::Result<Value> {
    let hub = run_dir::hub_of(dir)?.context("the hub does not run")?;
    ask(&run_dir::socket(&hub), request)
}

/// Takes the clients in the files of a hub over into its database; how many.
///
/// # Errors
/// The hub has no database, or one of the clients is in it already; nothing changes then.
pub fn migrate(dir: &Path) -> anyhow::Result<usize> {
    let config = load(dir)?;
    let Some(store) = &config.store else {
        bail!("hub.toml names no database: [store], url = \"postgresql://...\"");
    };
    let files = ClientStore::open(&dir.join(CLIENTS), config.pools())?;
    ClientStore::in_database(store, config.pools())?.take_over(&files)
}

/// What a firewall has to let through for a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaysIn {
    /// The UDP port that clients come in at.
    pub udp: u16,
    /// The TCP port for clients whose networks block UDP.
    pub tcp: Option<u16>,
    /// The interface that their packets come out of.
    pub interface: String,
}

/// What a firewall has to let through for the hub of a directory.
///
/// # Errors
/// The hub has not been initialised.
pub fn ways_in(dir: &Path) -> anyhow::Result<WaysIn> {
    let config = load(dir)?;
    Ok(WaysIn {
        udp: config.listen_address().port(),
        tcp: config.tls_address().map(|at| at.port()),
        interface: config.interface.0.clone(),
    })
}

/// Invites a client; the result is the line to give to it. Of a fleet it names other hubs too.
///
/// # Errors
/// The hub has not been initialised, the name is taken, or the disk refuses.
pub fn invite(dir: &Path, name: &str, lifetime: Duration) -> anyhow::Result<Invitation> {
    let config = load(dir)?;
    let identity = Identity::load_or_create(&dir.join(KEY))?;
    let mut store = open_store(dir, &config)?;
    let hub = InvitedTo {
        endpoints: config.addresses(),
        key: identity.hash(),
    };
    let others = config.store.as_ref().map(|store| hubs_of_fleet(store, hub.key));
    let others = others.transpose()?.unwrap_or_default();
    // The last that can fail: an invitation that was made is printed.
    let token = store.invite(name, lifetime, std::time::SystemTime::now())?;
    Ok(Invitation {
        hub,
        others,
        name: name.to_owned(),
        token,
    })
}

/// Takes a client's enrolment back: through the hub when it runs, so that it has taken effect when
/// this returns, at every hub of a fleet that has confirmed. Returns the hubs that have not.
///
/// # Errors
/// No such client, or the disk refuses. Or the hub runs and does not say that the client's session
/// is over, or the hubs of the fleet cannot be asked: the enrolment is taken back all the same, and
/// the message says what is not known.
pub fn revoke(dir: &Path, name: &str) -> anyhow::Result<Vec<Unconfirmed>> {
    take_back(dir, name)?;
    let config = load(dir)?;
    let Some(store) = &config.store else {
        return Ok(Vec::new());
    };
    // A hub that does not run serves no client.
    let is_down = matches!(run_dir::hub_of(dir), Ok(None));
    let own = is_down.then(|| Identity::load_or_create(&dir.join(KEY)));
    let own = own.transpose()?.map(|identity| identity.hash());
    unconfirmed_hubs(store, own, CONFIRMATION).with_context(|| {
        format!(
            "{name} is not enrolled any more, but it is not known whether all hubs have ended its session"
        )
    })
}

/// Message for an operator about hubs that have not confirmed a revocation.
#[must_use]
pub fn not_confirmed(name: &str, hubs: &[Unconfirmed]) -> String {
    let each = |hub: &Unconfirmed| {
        let (at, silent) = (hub.endpoints.join(" "), hub.silent.as_secs());
        match hub.until {
            Some(until) => format!(
                "{at} (silent for {silent} s; ends all sessions in {} s at the latest)",
                until.as_secs()
            ),
            None => format!("{at} (silent for {silent} s; of a version that serves on without the database)"),
        }
    };
    let hubs: Vec<_> = hubs.iter().map(each).collect();
    format!(
        "{name} is not enrolled any more, but these hubs have not confirmed that its session there is over, \
         stop them if they run: {}",
        hubs.join(", ")
    )
}

fn take_back(dir: &Path, name: &str) -> anyhow::Result<()> {
    let hub = run_dir::hub_of(dir);
    let asked = match &hub {
        Ok(None) => None,
        Ok(Some(hub)) => {
            let name = name.to_owned();
            Some(ask(&run_dir::socket(hub), &Request::Revoke { name }))
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
            "{name} is not enrolled any more, but it is not known whether the hub has ended its session: restart the hub"
        ))),
    }
}

/// The clients of a hub: with what the hub knows of them when it runs.
///
/// # Errors
/// The hub has not been initialised, its store is damaged, or the hub runs and does not answer.
pub fn list(dir: &Path) -> anyhow::Result<Value> {
    if let Some(hub) = run_dir::hub_of(dir)? {
        let mut status = ask(&run_dir::socket(&hub), &Request::Status)?;
        let hubs = status["store"]["hubs"].take();
        return Ok(json!({ "version": 1, "clients": status["clients"].take(), "hubs": hubs }));
    }
    let config = load(dir)?;
    let store = open_store(dir, &config)?;
    let now = std::time::SystemTime::now();
    let standings = standings(dir, &usage(dir, false)?)?;
    let clients: Vec<_> = store
        .iter()
        .map(|c| {
            let limits = standings.get(&c.name);
            json!({
                "name": c.name, "state": c.state(now), "inner": c.inner(), "subnets": c.subnets, "connected": false, "limits": limits,
            })
        })
        .collect();
    Ok(json!({ "version": 1, "clients": clients }))
}

/// A unique local prefix (RFC 4193 section 3.2).
fn random_ula() -> Net6 {
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[1..6].copy_from_slice(&random::<5>());
    Net6(Ipv6Addr::from(octets), 64)
}

/// Time for which a revocation waits for the hubs of a fleet. Source: each reads the database five
/// times a second and confirms 0.5 s later, so a hub that has not done so after ten times as long
/// does not reach the database.
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
            invite(dir.path(), "alice", Duration::from_secs(60))
                .unwrap_err()
                .to_string()
                .contains("hub init")
        );
        init(dir.path(), &example()).unwrap();
        let line = invite(dir.path(), "alice", Duration::from_secs(60))
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
            limited.contains("hub2.example.org:443 (silent for 40 s; ends all sessions in 870 s"),
            "{limited}"
        );
        let unlimited = not_confirmed("alice", &[hub(None)]);
        assert!(unlimited.contains("serves on"), "{unlimited}");
    }

    #[test]
    fn a_hub_that_does_not_answer_is_said_and_the_enrolment_is_taken_back_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &example()).unwrap();
        invite(dir.path(), "alice", Duration::from_secs(60)).unwrap();
        let _claim = HubClaim::take(dir.path(), &dir.path().join("run")).unwrap();
        assert!(list(dir.path()).is_err());
        let said = format!("{:#}", revoke(dir.path(), "alice").unwrap_err());
        assert!(said.contains("not known whether the hub has ended"), "{said}");
        assert!(!dir.path().join("clients/alice.toml").exists());
    }
}
