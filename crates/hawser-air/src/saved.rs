//! The Wi-Fi networks that the machine knows: those that its owner has saved in NetworkManager, iwd
//! or wpa_supplicant, and those of `[radio]`.
//!
//! Files are only read. A network that its owner has told the system not to join by itself is not
//! joined by Hawser either; nor is one whose key lies elsewhere (a keyring, a dialogue), one that
//! belongs to some users only, or one whose check of the server (802.1X) Hawser cannot make:
//! whoever joins such a network unchecked gives the user's password to anybody who calls himself by
//! its name.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use hawser_config::RadioConfig;
use hawser_radio::stations::beacon::Protection;
use zeroize::Zeroizing;

/// A network that may be joined.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KnownNetwork {
    /// Its name, any bytes.
    pub(super) ssid: Vec<u8>,
    /// How it is protected.
    pub(super) protection: Protection,
    /// Whether it hides its name.
    pub(super) is_hidden: bool,
    /// How one joins, as variables of wpa_supplicant. Keys among them.
    pub(super) settings: Vec<(String, Zeroizing<String>)>,
    /// Who knows it.
    pub(super) source: &'static str,
}

impl fmt::Debug for KnownNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Settings are secret.
        f.debug_struct("KnownNetwork")
            .field("ssid", &String::from_utf8_lossy(&self.ssid))
            .field("protection", &self.protection)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// All known networks by name. What the configuration says of one comes before what is saved.
pub(crate) fn known(config: &RadioConfig) -> BTreeMap<Vec<u8>, KnownNetwork> {
    known_below(Path::new("/"), config)
}

