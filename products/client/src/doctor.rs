//! What stands between a machine and its hub, network by network: each is tried by itself, past the
//! tunnel, whether or not a client runs, and nothing is changed.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use hawser_config::identity::Identity;
use hawser_config::{self as config, ClientConfig, DnsMode, Page};
use hawser_control::over_tls::dial;
use hawser_control::tls;
use hawser_host::control_socket;
use hawser_host::dhcp;
use hawser_host::dns::{NameServers, Place};
use hawser_host::finding::Finding;
use hawser_host::health::check_once;
use hawser_host::portal::{Look, look_for_portal};
use hawser_linux::netlink::{Device, Network, Watch};
use hawser_linux::udp::open_bound;
use hawser_steer::portal::Outcome;
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;

use super::joined::Joined;
use super::tunnel::{NAMELESS, NAMES, is_nameless};

/// A network, or a device that could be one.
#[derive(Clone, Debug, Serialize)]
pub struct Examined {
    /// Its name.
    pub name: String,
    /// Whether client.toml lets it be used.
    pub used: bool,
    /// Whether the hub is reached over it, one way or the other.
    pub reaches_hub: bool,
    /// What was found, in the order in which one thing needs the other.
    pub findings: Vec<Finding>,
}

/// The hub, and all networks.
#[derive(Clone, Debug, Serialize)]
pub struct Examination {
    /// Version of this format.
    pub version: u32,
    /// The hub's endpoints; none of a machine that has joined no hub.
    pub hub: Vec<String>,
    /// Defects of the client as a whole.
    pub findings: Vec<Finding>,
    /// Every network.
    pub networks: Vec<Examined>,
}

/// Tries everything over every network at once. Takes some ten seconds at most. `socket`: the
/// control socket of a client, which need not run.
///
/// # Errors
/// The configuration is wrong, or the kernel does not say which networks there are.
pub async fn examine(dir: &Path, socket: &Path) -> anyhow::Result<Examination> {
    let config: ClientConfig = config::load_or_default(&dir.join("client.toml"))?;
    let mut joined = Joined::load(dir)?.into_iter().next();
    if let Some(joined) = &mut joined {
        // What was known holds where the name does not resolve.
        joined.resolve(&config).await;
    }
    let key = dir.join("identity.key");
    let identity = match key.exists() {
        true => Some(Identity::load_or_create(&key)?),
        false => None,
    };
    let devices = Watch::devices()?.next().await.context("no devices")?;
    let networks = Watch::start()?.next().await.context("no networks")?;
    let servers = NameServers::look().await;
    let is_own = |name: &str| name == config.interface.0 || name.starts_with("hawser");
    let examined = devices
        .iter()
        .filter(|device| !is_own(&device.name))
        .map(|device| {
            let network = networks.iter().find(|network| network.index == device.index);
            let (name, set) = (&device.name, config.network(&device.name).dns);
            let known = dhcp::known(set, None, &servers, (name, device.index));
            let patient = Patient {
                device,
                network,
                config: &config,
                joined: joined.as_ref(),
                identity: identity.as_ref(),
                servers: known.addresses,
                api: known.portal_api,
            };
            async move { patient.examine().await }
        });
    let networks = futures_util::future::join_all(examined).await;
    let hub = joined.iter().flat_map(|joined| &joined.endpoints);
    Ok(Examination {
        version: 1,
        hub: hub.map(ToString::to_string).collect(),
        findings: of_machine(&config, joined.is_some(), status(socket).as_ref()),
        networks,
    })
}

/// The status of the client, where one runs.
fn status(socket: &Path) -> Option<Value> {
    control_socket::ask(socket, &control_socket::Request::Status).ok()
}

/// Finds what concerns no single network. `has_joined`: this machine is a client of a hub.
fn of_machine(config: &ClientConfig, has_joined: bool, status: Option<&Value>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(configuration(config, has_joined));
    found.extend(resolvers(config.dns, status));
    found.extend(swapped_names(status));
    found
}

/// Finds a configuration that is refused.
fn configuration(config: &ClientConfig, has_joined: bool) -> Option<Finding> {
    let with_hub = config.unfit_for_hub()?;
    let is_refused = has_joined || config.unfit_for_direct().is_some();
    let next = "change client.toml, then: hawser check /etc/hawser/client.toml";
    is_refused.then(|| Finding::bad("config", with_hub, next))
}

/// Finds names of networks that another device has taken, and of which client.toml says something.
fn swapped_names(status: Option<&Value>) -> Vec<Finding> {
    let all = status.and_then(|status| status["swapped_names"].as_array());
    let all = all.into_iter().flatten().filter_map(Value::as_str);
    all.map(|said| Finding::bad("names", said, KEEP_NAMES)).collect()
}

