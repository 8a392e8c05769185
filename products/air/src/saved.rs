//! Known Wi-Fi networks of the machine: those that its owner has saved in NetworkManager, iwd or
//! wpa_supplicant, and those of `[radio]`.
//!
//! Files are only read. Hawser does not join a network with disabled automatic connection; nor one
//! whose key is stored elsewhere (a keyring, a dialogue), one that belongs to some users only, or
//! one whose check of the server (802.1X) Hawser cannot perform: without the check, the user's
//! password would be sent to any access point with the network's name. The reason is stored, and
//! reported when such a network is in range ([`Unfit`]).

mod network_manager;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use hawser_config::RadioConfig;
use hawser_radio::stations::beacon::Protection;
use zeroize::Zeroizing;

/// Network that may be joined.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KnownNetwork {
    /// Name of the network, any bytes.
    pub(super) ssid: Vec<u8>,
    /// Protection of the network.
    pub(super) protection: Protection,
    /// Set if the network hides its name.
    pub(super) is_hidden: bool,
    /// Variables of wpa_supplicant for joining, keys among them.
    pub(super) settings: Vec<(String, Zeroizing<String>)>,
    /// Source of the profile.
    pub(super) source: &'static str,
    /// Address of stations in the network.
    pub(super) address: OwnAddress,
    /// Access point that must be used, if the profile names one.
    pub(super) bssid: Option<[u8; 6]>,
}

/// Kind of address of a station in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnAddress {
    /// A constant address that Hawser derives for the network.
    OfNetwork,
    /// A random address for each association.
    Random,
    /// The card's own address.
    Permanent,
    /// An address from the profile.
    Fixed([u8; 6]),
}

/// Saved network that Hawser does not join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfit {
    /// Name of the network, any bytes.
    pub(super) ssid: Vec<u8>,
    /// Program that has saved it.
    pub(super) source: &'static str,
    /// Reason, as text for the owner.
    pub(super) why: String,
}

/// Saved network with automatic connection.
type Entry = Result<KnownNetwork, Unfit>;

/// Known networks of the machine, by name.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    /// Networks that may be joined.
    pub(super) known: BTreeMap<Vec<u8>, KnownNetwork>,
    /// Networks of which every saved entry is unfit.
    pub(super) unfit: BTreeMap<Vec<u8>, Unfit>,
}

impl fmt::Debug for KnownNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings are secret and thus omitted.
        f.debug_struct("KnownNetwork")
            .field("ssid", &String::from_utf8_lossy(&self.ssid))
            .field("protection", &self.protection)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// Reads all known networks. Hawser's configuration of a network takes precedence over saved
/// profiles.
pub(crate) fn read(config: &RadioConfig) -> Saved {
    read_below(Path::new("/"), config)
}

fn read_below(root: &Path, config: &RadioConfig) -> Saved {
    let mut all = Saved::default();
    let own = config.networks.iter().map(|network| {
        let password = network.password.as_ref();
        Ok(KnownNetwork {
            ssid: network.ssid.clone().into_bytes(),
            is_hidden: network.hidden,
            source: "client.toml",
            ..match password {
                Some(password) => passphrase(&password.0, false),
                None => open(),
            }
        })
    });
    let saved = [network_manager::read(root), iwd(root), wpa_supplicant(root)];
    for entry in own.chain(saved.into_iter().flatten()) {
        let ssid = match &entry {
            Ok(network) => &network.ssid,
            Err(unfit) => &unfit.ssid,
        };
        let name = String::from_utf8_lossy(ssid).into_owned();
        let is_meant = config.join.iter().any(|pattern| pattern.matches(&name))
            && !config.avoid.iter().any(|pattern| pattern.matches(&name));
        if !is_meant || ssid.is_empty() || ssid.len() > 32 {
            continue;
        }
        match entry {
            Ok(network) => {
                all.known.entry(network.ssid.clone()).or_insert(network);
            }
            Err(unfit) => {
                all.unfit.entry(unfit.ssid.clone()).or_insert(unfit);
            }
        }
    }
    all.unfit.retain(|ssid, _| !all.known.contains_key(ssid));
    all
}

/// Parses a link-layer address.
fn address(text: &str) -> Option<[u8; 6]> {
    hawser_linux::wireless::address(text)
}

fn setting(name: &str, value: impl Into<String>) -> (String, Zeroizing<String>) {
    (name.to_owned(), Zeroizing::new(value.into()))
}

fn quoted(value: &str) -> String {
    format!("\"{value}\"")
}

