//! Diagnosis of the connections between a machine and its hub, network by network: each network is
//! tested separately, outside the tunnel, whether or not a client runs. Nothing is changed.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use hawser_config::identity::Identity;
use hawser_config::{self as config, ClientConfig, DnsMode, Page};
use hawser_control::client::networks::is_made_by_translator;
use hawser_control::over_tls::dial;
use hawser_control::tls;
use hawser_host::control_socket;
use hawser_host::devices::Devices;
use hawser_host::dhcp;
use hawser_host::dns::{NameServers, NetworkAccess};
use hawser_host::finding::Finding;
use hawser_host::health::check_once;
use hawser_host::nat64;
use hawser_host::portal::{PortalCheckInputs, check_portal};
use hawser_host::sensors::Services;
use hawser_host::system_bus::SystemBus;
use hawser_linux::netlink::{Device, Network, Watch};
use hawser_linux::udp::open_bound;
use hawser_steer::portal::Outcome;
use hawser_units::Net;
use hawser_wire::nat64::Prefix;
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;

use super::memberships::Membership;
use super::tunnel::{NAMELESS, NAMES, is_nameless};

/// Network, or device that could be one.
#[derive(Clone, Debug, Serialize)]
pub struct Examined {
    /// Name of the network.
    pub name: String,
    /// Set if client.toml permits its use.
    pub used: bool,
    /// Set if the hub is reachable over it, by UDP or TLS.
    pub reaches_hub: bool,
    /// Findings, in the order of their dependencies.
    pub findings: Vec<Finding>,
}

/// Result for the hub and all networks.
#[derive(Clone, Debug, Serialize)]
pub struct Examination {
    /// Version of this format.
    pub version: u32,
    /// Endpoints of the hub; empty if the machine has joined no hub.
    pub hub: Vec<String>,
    /// Findings about the client as a whole.
    pub findings: Vec<Finding>,
    /// Results of all networks.
    pub networks: Vec<Examined>,
}

/// Tests all networks concurrently, which takes at most some 10 s. `socket` is the control socket
/// of a client, which need not run.
///
/// # Errors
/// If the configuration is invalid, or the kernel does not list the networks.
pub async fn examine(dir: &Path, socket: &Path) -> anyhow::Result<Examination> {
    let mut config: ClientConfig = config::load_or_default(&dir.join("client.toml"))?;
    let mut present = Devices::new(Services::start(SystemBus::default()));
    let followed = present.apply_to(&mut config).await;
    followed.context("cannot list the devices of this machine")?;
    let mut joined = Membership::load(dir)?.into_iter().next();
    if let Some(joined) = &mut joined {
        // The known addresses remain if the name does not resolve.
        joined.resolve(&config).await;
    }
    let key = dir.join("identity.key");
    let identity = match key.exists() {
        true => Some(Identity::load_or_create(&key)?),
        false => None,
    };
    let devices = Watch::devices()?.next().await.context("no devices")?;
    let networks = Watch::start()?.next().await.context("no networks")?;
    let servers = NameServers::read().await;
    let status = status(socket);
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
                nat64: prefix_in_use(status.as_ref(), name),
            };
            async move { patient.examine().await }
        });
    let networks = futures_util::future::join_all(examined).await;
    let hub = joined.iter().flat_map(|joined| &joined.endpoints);
    Ok(Examination {
        version: 1,
        hub: hub.map(ToString::to_string).collect(),
        findings: of_machine(&config, joined.is_some(), status.as_ref()),
        networks,
    })
}

/// Returns the status of the client, if it runs.
fn status(socket: &Path) -> Option<Value> {
    control_socket::ask(socket, &control_socket::Request::Status).ok()
}

/// Returns the prefix of a network's translator, if a running client uses it.
fn prefix_in_use(status: Option<&Value>, name: &str) -> Option<Prefix> {
    let networks = status?["networks"].as_array()?;
    let network = networks.iter().find(|network| network["name"] == name)?;
    let Net { address, prefix } = network["nat64"].as_str()?.parse().ok()?;
    let IpAddr::V6(address) = address else { return None };
    Prefix::new(address, prefix)
}