/// The remedy where devices swap names.
const KEEP_NAMES: &str = "check [networks] in client.toml; names that stay: MACAddress= in a file /etc/systemd/network/10-NAME.link";

/// Finds that the hub names no resolvers where they are wanted. `status`: of a running client,
/// which names none before its hub has answered.
fn resolvers(mode: DnsMode, status: Option<&Value>) -> Option<Finding> {
    let named: Vec<IpAddr> = serde_json::from_value(status?["resolvers"].clone()).ok()?;
    is_nameless(mode, &named).then(|| Finding::bad("dns", NAMELESS, NAMES))
}

/// A network under examination.
struct Patient<'a> {
    device: &'a Device,
    network: Option<&'a Network>,
    config: &'a ClientConfig,
    joined: Option<&'a Joined>,
    identity: Option<&'a Identity>,
    servers: Vec<IpAddr>,
    /// Of captive portals.
    api: Option<String>,
}

impl Patient<'_> {
    async fn examine(&self) -> Examined {
        let mut findings = vec![self.link(), self.address()];
        let mut reaches_hub = false;
        if let Some(network) = self.network {
            let (names, portal, check, hub) =
                tokio::join!(self.names(), self.portal(), self.check(), self.hub(network));
            findings.extend([names, portal]);
            findings.extend(check);
            reaches_hub = hub.1;
            findings.extend(hub.0);
        }
        Examined {
            name: self.device.name.clone(),
            used: self.config.uses(&self.device.name),
            reaches_hub,
            findings,
        }
    }

    fn link(&self) -> Finding {
        if self.device.has_carrier {
            Finding::good("link", "is there")
        } else {
            Finding::bad(
                "link",
                "is not there",
                "plug the cable in, join the Wi-Fi, or switch the modem on",
            )
        }
    }

    fn address(&self) -> Finding {
        let name = &self.device.name;
        match self.network {
            Some(network) => {
                let all: Vec<_> = network
                    .addresses
                    .iter()
                    .map(|(a, p)| format!("{a}/{p}"))
                    .collect();
                Finding::good("address", &all.join(", "))
            }
            None if self.device.addresses.is_empty() => Finding::bad(
                "address",
                "none",
                &format!("set one up, or write dhcp = \"auto\" under [networks.{name}] in client.toml"),
            ),
            None => Finding::bad(
                "address",
                "there is one, and no default route",
                &format!("without a router nothing is reached over {name}: set a default route up"),
            ),
        }
    }

    fn place(&self) -> Place {
        Place {
            number: 0,
            device: self.device.name.clone(),
            index: self.device.index,
            servers: self.servers.clone(),
        }
    }

    /// Whether the network's resolvers know the hub's name, or any.
    async fn names(&self) -> Finding {
        let hosts = self.joined.iter().flat_map(|joined| &joined.endpoints);
        let mut names = hosts.map(|endpoint| endpoint.host.as_str());
        let hub = names.find(|host| host.parse::<IpAddr>().is_err());
        let page = self
            .config
            .direct
            .portal_check
            .0
            .as_ref()
            .map(|page| page.host.as_str());
        let Some(name) = hub.or(page) else {
            return Finding::good("dns", "no name is needed");
        };
        if self.servers.is_empty() {
            let next = "write dns = [\"ADDRESS\"] under its name in client.toml";
            return Finding::bad("dns", "nobody names resolvers for it", next);
        }
        let place = self.place();
        let found = timeout(TIMEOUT, async {
            let both = tokio::join!(place.addresses(name, false), place.addresses(name, true));
            both.0.is_ok_and(|found| !found.is_empty()) || both.1.is_ok_and(|found| !found.is_empty())
        });
        if found.await.unwrap_or(false) {
            return Finding::good("dns", &format!("its resolvers know {name}"));
        }
        let asked: Vec<_> = self.servers.iter().map(ToString::to_string).collect();
        Finding::bad(
            "dns",
            &format!("its resolvers ({}) do not know {name}", asked.join(", ")),
            "a hub that was reached before is found all the same; else name an address as the hub's endpoint",
        )
    }

    async fn portal(&self) -> Finding {
        let Some(page) = &self.config.direct.portal_check.0 else {
            return Finding::good("portal", "not looked for (portal_check = \"off\")");
        };
        self.look(page).await
    }

    /// Asks the targets of the network's check once; `None` without a check.
    async fn check(&self) -> Option<Finding> {
        let check = self.config.network(&self.device.name).check?;
        let answers = check_once(&self.place(), &check).await;
        let each = check.targets.iter().zip(&answers).map(|(target, answers)| {
            let delay = answers.delay.map(|delay| format!("{} ms", delay.as_millis()));
            format!("{target}: {}", delay.unwrap_or_else(|| "no answer".to_owned()))
        });
        let said = each.collect::<Vec<_>>().join(", ");
        Some(match check.terms.is_good(&answers) {
            true => Finding::good("check", &said),
            false => Finding::bad(
                "check",
                &said,
                "the network is not used while this lasts: try other targets in [networks.NAME.check], or take it out",
            ),
        })
    }

    async fn look(&self, page: &Page) -> Finding {
        let look = Look {
            place: self.place(),
            page: page.clone(),
            api: self.api.clone(),
        };
        let found = look_for_portal(&look).await;
        match found.outcome {
            Outcome::Page => Finding::good("portal", "none"),
            Outcome::Other => {
                let login = found.login.unwrap_or_else(|| "any http:// page".to_owned());
                Finding::bad(
                    "portal",
                    "a login page is in between",
                    &format!("log in at {login}"),
                )
            }
            Outcome::Nothing => Finding {
                what: "portal",
                good: true,
                said: format!("cannot tell: {} does not answer", page.host),
                next: None,
            },
        }
    }

    /// The hub by UDP and by TLS on TCP, and the size of packets; whether either works.
    async fn hub(&self, network: &Network) -> (Vec<Finding>, bool) {
        let (Some(joined), Some(identity)) = (self.joined, self.identity) else {
            let next = "join one: sudo hawser up INVITATION (from `hawser hub invite NAME` on the hub)";
            return (vec![Finding::bad("udp", "no hub is known", next)], false);
        };
        let carried = |address: &&SocketAddr| network.carries(address.is_ipv6());
        let Some(remote) = joined.addresses.iter().find(carried).copied() else {
            let said = "the hub has no address of a family that this network carries";
            return (
                vec![Finding::bad("udp", said, "name another endpoint in hub.toml")],
                false,
            );
        };
        let (udp, tcp) = tokio::join!(
            by_udp(&self.device.name, remote, network.mtu, identity, joined),
            self.by_tls(remote, joined)
        );
        let mut findings = Vec::new();
        match &udp {
            Ok((took, size)) => {
                let took = took.as_millis();
                findings.push(Finding::good(
                    "udp",
                    &format!("the hub at {remote} answers in {took} ms"),
                ));
                findings.push(tcp_finding(&tcp, true));
                findings.push(size_finding(*size, network.mtu));
            }
            Err(error) => {
                let next = if tcp.is_ok() {
                    "nothing: TLS on TCP is used here".to_owned()
                } else {
                    let port = remote.port();
                    format!("is the hub running, and UDP {port} open in its firewall?")
                };
                findings.push(Finding::bad(
                    "udp",
                    &format!("no answer from the hub at {remote}: {error}"),
                    &next,
                ));
                findings.push(tcp_finding(&tcp, false));
            }
        }
        (findings, udp.is_ok() || tcp.is_ok())
    }

    async fn by_tls(&self, remote: SocketAddr, joined: &Joined) -> Result<Tcp, (u16, String)> {
        let plan = joined.by_tls(&self.device.name, remote.ip(), self.config);
        let port = plan.remote.port();
        let is_hubs_key = dial::try_once(&plan).await.map_err(|error| (port, error))?;
        Ok(Tcp { port, is_hubs_key })
    }
}