fn with(protection: Protection, settings: Vec<(String, Zeroizing<String>)>) -> KnownNetwork {
    KnownNetwork {
        ssid: Vec::new(),
        protection,
        is_hidden: false,
        settings,
        source: "",
        address: OwnAddress::OfNetwork,
        bssid: None,
    }
}

fn open() -> KnownNetwork {
    with(Protection::Open, vec![setting("key_mgmt", "NONE")])
}

fn owe() -> KnownNetwork {
    with(
        Protection::Owe,
        vec![setting("key_mgmt", "OWE"), setting("ieee80211w", "2")],
    )
}

/// Creates a network with a passphrase, or its 64 digits.
fn passphrase(key: &str, is_sae_only: bool) -> KnownNetwork {
    let is_raw = key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_sae_only {
        let settings = vec![
            setting("key_mgmt", "SAE FT-SAE"),
            setting("sae_password", quoted(key)),
            setting("ieee80211w", "2"),
        ];
        return with(Protection::Sae, settings);
    }
    let settings = if is_raw {
        vec![
            setting("key_mgmt", "WPA-PSK FT-PSK WPA-PSK-SHA256"),
            setting("psk", key),
        ]
    } else {
        vec![
            setting("key_mgmt", "WPA-PSK FT-PSK WPA-PSK-SHA256 SAE FT-SAE"),
            setting("psk", quoted(key)),
            setting("ieee80211w", "1"),
        ]
    };
    with(Protection::Passphrase, settings)
}

/// Returns the regular files of a directory whose names have these endings, with their text.
fn files(directory: &Path, ends: &[&str]) -> Vec<(String, Zeroizing<String>)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let fits = ends.iter().any(|end| name.ends_with(end));
            let is_small = entry
                .metadata()
                .is_ok_and(|found| found.is_file() && found.len() <= LARGEST);
            if !fits || !is_small {
                return None;
            }
            Some((name, Zeroizing::new(fs::read_to_string(entry.path()).ok()?)))
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

/// Sections of `key=value` lines, as in files of NetworkManager and iwd.
struct Sections<'a>(BTreeMap<(&'a str, &'a str), &'a str>);

impl<'a> Sections<'a> {
    fn parse(text: &'a str) -> Self {
        let mut section = "";
        let mut values = BTreeMap::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = name;
            } else if let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
                values.insert((section, key.trim()), value.trim());
            }
        }
        Self(values)
    }

    /// Returns the keys of a section that have a value.
    fn keys(&self, section: &str) -> impl Iterator<Item = &'a str> {
        let own = self
            .0
            .iter()
            .filter(move |((of, _), value)| *of == section && !value.is_empty());
        own.map(|((_, key), _)| *key)
    }

    fn get(&self, section: &str, key: &str) -> Option<&'a str> {
        self.0.get(&(section, key)).copied()
    }
}

/// Decodes the escapes of a key file, for example `\s` for a space.
fn unescape(text: &str) -> String {
    let mut clear = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            clear.push(letter);
            continue;
        }
        match letters.next() {
            Some('s') => clear.push(' '),
            Some('t') => clear.push('\t'),
            Some('n') => clear.push('\n'),
            Some('r') => clear.push('\r'),
            Some(other) => clear.push(other),
            None => clear.push('\\'),
        }
    }
    clear
}

/// Reads the networks of iwd (iwd.network).
fn iwd(root: &Path) -> Vec<Entry> {
    let all = files(&root.join("var/lib/iwd"), &[".psk", ".open"]);
    let network = |(file, text): &(String, Zeroizing<String>)| {
        let sections = Sections::parse(text);
        let (name, kind) = file.rsplit_once('.')?;
        let ssid = match name.strip_prefix('=') {
            Some(hex) => data_encoding::HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).ok()?,
            None => name.as_bytes().to_vec(),
        };
        if sections.get("Settings", "AutoConnect") == Some("false") {
            return None;
        }
        let network = if kind == "open" {
            open()
        } else {
            let key = sections
                .get("Security", "Passphrase")
                .map(unescape)
                .or_else(|| sections.get("Security", "PreSharedKey").map(str::to_owned))?;
            passphrase(&key, false)
        };
        Some(KnownNetwork {
            ssid,
            is_hidden: sections.get("Settings", "Hidden") == Some("true"),
            source: "iwd",
            address: if sections.get("Settings", "AlwaysRandomizeAddress") == Some("true") {
                OwnAddress::Random
            } else {
                let own = sections.get("Settings", "AddressOverride").and_then(address);
                own.map_or(OwnAddress::OfNetwork, OwnAddress::Fixed)
            },
            ..network
        })
    };
    all.iter().filter_map(network).map(Ok).collect()
}

