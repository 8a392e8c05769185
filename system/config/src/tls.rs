//! Configuration of TLS on TCP, for networks that block or police UDP.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;

use data_encoding::HEXLOWER_PERMISSIVE;
use serde::Deserialize;
use serde::de::{self, Deserializer};
use zeroize::Zeroizing;

use crate::invitation::HubAddress;
use crate::ports;

/// `[tls]` of `client.toml`: use of TLS on TCP on networks that block or police UDP.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// Networks that use it: `blocked` (where UDP is blocked or policed), `always`, `never`.
    #[serde(rename = "use")]
    pub when: TlsUse,
    /// TCP port of the hub.
    pub port: NonZeroU16,
    /// Name of the hub in TLS and HTTP, and for proxies; that of its endpoint unless set.
    pub name: Option<HostName>,
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            when: TlsUse::default(),
            port: NonZeroU16::new(ports::TLS).expect("443 is not 0"),
            name: None,
        }
    }
}

/// Use of TLS on TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsUse {
    /// Used on a network over which the hub does not answer by UDP, or that polices UDP.
    #[default]
    Blocked,
    /// Used on every network, concurrently with UDP.
    Always,
    /// Never.
    Never,
}

/// `[tls]` of `hub.toml`: access for clients whose networks block UDP.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HubTlsConfig {
    /// TCP address to listen on: every address at port 443 unless set; `off`.
    pub listen: Option<TlsListen>,
    /// Certificate (with its chain) and key, in files of PEM; one of the hub's own key unless set.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Authority that issues a certificate automatically.
    pub acme: Option<AcmeConfig>,
}

/// `[tls.acme]` of `hub.toml`: certificate of an authority, obtained and renewed by ACME (RFC
/// 8555).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcmeConfig {
    /// Host names of the certificate; each must resolve to this hub's TCP port 443.
    #[serde(deserialize_with = "names")]
    pub names: Vec<String>,
    /// A mail address for the authority's warnings.
    pub contact: Option<String>,
    /// The authority's address: Let's Encrypt unless set.
    #[serde(default = "lets_encrypt", deserialize_with = "directory")]
    pub directory: String,
    /// Issuer of the authority's own certificate, a file of PEM; the system's trust store unless
    /// set.
    pub ca: Option<PathBuf>,
}

impl AcmeConfig {
    /// Creates the configuration of a Let's Encrypt certificate for these names.
    #[must_use]
    pub fn for_names(names: &[&str]) -> Self {
        Self {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            contact: None,
            directory: lets_encrypt(),
            ca: None,
        }
    }
}

/// Parses host names, at least one; IP addresses are rejected, since `tls-alpn-01` is not used for
/// them.
fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let names: Vec<HostName> = Deserialize::deserialize(deserializer)?;
    let names: Vec<String> = names
        .into_iter()
        .map(|name| name.0.to_ascii_lowercase())
        .collect();
    if names.is_empty() {
        return Err(de::Error::custom(
            "names is empty: write a name of the hub, such as [\"hub.example.org\"]",
        ));
    }
    match names
        .iter()
        .find(|name| name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok())
    {
        Some(address) => Err(de::Error::custom(format_args!(
            "{address} is an address: certificates are issued for names"
        ))),
        None => Ok(names),
    }
}

fn directory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let directory = String::deserialize(deserializer)?;
    if directory.starts_with("https://") {
        return Ok(directory);
    }
    Err(de::Error::custom(format_args!(
        "{directory:?} is wrong: expected the authority's directory, which begins with https://"
    )))
}

fn lets_encrypt() -> String {
    "https://acme-v02.api.letsencrypt.org/directory".to_owned()
}

/// TCP address of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsListen {
    /// Nowhere.
    Off,
    /// Address to listen on.
    At(SocketAddr),
}

impl FromStr for TlsListen {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "off" => Ok(Self::Off),
            address => address.parse().map(Self::At).map_err(|_| ()),
        }
    }
}

from_text!(TlsListen, "ADDRESS:PORT, such as \"[::]:443\", or \"off\"");

/// A name or address of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(pub String);

impl FromStr for HostName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // The permitted characters are those of an endpoint.
        let whole = if text.contains(':') {
            format!("[{text}]:1")
        } else {
            format!("{text}:1")
        };
        let parsed: HubAddress = whole.parse().map_err(|_| ())?;
        Ok(Self(parsed.host))
    }
}

from_text!(HostName, "a name, such as \"hub.example.org\"");

/// Protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    /// CONNECT of HTTP.
    Http,
    /// SOCKS5.
    Socks5,
}

/// Credentials for a proxy. Wiped when dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub name: Zeroizing<String>,
    /// The password.
    pub password: Zeroizing<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(redacted)")
    }
}

/// A network's proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Protocol of the proxy.
    pub kind: ProxyKind,
    /// Host name or address of the proxy.
    pub host: String,
    /// Port of the proxy.
    pub port: u16,
    /// Credentials, if it requires them.
    pub login: Option<Login>,
}

impl FromStr for Proxy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (kind, rest) = if let Some(rest) = text.strip_prefix("http://") {
            (ProxyKind::Http, rest)
        } else if let Some(rest) = text.strip_prefix("socks5://") {
            (ProxyKind::Socks5, rest)
        } else {
            return Err(());
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login.split_once(':').ok_or(())?), place),
            None => (None, rest),
        };
        let login = match login {
            Some((name, password)) => Some(Login {
                name: unescaped(name)?,
                password: unescaped(password)?,
            }),
            None => None,
        };
        let HubAddress { host, port } = place.parse().map_err(|_| ())?;
        Ok(Self {
            kind,
            host,
            port,
            login,
        })
    }
}

/// Decodes `%` and two digits (RFC 3986 section 2.1); rejects characters that would end a line.
fn unescaped(text: &str) -> Result<Zeroizing<String>, ()> {
    let mut parts = text.split('%');
    let mut bytes = Zeroizing::new(parts.next().unwrap_or_default().as_bytes().to_vec());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or(())?;
        bytes.extend(HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).map_err(|_| ())?);
        bytes.extend(rest.as_bytes());
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| ())?;
    if text.is_empty() || text.len() > 255 || text.chars().any(char::is_control) {
        return Err(());
    }
    Ok(Zeroizing::new(text.to_owned()))
}

/// Implements deserialization as `from_text!` does, but the error does not repeat the text, which
/// may contain a password.
impl<'de> Deserialize<'de> for Proxy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        text.parse().map_err(|()| {
            de::Error::custom(
                "not a proxy: expected http://HOST:PORT or socks5://HOST:PORT, with NAME:PASSWORD@ before HOST if the \
                 proxy requires it (characters other than letters and digits as % and two hexadecimal digits)",
            )
        })
    }
}

impl<'de> Deserialize<'de> for HubTlsConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Keys {
            listen: Option<TlsListen>,
            certificate: Option<PathBuf>,
            key: Option<PathBuf>,
            acme: Option<AcmeConfig>,
        }
        let keys = Keys::deserialize(deserializer)?;
        let certificate = match (keys.certificate, keys.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) => {
                return Err(de::Error::custom("certificate needs its key: add key = \"FILE\""));
            }
            (None, Some(_)) => {
                return Err(de::Error::custom(
                    "key needs its certificate: add certificate = \"FILE\"",
                ));
            }
        };
        if certificate.is_some() && keys.acme.is_some() {
            return Err(de::Error::custom(
                "certificate and acme exclude each other: use your own files, or a certificate that Hawser requests",
            ));
        }
        Ok(Self {
            listen: keys.listen,
            certificate,
            acme: keys.acme,
        })
    }
}
