//! Tests of both conversions, with own files in the same syntax.

use super::*;
use crate::client::NetworkConfig;

const NETWORK: &str = "
config interface 'loopback'
	option device 'lo'

config interface 'lan'
	option type 'bridge'
	option ifname 'eth0.1'
	option proto 'static'
	option ipaddr '192.168.50.1'
	option netmask '255.255.255.0'

config interface 'cable'
	option device 'eth1'
	option proto 'dhcp'

config interface 'cable6'
	option device '@cable'
	option proto 'dhcpv6'

config interface 'dsl'
	option device 'eth2'
	option proto 'pppoe'
	option password 'a secret'

config interface 'modem'
	option proto 'qmi'
";

const MWAN3: &str = "
config globals 'globals'
	option mmx_mask '0x3F00'
	option rt_table_lookup '220'

config interface 'cable'
	option enabled '1'
	list track_ip '9.9.9.9'
	list track_ip '149.112.112.112'
	option reliability '2'
	option count '3'
	option timeout '2'
	option interval '5'
	option failure_interval '1'
	option down '4'
	option up '6'
	option check_quality '1'
	option failure_loss '30'
	option size '56'

config interface 'cable6'
	option enabled '1'
	option family 'ipv6'
	list track_ip '2620:fe::fe'

config interface 'dsl'
	option enabled '1'
	option track_method 'httping'
	option httping_ssl '1'
	list track_ip 'example.org'
	list track_ip '0.0.0.0'

config interface 'modem'
	option enabled '1'

config interface 'spare'
	option enabled '0'

config member 'cable_1'
	option interface 'cable'
	option metric '1'
	option weight '3'

config member 'cable6_1'
	option interface 'cable6'
	option metric '1'

config member 'dsl_1'
	option interface 'dsl'
	option metric '1'
	option weight '2'

config member 'modem_2'
	option interface 'modem'
	option metric '2'

config policy 'both'
	list use_member 'cable_1'
	list use_member 'cable6_1'
	list use_member 'dsl_1'
	list use_member 'modem_2'

config policy 'dsl_only'
	list use_member 'dsl_1'
	option last_resort 'default'

config rule 'web'
	option sticky '1'
	option proto 'tcp'
	option dest_port '80,443'
	option use_policy 'both'

config rule 'phones'
	option src_iface 'lan'
	option proto 'udp'
	option dest_port '5060:5061'
	option use_policy 'dsl_only'

config rule 'odd'
	option src_ip '0.0.0.1/0.0.0.1'
	option use_policy 'dsl_only'

config rule 'default4'
	option dest_ip '0.0.0.0/0'
	option use_policy 'both'

config rule 'late'
	option dest_port '25'
	option use_policy 'dsl_only'
";

fn sources(files: &[(&str, &str)]) -> Vec<Source> {
    let source = |(file, text): &(&str, &str)| Source {
        file: (*file).to_owned(),
        text: (*text).to_owned(),
    };
    files.iter().map(source).collect()
}

fn mwan3(mode: ImportMode) -> (ClientConfig, Imported) {
    let files = sources(&[("/etc/config/mwan3", MWAN3), ("/etc/config/network", NETWORK)]);
    let imported = import_mwan3(&files, mode).expect("it is converted");
    let config = parse(Path::new("client.toml"), &imported.text).expect("a configuration");
    (config, imported)
}

fn has_note(imported: &Imported, words: &str) -> bool {
    assert!(imported.text.contains(words), "{}", imported.text);
    imported.notes.iter().any(|note| note.contains(words))
}