/// Returns findings about the machine as a whole. `has_membership` is set if this machine is a
/// client of a hub.
fn of_machine(config: &ClientConfig, has_membership: bool, status: Option<&Value>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(configuration(config, has_membership));
    found.extend(without_session(status));
    found.extend(resolvers(config.dns, status));
    found.extend(swapped_names(status));
    found
}

/// Returns a finding if the configuration is rejected.
fn configuration(config: &ClientConfig, has_membership: bool) -> Option<Finding> {
    let with_hub = config.unfit_for_hub()?;
    let is_refused = has_membership || config.unfit_for_direct().is_some();
    let next = "change client.toml, then: hawser check /etc/hawser/client.toml";
    is_refused.then(|| Finding::bad("config", with_hub, next))
}

/// Returns a finding if a running client has no session, with its reason.
fn without_session(status: Option<&Value>) -> Option<Finding> {
    let status = status.filter(|status| status["state"] != "up")?;
    let reason = status["notice"].as_str()?;
    Some(Finding::bad("client", reason, "sudo hawser status"))
}

/// Returns findings about names of networks in client.toml that now belong to another device.
fn swapped_names(status: Option<&Value>) -> Vec<Finding> {
    let all = status.and_then(|status| status["swapped_names"].as_array());
    let all = all.into_iter().flatten().filter_map(Value::as_str);
    all.map(|said| Finding::bad("names", said, KEEP_NAMES)).collect()
}

/// Reason why a network with IPv6 only does not reach a hub.
const NO_TRANSLATOR: &str = "the network has IPv6 only and no NAT64, and the hub has only an IPv4 address";
/// Remedy for devices that swap names.
const KEEP_NAMES: &str = "check [networks] in client.toml; a file /etc/systemd/network/10-NAME.link with MACAddress= keeps an interface name constant";

/// Returns a finding if the hub announces no resolvers although they are required. `status` is that
/// of a running client, which has none before its hub has answered.
fn resolvers(mode: DnsMode, status: Option<&Value>) -> Option<Finding> {
    let named: Vec<IpAddr> = serde_json::from_value(status?["resolvers"].clone()).ok()?;
    is_nameless(mode, &named).then(|| Finding::bad("dns", NAMELESS, NAMES))
}