fn known_below(root: &Path, config: &RadioConfig) -> BTreeMap<Vec<u8>, KnownNetwork> {
    let mut all = BTreeMap::new();
    let own = config.networks.iter().map(|network| {
        let password = network.password.as_ref();
        KnownNetwork {
            ssid: network.ssid.clone().into_bytes(),
            is_hidden: network.hidden,
            source: "client.toml",
            ..match password {
                Some(password) => passphrase(&password.0, false),
                None => open(),
            }
        }
    });
    let saved = [network_manager(root), iwd(root), wpa_supplicant(root)];
    for network in own.chain(saved.into_iter().flatten()) {
        let name = String::from_utf8_lossy(&network.ssid).into_owned();
        let is_meant = config.join.iter().any(|pattern| pattern.matches(&name))
            && !config.avoid.iter().any(|pattern| pattern.matches(&name));
        if is_meant && !network.ssid.is_empty() && network.ssid.len() <= 32 {
            all.entry(network.ssid.clone()).or_insert(network);
        }
    }
    all
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

/// By a passphrase, or its 64 digits.
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

/// The regular files of a directory whose names end so, with their text.
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

/// A text as key files have it: `\s` is a space, and so on.
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

/// Profiles of NetworkManager (nm-settings-keyfile).
fn network_manager(root: &Path) -> Vec<KnownNetwork> {
    let directories = ["etc", "run", "usr/lib"];
    let all = directories
        .iter()
        .flat_map(|place| {
            files(
                &root.join(place).join("NetworkManager/system-connections"),
                &[".nmconnection"],
            )
        })
        .collect::<Vec<_>>();
    all.iter()
        .filter_map(|(_, text)| profile(&Sections::parse(text), root))
        .collect()
}

fn profile(file: &Sections<'_>, root: &Path) -> Option<KnownNetwork> {
    let get = |section: &str, key: &str| file.get(section, key);
    let is_wifi = matches!(get("connection", "type"), Some("wifi" | "802-11-wireless"));
    let wifi = |key: &str| get("wifi", key).or_else(|| get("802-11-wireless", key));
    let joins_itself = get("connection", "autoconnect") != Some("false")
        && get("connection", "interface-name").is_none()
        && matches!(wifi("mode"), None | Some("infrastructure"));
    // Of some users only: Hawser would join it for all.
    let is_private = get("connection", "permissions").is_some_and(|users| !users.is_empty());
    if !is_wifi || !joins_itself || is_private {
        return None;
    }
    let security = |key: &str| get("wifi-security", key).or_else(|| get("802-11-wireless-security", key));
    let is_stored = |flags: Option<&str>| matches!(flags, None | Some("0"));
    let key = security("psk")
        .filter(|_| is_stored(security("psk-flags")))
        .map(unescape);
    let network = match security("key-mgmt") {
        None => open(),
        Some("owe") => owe(),
        Some("wpa-psk") => passphrase(&key?, false),
        Some("sae") => passphrase(&key?, true),
        Some("wpa-eap") => enterprise(file, root)?,
        Some(_) => return None,
    };
    Some(KnownNetwork {
        ssid: key_file_bytes(wifi("ssid")?),
        is_hidden: wifi("hidden") == Some("true"),
        source: "NetworkManager",
        ..network
    })
}

/// Either a text, or numbers with semicolons behind them.
fn key_file_bytes(text: &str) -> Vec<u8> {
    let numbers: Option<Vec<u8>> = text
        .strip_suffix(';')
        .and_then(|list| list.split(';').map(|number| number.parse().ok()).collect());
    numbers.unwrap_or_else(|| unescape(text).into_bytes())
}

/// Returns an 802.1X network with every check of its server that the profile asks for; `None` where
/// one of them cannot be made. `root`: where certificates of the system are looked up.
fn enterprise(file: &Sections<'_>, root: &Path) -> Option<KnownNetwork> {
    let get = |key: &str| {
        file.get("802-1x", key)
            .filter(|value| !value.is_empty())
            .map(unescape)
    };
    let is_known = |key: &str| {
        SERVER_CHECKS.iter().any(|(known, _)| *known == key)
            || CERTIFICATES.iter().any(|(known, _)| *known == key)
    };
    let can_check = |key: &str| is_known(key) || key == "system-ca-certs" || !is_check(key);
    if !file.keys("802-1x").all(can_check) {
        return None;
    }
    let mut settings = vec![
        setting("key_mgmt", "WPA-EAP WPA-EAP-SHA256 FT-EAP"),
        setting(
            "eap",
            get("eap")?.trim_end_matches(';').replace(';', " ").to_uppercase(),
        ),
        setting("ieee80211w", "1"),
    ];
    if file
        .get("802-1x", "password-flags")
        .is_some_and(|flags| flags != "0")
    {
        return None;
    }
    let texts = [
        ("identity", "identity"),
        ("anonymous-identity", "anonymous_identity"),
        ("password", "password"),
        ("private-key-password", "private_key_passwd"),
    ];
    for (key, variable) in texts.into_iter().chain(SERVER_CHECKS) {
        // Lists end with a semicolon in key files, and do not in wpa_supplicant.
        let value = get(key).map(|value| value.trim_end_matches(';').to_owned());
        settings.extend(value.map(|value| setting(variable, quoted(&value))));
    }
    for (key, variable) in CERTIFICATES {
        let Some(value) = get(key) else { continue };
        let path = value.trim_start_matches("file://").trim_end_matches('\0');
        // A certificate inside of the profile, or in a token, has no path.
        if !path.starts_with('/') {
            return None;
        }
        settings.push(setting(variable, quoted(path)));
    }
    if file.get("802-1x", "system-ca-certs") == Some("true") {
        let bundle = SYSTEM_CERTIFICATES
            .iter()
            .find(|path| root.join(path).is_file())?;
        let own = ["ca_cert", "ca_cert2"];
        settings.retain(|(key, _)| !own.contains(&key.as_str()));
        settings.extend(own.map(|variable| setting(variable, quoted(&format!("/{bundle}")))));
    }
    let inner = get("phase2-auth").map(|inner| format!("auth={}", inner.to_uppercase()));
    settings.extend(inner.map(|inner| setting("phase2", quoted(&inner))));
    Some(with(Protection::Enterprise, settings))
}

/// Networks of iwd (iwd.network).
fn iwd(root: &Path) -> Vec<KnownNetwork> {
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
            ..network
        })
    };
    all.iter().filter_map(network).collect()
}

/// Network blocks of files of wpa_supplicant.
fn wpa_supplicant(root: &Path) -> Vec<KnownNetwork> {
    let all = files(&root.join("etc/wpa_supplicant"), &[".conf"]);
    all.iter().flat_map(|(_, text)| blocks(text)).collect()
}

