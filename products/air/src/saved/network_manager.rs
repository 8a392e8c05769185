//! Profiles of NetworkManager (nm-settings-keyfile).

use std::path::Path;

use hawser_radio::stations::beacon::Protection;
use zeroize::Zeroizing;

use super::{
    Entry, KnownNetwork, OwnAddress, Sections, Unfit, address, files, is_check, open, owe, passphrase,
    quoted, setting, unescape, with,
};

/// Reads all profiles below `root`.
pub(super) fn read(root: &Path) -> Vec<Entry> {
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

/// Returns a Wi-Fi profile with automatic connection, or the reason why Hawser does not join it.
fn profile(file: &Sections<'_>, root: &Path) -> Option<Entry> {
    let get = |section: &str, key: &str| file.get(section, key);
    let is_wifi = matches!(get("connection", "type"), Some("wifi" | "802-11-wireless"));
    let wifi = |key: &str| get("wifi", key).or_else(|| get("802-11-wireless", key));
    let joins_itself = get("connection", "autoconnect") != Some("false")
        && get("connection", "interface-name").is_none()
        && matches!(wifi("mode"), None | Some("infrastructure"));
    if !is_wifi || !joins_itself {
        return None;
    }
    let ssid = key_file_bytes(wifi("ssid")?);
    let network = security(file, root).and_then(|network| {
        let own = wifi("cloned-mac-address");
        Ok(KnownNetwork {
            ssid: ssid.clone(),
            is_hidden: wifi("hidden") == Some("true"),
            source: "NetworkManager",
            address: own_address(own)?,
            bssid: wifi("bssid").and_then(address),
            ..network
        })
    });
    Some(network.map_err(|why| Unfit {
        ssid,
        source: "NetworkManager",
        why,
    }))
}

/// Returns the security settings of the network.
fn security(file: &Sections<'_>, root: &Path) -> Result<KnownNetwork, String> {
    if file
        .get("connection", "permissions")
        .is_some_and(|users| !users.is_empty())
    {
        return Err("its profile is restricted to some users (permissions)".to_owned());
    }
    let security = |key: &str| {
        file.get("wifi-security", key)
            .or_else(|| file.get("802-11-wireless-security", key))
    };
    let is_stored = |flags: Option<&str>| matches!(flags, None | Some("0"));
    let key = security("psk")
        .filter(|_| is_stored(security("psk-flags")))
        .map(unescape)
        .ok_or_else(|| "its password is not in the profile (psk-flags)".to_owned());
    match security("key-mgmt") {
        None => Ok(open()),
        Some("owe") => Ok(owe()),
        Some("wpa-psk") => Ok(passphrase(&key?, false)),
        Some("sae") => Ok(passphrase(&key?, true)),
        Some("wpa-eap") => enterprise(file, root),
        Some(other) => Err(format!("key-mgmt={other} is not supported")),
    }
}

/// Parses the profile's address of the station.
fn own_address(value: Option<&str>) -> Result<OwnAddress, String> {
    match value {
        // NetworkManager's stable addresses are constant for each network, as are Hawser's.
        None | Some("" | "preserve" | "stable" | "stable-ssid") => Ok(OwnAddress::OfNetwork),
        Some("random") => Ok(OwnAddress::Random),
        Some("permanent") => Ok(OwnAddress::Permanent),
        Some(text) => address(text)
            .map(OwnAddress::Fixed)
            .ok_or_else(|| format!("cloned-mac-address={text} is not supported")),
    }
}

/// Parses a text, or numbers that end with semicolons.
fn key_file_bytes(text: &str) -> Vec<u8> {
    let numbers: Option<Vec<u8>> = text
        .strip_suffix(';')
        .and_then(|list| list.split(';').map(|number| number.parse().ok()).collect());
    numbers.unwrap_or_else(|| unescape(text).into_bytes())
}

/// Returns an 802.1X network with every check of its server that the profile requires, or names the
/// checks that are impossible. `root`: directory of the system's certificates.
fn enterprise(file: &Sections<'_>, root: &Path) -> Result<KnownNetwork, String> {
    let get = |key: &str| {
        file.get("802-1x", key)
            .filter(|value| !value.is_empty())
            .map(unescape)
    };
    let is_known = |key: &str| {
        let all = TEXTS.iter().chain(&SERVER_CHECKS).chain(&CERTIFICATES);
        all.into_iter().any(|(known, _)| *known == key) || key == "system-ca-certs"
    };
    if let Some(key) = file.keys("802-1x").find(|key| is_check(key) && !is_known(key)) {
        return Err(format!(
            "its setting {key} for the check of the server is not supported"
        ));
    }
    if file
        .get("802-1x", "password-flags")
        .is_some_and(|flags| flags != "0")
    {
        return Err("its password is not in the profile (password-flags)".to_owned());
    }
    let methods = get("eap").ok_or("its profile has no EAP method (eap)")?;
    let mut settings = vec![
        setting("key_mgmt", "WPA-EAP WPA-EAP-SHA256 FT-EAP"),
        setting(
            "eap",
            methods.trim_end_matches(';').replace(';', " ").to_uppercase(),
        ),
        setting("ieee80211w", "1"),
    ];
    for (key, variable) in TEXTS.into_iter().chain(SERVER_CHECKS) {
        // Lists end with a semicolon in key files but not in wpa_supplicant.
        let ends = if is_check(key) { ";" } else { "" };
        let value = get(key);
        settings.extend(value.map(|value| {
            setting(
                variable,
                quoted(value.trim_end_matches(|letter| ends.contains(letter))),
            )
        }));
    }
    for (key, variable) in CERTIFICATES {
        let Some(value) = get(key) else { continue };
        let path = value.trim_start_matches("file://").trim_end_matches('\0');
        // A certificate within the profile or in a token has no path.
        if !path.starts_with('/') {
            return Err(format!("{key} in its profile is not a file"));
        }
        settings.push(setting(variable, quoted(path)));
    }
    if file.get("802-1x", "system-ca-certs") == Some("true") {
        trust_the_system(&mut settings, root)?;
    }
    let phases = [("phase1", phase1(&get)?), ("phase2", phase2(&get))];
    let named = phases.into_iter().filter(|(_, value)| !value.is_empty());
    settings.extend(named.map(|(variable, value)| setting(variable, quoted(&value))));
    Ok(with(Protection::Enterprise, settings))
}

/// Trusts the certificate authorities of the system, and no others.
fn trust_the_system(settings: &mut Vec<(String, Zeroizing<String>)>, root: &Path) -> Result<(), String> {
    let bundle = SYSTEM_CERTIFICATES
        .iter()
        .find(|path| root.join(path).is_file())
        .ok_or("the system's certificates were not found (system-ca-certs)")?;
    settings.retain(|(key, _)| !key.starts_with("ca_"));
    let own = ["ca_cert", "ca_cert2"];
    settings.extend(own.map(|variable| setting(variable, quoted(&format!("/{bundle}")))));
    Ok(())
}

/// Returns the settings of the outer method.
fn phase1(get: &impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut words: Vec<_> = PHASE_1
        .iter()
        .filter_map(|(key, variable)| Some(format!("{variable}={}", get(key)?)))
        .collect();
    if let Some(flags) = get("phase1-auth-flags") {
        let flags: u32 = flags
            .parse()
            .ok()
            .filter(|flags| flags >> TLS_FLAGS.len() == 0)
            .ok_or_else(|| format!("phase1-auth-flags={flags} is not supported"))?;
        let set = TLS_FLAGS
            .iter()
            .enumerate()
            .filter(|(bit, _)| flags >> bit & 1 == 1);
        words.extend(set.map(|(_, word)| (*word).to_owned()));
    }
    Ok(words.join(" "))
}

/// Returns the settings of the inner method.
fn phase2(get: &impl Fn(&str) -> Option<String>) -> String {
    let inner = |key: &str, variable: &str| {
        let methods = get(key)?.to_uppercase();
        let words = methods.split(';').filter(|method| !method.is_empty());
        Some(
            words
                .map(|method| format!("{variable}={method}"))
                .collect::<Vec<_>>(),
        )
    };
    let all = [inner("phase2-auth", "auth"), inner("phase2-autheap", "autheap")];
    all.into_iter().flatten().flatten().collect::<Vec<_>>().join(" ")
}

/// Texts of a profile (nm-settings-keyfile, 802-1x) with the variables of wpa_supplicant.
const TEXTS: [(&str, &str); 6] = [
    ("identity", "identity"),
    ("anonymous-identity", "anonymous_identity"),
    ("password", "password"),
    ("private-key-password", "private_key_passwd"),
    ("phase2-private-key-password", "private_key2_passwd"),
    ("openssl-ciphers", "openssl_ciphers"),
];
/// Required names of the server's certificate, with the variables of wpa_supplicant.
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
/// Files of certificates and keys, with the variables of wpa_supplicant.
const CERTIFICATES: [(&str, &str); 8] = [
    ("ca-cert", "ca_cert"),
    ("ca-path", "ca_path"),
    ("client-cert", "client_cert"),
    ("private-key", "private_key"),
    ("phase2-ca-cert", "ca_cert2"),
    ("phase2-ca-path", "ca_path2"),
    ("phase2-client-cert", "client_cert2"),
    ("phase2-private-key", "private_key2"),
];
/// Settings of a profile with the words of wpa_supplicant's `phase1`.
const PHASE_1: [(&str, &str); 3] = [
    ("phase1-peapver", "peapver"),
    ("phase1-peaplabel", "peaplabel"),
    ("phase1-fast-provisioning", "fast_provisioning"),
];
/// The bits of `phase1-auth-flags`, the lowest first (NMSetting8021xAuthFlags), as words of
/// wpa_supplicant's `phase1`.
const TLS_FLAGS: [&str; 9] = [
    "tls_disable_tlsv1_0=1",
    "tls_disable_tlsv1_1=1",
    "tls_disable_tlsv1_2=1",
    "tls_disable_time_checks=1",
    "tls_disable_tlsv1_3=1",
    "tls_disable_tlsv1_0=0",
    "tls_disable_tlsv1_1=0",
    "tls_disable_tlsv1_2=0",
    "tls_disable_tlsv1_3=0",
];
/// Files with the system's trusted certificate authorities, on Debian and on Fedora.
const SYSTEM_CERTIFICATES: [&str; 2] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
];
