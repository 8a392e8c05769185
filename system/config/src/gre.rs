//! Configuration of members without Hawser, to which a hub tunnels by GRE.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use hawser_units::Net;
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::{AnyNet, Net4, ports};

/// `[gre]` of `hub.toml`: members without Hawser.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubGreConfig {
    /// Addresses of the hub that are reachable only inside GRE.
    pub network: Net4,
    /// Addresses of members, the other ends of tunnels.
    pub members: Vec<AnyNet>,
    /// GRE key of packets in both directions; if absent, packets have no key.
    #[serde(default)]
    pub key: Option<u32>,
}

impl HubGreConfig {
    /// Returns whether tunnels may end at that address.
    #[must_use]
    pub fn allows(&self, member: Ipv4Addr) -> bool {
        self.members
            .iter()
            .any(|net| net.0.contains(IpAddr::from(member)))
    }

    /// Returns whether the address is the hub inside GRE.
    #[must_use]
    pub fn is_hub(&self, at: SocketAddrV4) -> bool {
        let network = Net::new(self.network.0, self.network.1);
        at.port() == ports::GRE && network.contains(IpAddr::from(*at.ip()))
    }
}

/// `[[pool.gre]]` of `client.toml`: a member without Hawser.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GreMember {
    /// Name of its uplink on this machine.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// Address in the local network.
    pub member: Ipv4Addr,
    /// Addresses of the hub inside GRE: `network` under `[gre]` of `hub.toml`.
    pub network: Net4,
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.' ".contains(&byte);
    if (1..=32).contains(&name.len()) && name.bytes().all(fits) {
        Ok(name)
    } else {
        Err(de::Error::custom(format_args!(
            "{name:?} is no name: expected 1 to 32 letters, digits, spaces, and - _ . '"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_knows_its_members_and_itself() {
        let text = "network = \"10.47.47.0/24\"\nmembers = [\"198.51.100.7\", \"203.0.113.0/24\"]";
        let config: HubGreConfig = toml::from_str(text).unwrap();
        let allows = |text: &str| config.allows(text.parse().unwrap());
        assert!(allows("198.51.100.7") && allows("203.0.113.9") && !allows("198.51.100.8"));
        let is_hub = |text: &str| config.is_hub(text.parse().unwrap());
        assert!(is_hub("10.47.47.1:47474") && is_hub("10.47.47.9:47474"));
        assert!(!is_hub("10.47.47.1:443") && !is_hub("10.47.48.1:47474"));
        assert!(toml::from_str::<HubGreConfig>("network = \"10.47.47.0/24\"").is_err());
    }

    #[test]
    fn a_member_has_a_name_and_an_address() {
        let read = |name: &str| {
            let text = format!("name = {name:?}\nmember = \"192.168.1.7\"\nnetwork = \"10.47.47.0/24\"");
            toml::from_str::<GreMember>(&text)
        };
        let member = read("bob's router").unwrap();
        assert_eq!(member.member, Ipv4Addr::new(192, 168, 1, 7));
        assert!(read("").is_err() && read("a\nb").is_err());
    }
}