/// Network that is being examined.
struct Patient<'a> {
    device: &'a Device,
    network: Option<&'a Network>,
    config: &'a ClientConfig,
    joined: Option<&'a Membership>,
    identity: Option<&'a Identity>,
    servers: Vec<IpAddr>,
    /// Address of the captive portal API.
    api: Option<String>,
    /// Prefix of its translator that the client uses.
    nat64: Option<Prefix>,
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
            Finding::good("link", "exists")
        } else {
            Finding::bad(
                "link",
                "does not exist",
                "connect the cable, join the Wi-Fi network, or switch the modem on",
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
                &format!(
                    "configure an address, or write dhcp = \"auto\" under [networks.{name}] in client.toml"
                ),
            ),
            None => Finding::bad(
                "address",
                "there is an address, but no default route",
                &format!(
                    "nothing, if {name} is a local network behind this machine; otherwise set a default route"
                ),
            ),
        }
    }

    fn access(&self) -> NetworkAccess {
        NetworkAccess {
            number: 0,
            device: self.device.name.clone(),
            index: self.device.index,
            servers: self.servers.clone(),
        }
    }

    /// Checks whether the network's resolvers resolve the hub's name, or any name.
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
            return Finding::bad("dns", "no resolver is known for it", next);
        }
        let access = self.access();
        let found = timeout(TIMEOUT, async {
            let both = tokio::join!(access.addresses(name, false), access.addresses(name, true));
            both.0.is_ok_and(|found| !found.is_empty()) || both.1.is_ok_and(|found| !found.is_empty())
        });
        if found.await.unwrap_or(false) {
            return Finding::good("dns", &format!("its resolvers resolve {name}"));
        }
        let asked: Vec<_> = self.servers.iter().map(ToString::to_string).collect();
        Finding::bad(
            "dns",
            &format!("its resolvers ({}) do not resolve {name}", asked.join(", ")),
            "a hub that was reached before is found without a resolver; otherwise use an address as the hub's endpoint",
        )
    }

    async fn portal(&self) -> Finding {
        let Some(page) = &self.config.direct.portal_check.0 else {
            return Finding::good("portal", "not tested (portal_check = \"off\")");
        };
        self.check_portal(page).await
    }

    /// Runs the network's health check once; `None` without a check.
    async fn check(&self) -> Option<Finding> {
        let check = self.config.network(&self.device.name).check?;
        let answers = check_once(&self.access(), &check).await;
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
                "the network is not used until the check succeeds: use other targets in [networks.NAME.check], or remove the check",
            ),
        })
    }

    async fn check_portal(&self, page: &Page) -> Finding {
        let look = PortalCheckInputs {
            access: self.access(),
            page: page.clone(),
            api: self.api.clone(),
        };
        let found = check_portal(&look).await;
        match found.outcome {
            Outcome::Page => Finding::good("portal", "none"),
            Outcome::Other => {
                let login = found.login.unwrap_or_else(|| "any http:// page".to_owned());
                Finding::bad(
                    "portal",
                    "a login page intercepts connections",
                    &format!("log in at {login}"),
                )
            }
            Outcome::Nothing => Finding {
                what: "portal",
                good: true,
                said: format!("not known: {} does not answer", page.host),
                next: None,
            },
        }
    }

    /// Tests the hub by UDP and by TLS on TCP, and the size of packets. Also returns whether either
    /// works.
    async fn hub(&self, network: &Network) -> (Vec<Finding>, bool) {
        let (Some(joined), Some(identity)) = (self.joined, self.identity) else {
            let next = "join a hub: `sudo hawser up` asks for an invitation (from `hawser hub invite NAME` on the hub)";
            return (
                vec![Finding::bad("udp", "this machine has not joined a hub", next)],
                false,
            );
        };
        let is_own =
            |address: &&SocketAddr| network.carries(address.is_ipv6()) && !is_made_by_translator(address);
        let own = joined.addresses.iter().find(is_own).copied();
        let mut findings = Vec::new();
        let (remote, hub) = match own {
            Some(own) => (own, own),
            None => match self.translated(network, &joined.addresses).await {
                Ok((remote, hub, prefix)) => {
                    let said = format!("the network translates {} ({prefix})", hub.ip());
                    findings.push(Finding::good("nat64", &said));
                    (remote, hub)
                }
                Err(finding) => return (vec![finding], false),
            },
        };
        let (udp, tcp) = tokio::join!(
            by_udp(&self.device.name, remote, network.mtu, identity, joined),
            self.by_tls([remote, hub], joined)
        );
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
                    "none: TLS on TCP is used on this network".to_owned()
                } else {
                    let port = remote.port();
                    format!("check that the hub is running, and that its firewall admits UDP port {port}")
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

    /// Returns the address at which the network's translator forwards to the hub, the hub's own
    /// address, and the prefix; or the reason why there is none.
    async fn translated(
        &self,
        network: &Network,
        hub: &[SocketAddr],
    ) -> Result<(SocketAddr, SocketAddr, Prefix), Finding> {
        if !network.carries(true) {
            let said = "the hub has no address of a family that this network carries";
            return Err(Finding::bad("udp", said, "name another endpoint in hub.toml"));
        }
        let access = self.access();
        let found = timeout(TIMEOUT, nat64::resolve_once(&access)).await;
        let found = found.ok().and_then(Result::ok).unwrap_or_default();
        let prefixes = self.nat64.into_iter().chain(found);
        let translated = |prefix: Prefix| {
            let mut hub = hub.iter();
            hub.find_map(|own| Some((prefix.translate(*own)?, *own, prefix)))
        };
        let next = "give the hub an IPv6 address too, as another endpoint in hub.toml";
        prefixes
            .filter_map(translated)
            .next()
            .ok_or_else(|| Finding::bad("nat64", NO_TRANSLATOR, next))
    }

    async fn by_tls(&self, addresses: [SocketAddr; 2], joined: &Membership) -> Result<Tcp, (u16, String)> {
        let addresses = addresses.map(|address| address.ip());
        let plan = joined.by_tls(&self.device.name, addresses, self.config);
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
                format!(
                    "none while UDP works; for networks that block UDP, admit TCP port {port} in the hub's firewall"
                )
            } else {
                format!(
                    "check that the hub listens on TCP port {port} ([tls] in hub.toml), and that its firewall admits it"
                )
            };
            Finding::bad(
                "tcp",
                &format!("the hub does not answer TLS on TCP {port}: {error}"),
                &next,
            )
        }
    }
}