/// Reads the network blocks in files of wpa_supplicant.
fn wpa_supplicant(root: &Path) -> Vec<Entry> {
    let all = files(&root.join("etc/wpa_supplicant"), &[".conf"]);
    all.iter().flat_map(|(_, text)| blocks(text)).collect()
}

fn blocks(text: &str) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut block: Option<BTreeMap<&str, &str>> = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with('#') {
            continue;
        }
        if line.replace(' ', "") == "network={" {
            block = Some(BTreeMap::new());
        } else if line == "}" {
            found.extend(block.take().and_then(|values| one_block(&values)));
        } else if let (Some(values), Some((key, value))) = (&mut block, line.split_once('=')) {
            values.insert(key.trim(), value.trim());
        }
    }
    found
}

fn one_block(values: &BTreeMap<&str, &str>) -> Option<Entry> {
    let get = |key: &str| values.get(key).copied();
    let is_plain = matches!(get("disabled"), None | Some("0")) && matches!(get("mode"), None | Some("0"));
    if !is_plain {
        return None;
    }
    let ssid = get("ssid")?;
    let ssid = match ssid.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(text) => text.as_bytes().to_vec(),
        None => data_encoding::HEXLOWER_PERMISSIVE.decode(ssid.as_bytes()).ok()?,
    };
    let ways = get("key_mgmt").unwrap_or("WPA-PSK WPA-EAP");
    let has = |way: &str| ways.split_whitespace().any(|one| one.contains(way));
    let protection = if has("EAP") && get("eap").is_some() {
        Protection::Enterprise
    } else if get("psk").is_some() || (has("PSK") && get("sae_password").is_some()) {
        Protection::Passphrase
    } else if has("SAE") && get("sae_password").is_some() {
        Protection::Sae
    } else if has("OWE") {
        Protection::Owe
    } else if has("NONE") && get("wep_key0").is_none() {
        Protection::Open
    } else {
        return None;
    };
    let cannot = |key: &&&str| is_check(key) && !PASSED_ON.contains(*key);
    if protection == Protection::Enterprise
        && let Some(key) = values.keys().find(cannot)
    {
        return Some(Err(Unfit {
            ssid,
            source: "wpa_supplicant",
            why: format!("its setting {key} for the check of the server is not supported"),
        }));
    }
    let passed = values
        .iter()
        .filter(|(key, _)| PASSED_ON.contains(key))
        .map(|(key, value)| setting(key, *value));
    Some(Ok(KnownNetwork {
        ssid,
        is_hidden: get("scan_ssid") == Some("1"),
        source: "wpa_supplicant",
        address: match get("mac_addr") {
            Some("1" | "2") => OwnAddress::Random,
            Some("0") => OwnAddress::Permanent,
            _ => OwnAddress::OfNetwork,
        },
        bssid: get("bssid").and_then(address),
        ..with(protection, passed.collect())
    }))
}

/// Returns whether a key of a profile or of a network block restricts the accepted server.
fn is_check(key: &str) -> bool {
    [
        "match",
        "ca-cert",
        "ca_cert",
        "ca-path",
        "ca_path",
        "cert_subject",
        "ocsp",
        "system-ca",
    ]
    .iter()
    .any(|part| key.contains(part))
        && !key.contains("password")
}

/// Variables of a network block that configure how a station joins.
const PASSED_ON: [&str; 31] = [
    "altsubject_match",
    "altsubject_match2",
    "anonymous_identity",
    "auth_alg",
    "ca_cert",
    "ca_cert2",
    "ca_path",
    "ca_path2",
    "check_cert_subject",
    "check_cert_subject2",
    "client_cert",
    "domain_match",
    "domain_match2",
    "domain_suffix_match",
    "domain_suffix_match2",
    "eap",
    "group",
    "identity",
    "ieee80211w",
    "key_mgmt",
    "pairwise",
    "password",
    "phase1",
    "phase2",
    "private_key",
    "private_key_passwd",
    "proto",
    "psk",
    "sae_password",
    "subject_match",
    "subject_match2",
];
/// Maximum size of a file, larger than any such file. Units: bytes. Source: our choice, a bound on
/// memory; files of NetworkManager and wpa_supplicant have a few KB.
const LARGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests;