fn blocks(text: &str) -> Vec<KnownNetwork> {
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

fn one_block(values: &BTreeMap<&str, &str>) -> Option<KnownNetwork> {
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
    let can_check = |key: &&str| PASSED_ON.contains(key) || !is_check(key);
    if protection == Protection::Enterprise && !values.keys().all(can_check) {
        return None;
    }
    let passed = values
        .iter()
        .filter(|(key, _)| PASSED_ON.contains(key))
        .map(|(key, value)| setting(key, *value));
    Some(KnownNetwork {
        ssid,
        is_hidden: get("scan_ssid") == Some("1"),
        source: "wpa_supplicant",
        ..with(protection, passed.collect())
    })
}

/// Returns whether a key of a profile or of a network block constrains who may be the server.
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

/// Names that the server's certificate must have: keys of NetworkManager (nm-settings-keyfile,
/// 802-1x) with those of wpa_supplicant.
const SERVER_CHECKS: [(&str, &str); 8] = [
    ("subject-match", "subject_match"),
    ("altsubject-matches", "altsubject_match"),
    ("domain-match", "domain_match"),
    ("domain-suffix-match", "domain_suffix_match"),
    ("phase2-subject-match", "subject_match2"),
    ("phase2-altsubject-matches", "altsubject_match2"),
    ("phase2-domain-match", "domain_match2"),
    ("phase2-domain-suffix-match", "domain_suffix_match2"),
];
/// Files of certificates and keys, likewise.
const CERTIFICATES: [(&str, &str); 6] = [
    ("ca-cert", "ca_cert"),
    ("ca-path", "ca_path"),
    ("client-cert", "client_cert"),
    ("private-key", "private_key"),
    ("phase2-ca-cert", "ca_cert2"),
    ("phase2-ca-path", "ca_path2"),
];
/// The certificate authorities that the system trusts, in one file: Debian's and Fedora's name.
const SYSTEM_CERTIFICATES: [&str; 2] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
];
/// The variables of a network block that say how one joins.
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
/// More than any such file has, bytes.
const LARGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_config::parse;

    fn config(text: &str) -> RadioConfig {
        let config: hawser_config::ClientConfig = parse(Path::new("client.toml"), text).unwrap();
        config.radio
    }

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn value(network: &KnownNetwork, name: &str) -> Option<String> {
        let found = network.settings.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.to_string())
    }

    #[test]
    fn what_network_manager_has_saved() {
        let root = tempfile::tempdir().unwrap();
        let place = "etc/NetworkManager/system-connections";
        let home = "[connection]\nid=home\ntype=wifi\n\n[wifi]\nmode=infrastructure\nssid=my\\shome\n\n[wifi-security]\nkey-mgmt=wpa-psk\npsk=open sesame\n";
        write(root.path(), &format!("{place}/home.nmconnection"), home);
        let bytes = "[connection]\ntype=wifi\n[wifi]\nssid=99;97;102;195;169;\n";
        write(root.path(), &format!("{place}/cafe.nmconnection"), bytes);
        let unasked = "[connection]\ntype=wifi\nautoconnect=false\n[wifi]\nssid=never\n";
        write(root.path(), &format!("{place}/never.nmconnection"), unasked);
        let keyring =
            "[connection]\ntype=wifi\n[wifi]\nssid=keyring\n[wifi-security]\nkey-mgmt=wpa-psk\npsk-flags=1\n";
        write(root.path(), &format!("{place}/keyring.nmconnection"), keyring);
        let wire = "[connection]\ntype=ethernet\n";
        write(root.path(), &format!("{place}/wire.nmconnection"), wire);
        let office = "[connection]\ntype=wifi\n[wifi]\nssid=office\n[wifi-security]\nkey-mgmt=wpa-eap\n[802-1x]\neap=peap;\nidentity=ann\npassword=secret\nphase2-auth=mschapv2\nca-cert=/etc/ssl/office.pem\n";
        write(root.path(), &format!("{place}/office.nmconnection"), office);

        let known = known_below(root.path(), &config(""));
        let names: Vec<_> = known.keys().map(|name| String::from_utf8_lossy(name)).collect();
        assert_eq!(names, ["café", "my home", "office"]);
        assert_eq!(known[&b"my home"[..]].protection, Protection::Passphrase);
        assert_eq!(
            value(&known[&b"my home"[..]], "psk").as_deref(),
            Some("\"open sesame\"")
        );
        assert_eq!(known["café".as_bytes()].protection, Protection::Open);
        let office = &known[&b"office"[..]];
        assert_eq!(office.protection, Protection::Enterprise);
        assert_eq!(value(office, "eap").as_deref(), Some("PEAP"));
        assert_eq!(value(office, "phase2").as_deref(), Some("\"auth=MSCHAPV2\""));
        // Keys never reach a log.
        let shown = format!("{known:?}");
        assert!(!shown.contains("sesame") && !shown.contains("secret"), "{shown}");
    }

    /// An 802.1X profile with more lines in a section.
    fn office(root: &Path, more: &str) -> Option<KnownNetwork> {
        let text = format!(
            "[connection]\ntype=wifi\n[wifi]\nssid=office\n[wifi-security]\nkey-mgmt=wpa-eap\n[802-1x]\neap=peap;\nidentity=ann\npassword=secret\nphase2-auth=mschapv2\n{more}"
        );
        let file = "etc/NetworkManager/system-connections/office.nmconnection";
        write(root, file, &text);
        known_below(root, &config("")).remove(&b"office"[..])
    }

    #[test]
    fn every_check_of_a_server_is_made_or_the_network_is_not_joined() {
        let root = tempfile::tempdir().unwrap();
        let bundle = "etc/ssl/certs/ca-certificates.crt";
        for (line, variable, expected) in [
            (
                "domain-match=radius.example.org",
                "domain_match",
                "\"radius.example.org\"",
            ),
            (
                "domain-suffix-match=example.org",
                "domain_suffix_match",
                "\"example.org\"",
            ),
            ("subject-match=CN=radius", "subject_match", "\"CN=radius\""),
            (
                "altsubject-matches=DNS:a;DNS:b;",
                "altsubject_match",
                "\"DNS:a;DNS:b\"",
            ),
            (
                "phase2-domain-match=inner.example",
                "domain_match2",
                "\"inner.example\"",
            ),
            (
                "ca-cert=file:///etc/ssl/office.pem",
                "ca_cert",
                "\"/etc/ssl/office.pem\"",
            ),
            ("ca-path=/etc/ssl/office", "ca_path", "\"/etc/ssl/office\""),
        ] {
            let found = office(root.path(), line).unwrap();
            assert_eq!(value(&found, variable).as_deref(), Some(expected), "{line}");
        }
        for line in [
            "ca-cert=77;73;73;",
            "ca-cert=pkcs11:token=a",
            "some-new-match=x",
            "system-ca-certs=true",
        ] {
            assert_eq!(office(root.path(), line), None, "{line}");
        }
        write(root.path(), bundle, "certificates");
        let found = office(root.path(), "system-ca-certs=true\nca-cert=/old.pem").unwrap();
        let expected = format!("\"/{bundle}\"");
        assert_eq!(value(&found, "ca_cert"), Some(expected));
    }

    #[test]
    fn a_profile_of_some_users_is_not_joined_for_all() {
        let root = tempfile::tempdir().unwrap();
        let text = "[connection]\ntype=wifi\npermissions=user:ann:;\n[wifi]\nssid=home\n";
        let file = "etc/NetworkManager/system-connections/home.nmconnection";
        write(root.path(), file, text);
        assert!(known_below(root.path(), &config("")).is_empty());
        write(root.path(), file, &text.replace("user:ann:;", ""));
        assert_eq!(known_below(root.path(), &config("")).len(), 1);
    }

    #[test]
    fn a_check_in_a_network_block_that_cannot_be_passed_on_forbids_it() {
        let root = tempfile::tempdir().unwrap();
        let block = |more: &str| {
            let text = format!(
                "network={{\n ssid=\"office\"\n key_mgmt=WPA-EAP\n eap=PEAP\n identity=\"ann\"\n {more}\n}}\n"
            );
            write(root.path(), "etc/wpa_supplicant/wpa_supplicant.conf", &text);
            known_below(root.path(), &config("")).remove(&b"office"[..])
        };
        let found = block("check_cert_subject=\"CN=radius\"").unwrap();
        assert_eq!(
            value(&found, "check_cert_subject").as_deref(),
            Some("\"CN=radius\"")
        );
        assert_eq!(block("ocsp=2"), None);
        assert!(block("priority=3").is_some());
    }

    #[test]
    fn what_iwd_and_wpa_supplicant_have_saved() {
        let root = tempfile::tempdir().unwrap();
        write(
            root.path(),
            "var/lib/iwd/home.psk",
            "[Security]\nPassphrase=open sesame\n",
        );
        write(root.path(), "var/lib/iwd/=636166c3a9.open", "");
        let text = "ctrl_interface=/run/wpa\n# network={\nnetwork={\n  ssid=\"van\"\n  psk=\"twelve horses\"\n}\nnetwork={\n ssid=\"off\"\n disabled=1\n key_mgmt=NONE\n}\nnetwork={\n ssid=\"three\"\n key_mgmt=SAE\n sae_password=\"x\"\n ieee80211w=2\n}\n";
        write(root.path(), "etc/wpa_supplicant/wpa_supplicant.conf", text);
        let known = known_below(root.path(), &config(""));
        let all: Vec<_> = known
            .values()
            .map(|network| (String::from_utf8_lossy(&network.ssid), network.protection))
            .collect();
        assert_eq!(
            all,
            [
                ("café".into(), Protection::Open),
                ("home".into(), Protection::Passphrase),
                ("three".into(), Protection::Sae),
                ("van".into(), Protection::Passphrase),
            ]
        );
    }

    #[test]
    fn the_configuration_chooses_among_them_and_adds_its_own() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a", "b", "guest-1"] {
            write(root.path(), &format!("var/lib/iwd/{name}.open"), "");
        }
        let own = "[radio]\njoin = [\"b\", \"guest-*\", \"own\"]\navoid = [\"guest-1\"]\n[[radio.network]]\nssid = \"own\"\npassword = \"open sesame\"\n";
        let known = known_below(root.path(), &config(own));
        let names: Vec<_> = known.keys().map(|name| String::from_utf8_lossy(name)).collect();
        assert_eq!(names, ["b", "own"]);
    }
}