struct Tcp {
    port: u16,
    is_hubs_key: bool,
}

fn tcp_finding(tcp: &Result<Tcp, (u16, String)>, has_udp: bool) -> Finding {
    match tcp {
        Ok(Tcp { port, is_hubs_key }) => {
            let whose = if *is_hubs_key {
                ""
            } else {
                " (with a certificate that is not of the hub's own key)"
            };
            Finding::good("tcp", &format!("the hub answers TLS on TCP {port}{whose}"))
        }
        Err((port, error)) => {
            let next = if has_udp {
                format!("nothing while UDP works; for networks that block it: let TCP {port} in at the hub")
            } else {
                format!(
                    "does the hub listen on TCP {port} ([tls] in hub.toml), and does its firewall let it in?"
                )
            };
            Finding::bad("tcp", &format!("no hub by TLS on TCP {port}: {error}"), &next)
        }
    }
}

/// What the largest packet that passed says. `mtu`: the largest that the device takes.
fn size_finding(size: u16, mtu: u32) -> Finding {
    if u32::from(size) + SIZE_STEP >= mtu.min(LARGEST) {
        return Finding::good(
            "mtu",
            &format!("packets of {size} bytes pass (the device takes {mtu})"),
        );
    }
    let said = format!("large packets do not pass: {size} bytes at most, though the device takes {mtu}");
    if size < 1_280 {
        let next = "ask who runs the network: small packets use it, large ones other networks or pieces";
        Finding::bad("mtu", &said, next)
    } else {
        Finding {
            next: Some("nothing: the tunnel finds the size by itself".to_owned()),
            ..Finding::good("mtu", &said)
        }
    }
}