fn network(config: &ClientConfig, name: &str) -> NetworkConfig {
    config
        .networks
        .get(name)
        .cloned()
        .unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn members_of_a_higher_metric_are_backups_of_a_tunnel() {
    let (config, imported) = mwan3(ImportMode::Hub);
    for name in ["eth1", "pppoe-dsl", "wwan0"] {
        assert!(config.uses(name), "{name}");
    }
    assert!(!config.uses("eth2") && !config.uses("spare"));
    assert!(config.forward.is_on());
    let backup = parse::<ClientConfig>(Path::new("f"), "[networks.a]\nuse = \"backup\"").expect("right");
    assert_eq!(network(&config, "wwan0").uses, backup.networks["a"].uses);
    assert_eq!(network(&config, "eth1").uses, NetworkConfig::default().uses);
    assert!(has_note(&imported, "weight"));
}

#[test]
fn a_tracker_becomes_a_check() {
    let (config, imported) = mwan3(ImportMode::Hub);
    let check = network(&config, "eth1").check.expect("it has a check");
    assert_eq!(check.targets.len(), 2);
    let terms = check.terms;
    assert_eq!((terms.needed, terms.count, terms.down, terms.up), (2, 3, 4, 6));
    assert_eq!((terms.every.as_secs(), terms.every_failing.as_secs()), (5, 1));
    assert_eq!(terms.quality.failing.loss_percent, Some(30));
    assert_eq!(terms.quality.recovered.loss_percent, Some(10));
    let secure = network(&config, "pppoe-dsl").check.expect("it has a check");
    assert_eq!(secure.targets[0].to_string(), "tcp example.org:443");
    assert!(has_note(&imported, "\"0.0.0.0\" is not a target"));
    assert!(has_note(&imported, "interface cable6: its check"));
    assert_eq!(network(&config, "wwan0").check, None);
}

#[test]
fn rules_with_another_policy_go_past_the_hub() {
    let (config, imported) = mwan3(ImportMode::Hub);
    let rules: Vec<_> = config.rules.iter().map(ToString::to_string).collect();
    assert_eq!(
        rules,
        [
            "tcp, port 80, port 443",
            "udp, ports 5060-5061, from 192.168.50.0/24"
        ]
    );
    assert!(
        config.rules[0].is_via(crate::Via::Hub),
        "an exception from those behind it"
    );
    assert!(config.rules[1].is_via(crate::Via::Direct) && !config.rules[1].strict);
    assert_eq!(config.rules[1].networks[0].to_string(), "pppoe-dsl");
    assert!(has_note(&imported, "rule odd: its src_ip \"0.0.0.1/0.0.0.1\""));
    assert!(has_note(
        &imported,
        "rule late: it follows a rule for all connections"
    ));
    assert!(has_note(&imported, "sticky"));
    assert!(has_note(&imported, "option size of interface cable"));
    assert!(!imported.text.contains("secret"));
}

#[test]
fn policies_are_rules_of_direct_mode() {
    let (config, _) = mwan3(ImportMode::Direct);
    let last = &config.rules[config.rules.len() - 2..];
    let names = |at: usize| {
        last[at]
            .networks
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(0), ["eth1", "pppoe-dsl"]);
    assert!(last[0].spread.is_some() && !last[0].strict);
    assert_eq!(names(1), ["wwan0"]);
    assert!(last[1].strict, "its last resort is unreachable");
    assert_eq!(
        network(&config, "eth1").weight.map(std::num::NonZeroU16::get),
        Some(3)
    );
    assert_eq!(
        network(&config, "pppoe-dsl")
            .weight
            .map(std::num::NonZeroU16::get),
        Some(2)
    );
}

#[test]
fn a_policy_of_one_metric_is_the_spread() {
    let text = "config interface a\n option enabled 1\nconfig interface b\n option enabled 1\n\
                config member a1\n option interface a\nconfig member b1\n option interface b\n\
                config policy all\n list use_member a1\n list use_member b1\n\
                config rule all\n option use_policy all\n";
    let imported = import_mwan3(&sources(&[("mwan3", text)]), ImportMode::Direct).expect("right");
    assert!(
        imported.text.contains("[direct]\nspread = \"even\""),
        "{}",
        imported.text
    );
    assert!(!imported.text.contains("[[rule]]"));
    assert!(has_note(&imported, "names of devices"));
}

#[test]
fn an_error_has_its_line_and_secrets_are_not_repeated() {
    let error = import_mwan3(
        &sources(&[("mwan3", "config interface a\nbad line\n")]),
        ImportMode::Hub,
    );
    let error = error.expect_err("it is wrong").to_string();
    assert!(error.starts_with("mwan3:2: \"bad\" is unknown"), "{error}");
    let nothing = import_mwan3(&sources(&[("mwan3", "config interface a\n")]), ImportMode::Hub);
    assert!(
        nothing
            .expect_err("nothing")
            .to_string()
            .contains("no interface of mwan3 is enabled")
    );
}

const OMR: &str = "package network

config interface 'lan'
	option device 'eth0'
	option proto 'static'
	option ipaddr '192.168.100.1'
	option netmask '255.255.255.0'
	option multipath 'off'

config interface 'fibre'
	option device 'eth1'
	option proto 'static'
	option ipaddr '192.168.1.2'
	option multipath 'master'
	option addlatency '0'

config interface 'lte'
	option device 'eth2'
	option multipath 'backup'

config interface 'sat'
	option device 'eth3'
	option multipath 'off'

package openmptcprouter

config server 'vps'
	list ip '203.0.113.9'
	option password 'a secret'

config interface 'sat'
	option multipath 'on'

package omr-tracker

config defaults 'defaults'
	option timeout '3'
	option interval '4'
	option tries '2'
	option type 'ping'
	list hosts '9.9.9.9'
	list hosts '1.1.1.1'

config interface 'omrvpn'
	option type 'none'

package sqm

config queue 'lte'
	option interface 'eth2'
	option enabled '1'
	option download '20000'
	option upload '5000'
";

#[test]
fn networks_of_an_openmptcprouter_keep_their_part() {
    let imported = import_omr(&sources(&[("export", OMR)])).expect("it is converted");
    let config: ClientConfig = parse(Path::new("client.toml"), &imported.text).expect("right");
    assert!(config.uses("eth1") && config.uses("eth2") && !config.uses("eth3"));
    assert_eq!(config.forward.lans(), ["eth0"]);
    let lte = network(&config, "eth2");
    assert_ne!(lte.uses, NetworkConfig::default().uses);
    assert_eq!(lte.cap_down.map(|cap| cap.0.as_bps()), Some(20_000_000));
    let check = lte.check.expect("the tracker's defaults");
    assert_eq!(check.targets.len(), 2);
    assert_eq!((check.terms.every.as_secs(), check.terms.down), (4, 2));
    assert!(has_note(&imported, "its server: run `hawser hub setup`"));
    assert!(!imported.text.contains("secret") && !imported.text.contains("203.0.113.9"));
}

proptest::proptest! {
    /// Every text is converted, or rejected in one line, and never causes an internal defect.
    #[test]
    fn no_file_makes_it_panic(
        lines in proptest::collection::vec(
            "(config (interface|member|policy|rule|queue|server|defaults) '[a-b\"\\\\\u{7}@ ]{0,3}'\
             |(option|list) (enabled|interface|metric|weight|use_member|use_policy|track_ip|track_method|\
             interval|up|down|dest_port|dest_ip|src_ip|src_iface|proto|multipath|device|family|hosts|count|\
             reliability|check_quality|failure_loss|ipaddr|netmask) \
             '(1|0|ab?|b|9\\.9\\.9\\.9|::/0|10\\.0\\.0\\.7/8|0/0|https?://a|65536|443:80|tcp|@a|@b|backup|\
             255\\.0\\.255\\.0|[a-z\u{1}\"\u{e4}]{0,20})')",
            0..60,
        ),
    ) {
        let text = lines.join("\n");
        let files = sources(&[("mwan3", &text), ("network", &text)]);
        for result in [
            import_mwan3(&files, ImportMode::Hub),
            import_mwan3(&files, ImportMode::Direct),
            import_omr(&files),
        ] {
            match result {
                Ok(imported) => proptest::prop_assert!(imported.notes.iter().all(|note| note.lines().count() <= 1)),
                Err(ImportError::Unfit(reason)) => proptest::prop_assert!(false, "{}\n{}", reason, text),
                Err(error) => proptest::prop_assert_eq!(error.to_string().lines().count(), 1),
            }
        }
    }
}