/// Returns the finding about the largest packet that passed. `mtu` is the device's MTU.
fn size_finding(size: u16, mtu: u32) -> Finding {
    if u32::from(size) + SIZE_STEP >= mtu.min(LARGEST) {
        return Finding::good(
            "mtu",
            &format!("packets of {size} bytes pass (MTU of the device: {mtu})"),
        );
    }
    let said =
        format!("large packets do not pass: at most {size} bytes, although the MTU of the device is {mtu}");
    if size < 1_280 {
        let next = "ask the operator of the network; small packets use it, large packets use other networks or are split";
        Finding::bad("mtu", &said, next)
    } else {
        Finding {
            next: Some("none: the tunnel determines the size itself".to_owned()),
            ..Finding::good("mtu", &said)
        }
    }
}

/// Measures the duration of the handshake with the hub, and the largest IP packet that passed.
async fn by_udp(
    device: &str,
    remote: SocketAddr,
    mtu: u32,
    identity: &Identity,
    joined: &Membership,
) -> anyhow::Result<(Duration, u16)> {
    let socket: UdpSocket = open_bound(device, remote.is_ipv6())?;
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = quinn::Endpoint::new(tls::client_endpoint_config(), None, socket, runtime)?;
    let mut config = tls::client_config(identity, joined.hub_key)?;
    let mut transport = quinn::TransportConfig::default();
    transport.initial_rtt(tls::FIRST_ROUND_TRIP);
    let headers = if remote.is_ipv6() { 48 } else { 28 };
    // By default the library searches sizes up to 1452 bytes of payload, and stops within 20 bytes.
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

/// Waits until the library has determined the largest UDP payload that passes: until the size has
/// not grown for the duration of all attempts at one size.
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

/// Timeout of one answer: far networks have round trips of 2 s. Source: our choice, two such round
/// trips and a margin; a longer one delays the report on networks that drop packets.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the search for a size. Source: our choice, four of [`STILL`]; a longer one delays the
/// report, a shorter one reports too small a size on far networks.
const SIZES: Duration = Duration::from_secs(6);
/// Time without growth after which a size is final: the library tries each size three times, at
/// intervals of a probe timeout of about three round trips (some 30 ms in a local network). Source:
/// our choice; three attempts at three round trips of 160 ms, and twelve round trips where these
/// are longer.
const STILL: Duration = Duration::from_millis(1_500);
/// Resolution of the size. Source: `STEP` of `core/proto/src/path/pmtu/mod.rs`. Units: bytes.
const SIZE_STEP: u32 = 8;
/// Largest packet size in the search, that of jumbo frames. Source: `MAX_SPLIT` of
/// `core/wire/src/fragment.rs`. Units: bytes.
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
        let found = |text: &str, has_membership, status: Value| {
            let config: ClientConfig = config::parse(Path::new("client.toml"), text).unwrap();
            let found = of_machine(&config, has_membership, Some(&status));
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