/// How long the hub took to prove its key, and the largest IP packet that got through.
async fn by_udp(
    device: &str,
    remote: SocketAddr,
    mtu: u32,
    identity: &Identity,
    joined: &Joined,
) -> anyhow::Result<(Duration, u16)> {
    let socket: UdpSocket = open_bound(device, remote.is_ipv6())?;
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = quinn::Endpoint::new(tls::client_endpoint_config(), None, socket, runtime)?;
    let mut config = tls::client_config(identity, joined.hub_key)?;
    let mut transport = quinn::TransportConfig::default();
    transport.initial_rtt(tls::FIRST_ROUND_TRIP);
    let headers = if remote.is_ipv6() { 48 } else { 28 };
    // The library looks for sizes up to 1452 bytes of payload by itself, and stops 20 bytes short.
    let mut sizes = quinn::MtuDiscoveryConfig::default();
    sizes.upper_bound(mtu.min(LARGEST).saturating_sub(u32::from(headers)) as u16);
    sizes.minimum_change(SIZE_STEP as u16);
    transport.mtu_discovery_config(Some(sizes));
    config.transport_config(Arc::new(transport));
    let since = Instant::now();
    let connecting = endpoint.connect_with(config, remote, tls::SERVER_NAME)?;
    let connection = timeout(TIMEOUT, connecting).await.context("silence")??;
    let took = since.elapsed();
    let size = largest(&connection, took).await + headers;
    connection.close(0_u8.into(), b"");
    let _ = timeout(GOODBYE, endpoint.wait_idle()).await;
    Ok((took, size))
}

/// Waits until the library has found the size of packets that pass, of UDP payload: until the size
/// has not grown for as long as all tries of one size take.
async fn largest(connection: &quinn::Connection, took: Duration) -> u16 {
    let deadline = Instant::now() + SIZES;
    let still = STILL.max(took * 12);
    let (mut size, mut since) = (0, Instant::now());
    while Instant::now() < deadline && since.elapsed() < still {
        let now = connection.stats().path.current_mtu;
        if now != size {
            (size, since) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    size
}

/// For one answer: far networks have round trips of 2 s.
const TIMEOUT: Duration = Duration::from_secs(5);
/// For the search of a size, at most.
const SIZES: Duration = Duration::from_secs(6);
/// A size that has not grown for this long is final: the library tries each size three times, a
/// probe timeout of some three round trips apart, of which a local network's is some 30 ms.
const STILL: Duration = Duration::from_millis(1_500);
/// Sizes are found to this many bytes, as the tunnel finds them.
const SIZE_STEP: u32 = 8;
/// No larger size is looked for: that of jumbo frames.
const LARGEST: u32 = 9_216;
const GOODBYE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_hub_that_names_no_resolver_is_found_once_it_has_answered() {
        let found = |status: Value| resolvers(DnsMode::Hub, Some(&status)).map(|finding| finding.what);
        assert_eq!(found(json!({ "resolvers": [] })), Some("dns"));
        assert_eq!(found(json!({ "resolvers": ["9.9.9.9"] })), None);
        assert_eq!(found(json!({ "resolvers": null })), None);
        assert_eq!(resolvers(DnsMode::Hub, None), None);
        assert_eq!(resolvers(DnsMode::Keep, Some(&json!({ "resolvers": [] }))), None);
    }

    #[test]
    fn a_configuration_that_is_refused_and_swapped_names_are_found() {
        let found = |text: &str, has_joined, status: Value| {
            let config: ClientConfig = config::parse(Path::new("client.toml"), text).unwrap();
            let found = of_machine(&config, has_joined, Some(&status));
            found.iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        let healthy = || json!({ "resolvers": ["9.9.9.9"], "swapped_names": [] });
        assert_eq!(found("", true, healthy()), [""; 0]);
        let of_direct_mode = "[networks.eth1]\nweight = 2\n";
        assert_eq!(found(of_direct_mode, true, healthy()), ["config"]);
        assert_eq!(found(of_direct_mode, false, healthy()), [""; 0]);
        let of_none = "kill_switch = true\nwhen_ended = \"open\"\n";
        assert_eq!(found(of_none, false, healthy()), ["config"]);
        let swapped = json!({ "swapped_names": ["eth1 is another device now"] });
        assert_eq!(found("", true, swapped), ["names"]);
    }
}
