use super::*;
use hawser_config::parse;

/// Returns the networks that may be joined.
fn known_below(root: &Path, config: &RadioConfig) -> BTreeMap<Vec<u8>, KnownNetwork> {
    read_below(root, config).known
}

/// Returns the reason why the network that is saved as "office" is not joined.
fn reason(root: &Path) -> String {
    let unfit = read_below(root, &config("")).unfit;
    unfit[&b"office"[..]].why.clone()
}

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

/// Writes an 802.1X profile with additional lines in a section. Returns the network.
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

/// Each key of a profile about server, user and method is compared with the resulting setting of
/// wpa_supplicant.
#[test]
fn each_key_of_a_profile_reaches_wpa_supplicant() {
    let root = tempfile::tempdir().unwrap();
    for (line, variable, expected) in [
        ("anonymous-identity=anybody", "anonymous_identity", "\"anybody\""),
        ("private-key=/key.pem", "private_key", "\"/key.pem\""),
        ("private-key-password=a b;", "private_key_passwd", "\"a b;\""),
        ("client-cert=file:///own.pem", "client_cert", "\"/own.pem\""),
        ("phase2-ca-cert=/inner.pem", "ca_cert2", "\"/inner.pem\""),
        ("phase2-ca-path=/inner", "ca_path2", "\"/inner\""),
        ("phase2-client-cert=/own2.pem", "client_cert2", "\"/own2.pem\""),
        ("phase2-private-key=/key2.pem", "private_key2", "\"/key2.pem\""),
        ("phase2-private-key-password=x", "private_key2_passwd", "\"x\""),
        ("phase2-subject-match=CN=a", "subject_match2", "\"CN=a\""),
        (
            "phase2-altsubject-matches=DNS:a;",
            "altsubject_match2",
            "\"DNS:a\"",
        ),
        (
            "phase2-domain-suffix-match=a.b;c.d;",
            "domain_suffix_match2",
            "\"a.b;c.d\"",
        ),
        ("openssl-ciphers=HIGH", "openssl_ciphers", "\"HIGH\""),
        (
            "phase1-peapver=0\nphase1-peaplabel=1",
            "phase1",
            "\"peapver=0 peaplabel=1\"",
        ),
        ("phase1-fast-provisioning=2", "phase1", "\"fast_provisioning=2\""),
        (
            "phase1-auth-flags=19",
            "phase1",
            "\"tls_disable_tlsv1_0=1 tls_disable_tlsv1_1=1 tls_disable_tlsv1_3=1\"",
        ),
        (
            "phase2-autheap=mschapv2",
            "phase2",
            "\"auth=MSCHAPV2 autheap=MSCHAPV2\"",
        ),
    ] {
        let found = office(root.path(), line).unwrap();
        assert_eq!(value(&found, variable).as_deref(), Some(expected), "{line}");
    }
    assert_eq!(office(root.path(), "phase1-auth-flags=512"), None);
    assert!(reason(root.path()).contains("phase1-auth-flags=512"));
}

#[test]
fn the_system_s_certificates_are_trusted_alone() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "etc/pki/tls/certs/ca-bundle.crt", "certificates");
    let found = office(
        root.path(),
        "system-ca-certs=true\nca-path=/anything\nphase2-ca-path=/other",
    )
    .unwrap();
    assert_eq!(
        (value(&found, "ca_path"), value(&found, "ca_path2")),
        (None, None)
    );
    let bundle = "\"/etc/pki/tls/certs/ca-bundle.crt\"";
    assert_eq!(value(&found, "ca_cert2").as_deref(), Some(bundle));
}

#[test]
fn why_a_network_is_not_joined_is_known() {
    let root = tempfile::tempdir().unwrap();
    for (line, expected) in [
        ("some-new-match=x", "some-new-match"),
        ("ca-cert=77;73;73;", "ca-cert"),
        ("system-ca-certs=true", "system-ca-certs"),
        ("password-flags=1", "password-flags"),
        ("[connection]\npermissions=user:ann:;", "permissions"),
        (
            "[wifi]\ncloned-mac-address=unheard-of",
            "cloned-mac-address=unheard-of",
        ),
    ] {
        assert_eq!(office(root.path(), line), None, "{line}");
        let why = reason(root.path());
        assert!(why.contains(expected), "{line}: {why}");
    }
    // Another usable entry is used.
    let own = "[[radio.network]]\nssid = \"office\"\npassword = \"twelve horses\"\n";
    let saved = read_below(root.path(), &config(own));
    assert_eq!((saved.known.len(), saved.unfit.len()), (1, 0));
}

#[test]
fn a_profile_s_own_address_and_access_point_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let fixed = OwnAddress::Fixed([2, 0x11, 0x22, 0x33, 0x44, 0x55]);
    for (text, expected) in [
        ("02:11:22:33:44:55", fixed),
        ("02-11-22-33-44-55", fixed),
        ("permanent", OwnAddress::Permanent),
        ("random", OwnAddress::Random),
        ("stable", OwnAddress::OfNetwork),
        ("preserve", OwnAddress::OfNetwork),
    ] {
        let found = office(root.path(), &format!("[wifi]\ncloned-mac-address={text}")).unwrap();
        assert_eq!(found.address, expected, "{text}");
    }
    let found = office(root.path(), "[wifi]\nbssid=02:00:00:00:01:00").unwrap();
    assert_eq!(found.bssid, Some([2, 0, 0, 0, 1, 0]));
    write(
        root.path(),
        "var/lib/iwd/home.psk",
        "[Security]\nPassphrase=open sesame\n[Settings]\nAddressOverride=02:11:22:33:44:55\n",
    );
    assert_eq!(known_below(root.path(), &config(""))[&b"home"[..]].address, fixed);
}
