use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use hawser_steer::assignment::Measure;
use hawser_steer::policy::Kind;
use hawser_units::Rate;
use hawser_wire::data::Class;
use hawser_wire::layer;

use super::*;

pub(crate) fn client(text: &str) -> Result<ClientConfig, String> {
    parse(Path::new("client.toml"), text).map_err(|error| error.to_string())
}

fn hub(text: &str) -> Result<HubConfig, String> {
    parse(Path::new("hub.toml"), text).map_err(|error| error.to_string())
}

#[test]
fn an_empty_client_file_is_a_good_one() {
    let config = client("").unwrap();
    assert_eq!(config, ClientConfig::default());
    assert!(config.uses("wlan0") && !config.uses("hawser0"));
}

#[test]
fn dhcp_is_off_unless_it_is_asked_for() {
    let config = client("[networks.eth1]\ndhcp = \"auto\"\n[networks.eth2]\ndhcp = \"off\"\n").unwrap();
    assert_eq!(config.network("eth1").dhcp, DhcpMode::Auto);
    assert_eq!(config.network("eth2").dhcp, DhcpMode::Off);
    assert_eq!(config.network("eth3").dhcp, DhcpMode::Off);
    let error = client("[networks.eth1]\ndhcp = true\n").unwrap_err();
    assert!(error.starts_with("client.toml:2: "), "{error}");
    let error = client("[networks.eth1]\ndhcp = \"on\"\n").unwrap_err();
    assert!(error.contains("`off`") && error.contains("`auto`"), "{error}");
}

#[test]
fn a_full_client_file_is_read() {
    let config = client(
        r#"
        include = ["wlan*", "eth?"]
        exclude = ["eth9"]
        interface = "hawser1"
        mtu = 1400
        dns = "hub"
        kill_switch = true
        rekey_after = "30 min"
        metrics = "127.0.0.1:9469"
        otlp = { to = "https://collector.example.org/otlp/" }
        log = "info,hawser_client=debug"
        [schedulers]
        bulk = "backpressure"
        [networks.lte]
        cap_up = "2.5mbit"
        cap_down = "10mbit"
        "#,
    )
    .unwrap();
    assert!(config.uses("wlan0") && config.uses("eth1"));
    assert!(!config.uses("eth9") && !config.uses("eth10") && !config.uses("usb0") && !config.uses("hawser1"));
    assert_eq!(
        config.network("lte").cap_up,
        Some(Speed(Rate::from_bps(2_500_000)))
    );
    assert_eq!(config.network("wlan0"), NetworkConfig::default());
    assert_eq!(
        config.schedulers.selected(),
        [(Class::Bulk, "backpressure".to_owned())]
    );
    assert_eq!(config.rekey_after.0, Duration::from_secs(1800));
    let otlp = config.otlp.unwrap();
    assert_eq!(otlp.to.to_string(), "https://collector.example.org/otlp");
    assert!(otlp.to.is_secure());
    assert_eq!(otlp.every.0, Duration::from_secs(60));
}

#[test]
fn rules_of_direct_mode_are_read() {
    let config = client(
        r#"
        [direct]
        spread = "round-trip"
        forward = true
        keep_flows = "3s"
        [networks.wlan0]
        weight = 3
        cost = 2
        probe = "192.168.1.1"
        [[rule]]
        port = [80, "8000-8100"]
        to = "2001:db8::/32"
        dscp = "af41"
        network = ["kind:wifi", "eth*"]
        [[rule]]
        cgroup = "/system.slice/backup.service"
        spread = "cost"
        strict = true
        "#,
    )
    .unwrap();
    assert_eq!(config.direct.spread, Spread(Measure::RoundTrip));
    let [first, second] = &config.rules[..] else {
        panic!("{:?}", config.rules)
    };
    assert_eq!(first.flows.ports, [(80, 80), (8000, 8100)]);
    assert_eq!(first.flows.dscp, Some(34));
    assert_eq!(first.networks[0], NetworkChoice::Kind(Kind::Wifi));
    assert_eq!(
        first.to_string(),
        "port 80, ports 8000-8100, to 2001:db8::/32, dscp 34"
    );
    assert_eq!(
        second.flows.cgroup.as_deref(),
        Some("system.slice/backup.service")
    );
    assert!(second.strict && second.spread.is_some());
}

#[test]
fn layers_are_read_on_both_sides() {
    let text = r#"
        [[layer]]
        port = 5004
        dscp = "af41"
        layer = 0
        [[layer]]
        extension = { id = 3, value = 2, mask = 7 }
        payload_type = 96
        layer = 2
        [[layer]]
        ssrc = 0xdeadbeef
        layer = "vp9"
        "#;
    let rules = client(text).unwrap().layer_rules();
    let any = layer::Pattern::default();
    let expected = [
        layer::Rule {
            pattern: layer::Pattern {
                port: Some(5004),
                dscp: Some(34),
                ..any
            },
            reading: layer::Reading::Fixed(layer::Layer(0)),
        },
        layer::Rule {
            pattern: layer::Pattern {
                payload_type: Some(96),
                extension: Some(layer::Extension {
                    id: 3,
                    value: Some(2),
                    mask: 7,
                }),
                ..any
            },
            reading: layer::Reading::Fixed(layer::Layer(2)),
        },
        layer::Rule {
            pattern: layer::Pattern {
                ssrc: Some(0xdead_beef),
                ..any
            },
            reading: layer::Reading::Vp9,
        },
    ];
    assert_eq!(rules, expected);
    assert_eq!(hub(&format!("{HUB}{text}")).unwrap().layer_rules(), expected);
    assert!(client("").unwrap().layer_rules().is_empty() && hub(HUB).unwrap().layer_rules().is_empty());
}

#[test]
fn errors_name_file_line_and_remedy() {
    let cases = [
        (
            "[[rule]]\nvia = \"tunnel\"\n",
            "client.toml:2: \"tunnel\" is wrong: expected \"direct\", \"hub\" or \"faster\"",
        ),
        (
            "[[rule]]\nvia = \"hub\"\nwhen = { signal_above = \"-70dBm\" }\n",
            "client.toml:1: the tunnel to the hub uses all networks: remove network, spread,",
        ),
        (
            "[[rule]]\nhub = \"hub2.example.org\"\n",
            "client.toml:1: hub = \"hub2.example.org\" needs to, protocol or port",
        ),
        (
            "[[rule]]\nto = \"203.0.113.0/24\"\nhub = \"hub2\"\nvia = \"direct\"\n",
            "client.toml:1: hub = \"hub2.example.org\" applies to flows in the tunnel: remove hub or via",
        ),
        (
            "[[rule]]\nto = \"203.0.113.0/24\"\nhub = \"hub2:443\"\n",
            "client.toml:3: \"hub2:443\" is wrong: expected a name, such as \"hub.example.org\"",
        ),
        (
            "\n[[rule]]\nport = 80\n",
            "client.toml:2: the rule has no effect on its flows",
        ),
        (
            "[[rule]]\nport = 70000\n",
            "client.toml:2: invalid value: integer `70000`, expected a port such as 443",
        ),
        (
            "forward = \"br-lan\"\n",
            "client.toml:1: invalid type: string \"br-lan\", expected true, false, or the interfaces of the LANs",
        ),
        ("forward = []\n", "client.toml:1: no LAN is listed"),
        (
            "[[port_forward]]\nport = \"tcp 0\"\nto = \"192.168.7.2\"\n",
            "client.toml:2: \"tcp 0\" is wrong: expected a service, such as",
        ),
        (
            "[[port_forward]]\nport = \"tcp 80\"\nto = \"home\"\n",
            "client.toml:3: \"home\" is wrong: expected an address with or without a port",
        ),
        (
            "[[rule]]\nnetwork = \"kind:fax\"\n",
            "client.toml:2: \"kind:fax\" is wrong: expected an interface name, in which * and ? are wildcards, or kind:wired",
        ),
        (
            "[direct]\ndataplane = \"ovs\"\n",
            "client.toml:2: \"ovs\" is wrong: expected \"nftables\" or \"openvswitch\"",
        ),
        (
            "[direct]\nmove = true\n",
            "client.toml:2: invalid type: boolean `true`, expected \"auto\" or \"asked\"",
        ),
        (
            "[direct]\nspread = \"fair\"\n",
            "client.toml:2: \"fair\" is wrong: expected \"even\", \"capacity\"",
        ),
        ("\nfoo = 1", "client.toml:2: unknown field `foo`, expected one of"),
        (
            "mtu = 100",
            "client.toml:1: mtu 100 is out of range: 1280 to 9000 bytes",
        ),
        (
            "dns = \"mine\"",
            "client.toml:1: unknown variant `mine`, expected one of `keep`, `hub`, `networks`",
        ),
        (
            "[[rule]]\ndomain = \"*.*.org\"\nnetwork = \"eth0\"\n",
            "client.toml:2: \"*.*.org\" is wrong: expected a name such as \"example.org\", or \"*.example.org\"",
        ),
        (
            "[direct]\nportal_check = \"https://example.org/\"\n",
            "client.toml:2: \"https://example.org/\" is wrong: expected \"off\", or an http:// page and how it begins",
        ),
        (
            "[networks.lte]\nmptcp = \"maybe\"\n",
            "client.toml:2: \"maybe\" is wrong: expected \"yes\", \"backup\" or \"no\"",
        ),
        (
            "[[layer]]\nlayer = 1\n",
            "client.toml:1: the layer matches no packets: add port, dscp, payload_type, ssrc or extension",
        ),
        ("[[layer]]\nport = 5004\n", "client.toml:1: missing field `layer`"),
        (
            "[[layer]]\nport = 5004\nlayer = 8\n",
            "client.toml:3: 8 is not a layer: expected 0 (the base) to 7, or \"h264\"",
        ),
        (
            "[[layer]]\nport = 5004\nlayer = \"av1\"\n",
            "client.toml:3: \"av1\" is not a layer: expected 0 (the base) to 7, or \"h264\"",
        ),
        (
            "[[layer]]\nport = 0\nlayer = 1\n",
            "client.toml:2: invalid value: integer `0`, expected a nonzero u16",
        ),
        (
            "[[layer]]\ndscp = \"af51\"\nlayer = 1\n",
            "client.toml:2: \"af51\" is wrong: expected a code point",
        ),
        (
            "[[layer]]\npayload_type = 200\nlayer = 1\n",
            "client.toml:2: 200 is not an RTP payload type: expected 0 to 127",
        ),
        (
            "[[layer]]\nextension = { id = 0 }\nlayer = 1\n",
            "client.toml:2: invalid value: integer `0`, expected a nonzero u8",
        ),
        (
            "\n[[layer]]\nextension = { id = 3, value = 9, mask = 7 }\nlayer = 1\n",
            "client.toml:2: extension: value 9 has bits outside mask 7",
        ),
        (
            "[[layer]]\nextension = { id = 3, mask = 7 }\nlayer = 1\n",
            "client.toml:1: extension: mask needs a value",
        ),
        (
            "rekey_after = 3600",
            "client.toml:1: 3600 is not enough: expected a time with its unit",
        ),
        (
            "rekey_after = \"1 week\"",
            "client.toml:1: \"1 week\" is wrong: expected a time with its unit",
        ),
        (
            "include = [\n\"a/b\"]",
            "client.toml:2: \"a/b\" is wrong: expected an interface name",
        ),
        (
            "[networks.lte]\ncap_up = \"10mb\"",
            "client.toml:2: \"10mb\" is wrong: expected a rate with its unit",
        ),
        (
            "[networks.lte]\nuse = \"seldom\"",
            "client.toml:2: \"seldom\" is wrong: expected \"always\", \"overflow\" or \"backup\"",
        ),
        (
            "[networks.lte]\nuse = { up = \"backup\", left = \"backup\" }",
            "client.toml:2: unknown field `left`, expected `up` or `down`",
        ),
        (
            "[networks.lte]\nuse = true",
            "client.toml:2: invalid type: boolean `true`, expected \"always\", \"overflow\", \"backup\", or {",
        ),
        (
            "[networks.lte]\ncap = \"10mbit\"",
            "client.toml:2: unknown field `cap`, expected one of `cap_up`, `cap_down`",
        ),
        (
            "[schedulers]\nbulk = \"fastest\"",
            "client.toml:2: \"fastest\" is wrong: expected one of random,",
        ),
        (
            "controller = \"reno\"",
            "client.toml:1: \"reno\" is wrong: expected one of short-queue, cubic, bbr",
        ),
        (
            "interface = \"a name that is too long\"",
            "client.toml:1: \"a name that is too long\" is wrong",
        ),
        (
            "log = \"loud\"",
            "client.toml:1: \"loud\" is wrong: expected error, warn",
        ),
        ("metrics = \"9469\"", "client.toml:1: "),
        (
            "[otlp]\nto = \"collector:4318\"\n",
            "client.toml:2: \"collector:4318\" is wrong: expected the address of a collector, such as",
        ),
        ("mtu = ", "client.toml:1: "),
        ("a = 1\nb = [", "client.toml:2: "),
    ];
    for (text, expected) in cases {
        let error = client(text).unwrap_err();
        assert!(error.starts_with(expected), "{text:?}: {error}");
        assert!(!error.contains('\n'), "{text:?}: {error}");
    }
}

#[test]
fn a_page_is_taken_apart_as_a_browser_would() {
    let page = |text: &str| {
        text.parse::<Page>()
            .map(|page| (page.host, page.port, page.path, page.expected))
    };
    let own = |parts: (&str, u16, &str, &str)| {
        Ok((
            parts.0.to_owned(),
            parts.1,
            parts.2.to_owned(),
            parts.3.to_owned(),
        ))
    };
    assert_eq!(
        page("http://example.org/check?x=1 all is well"),
        own(("example.org", 80, "/check?x=1", "all is well"))
    );
    assert_eq!(
        page("http://[2001:db8::1]:8080"),
        own(("[2001:db8::1]", 8080, "/", ""))
    );
    assert_eq!(page("http://[2001:db8::1]/"), own(("[2001:db8::1]", 80, "/", "")));
    for wrong in [
        "",
        "http://",
        "http:///x",
        "http://a:b/",
        "http://x\r\ny/",
        "http://x/\r\ny",
    ] {
        assert_eq!(page(wrong), Err(()), "{wrong:?}");
    }
    assert!(DirectConfig::default().portal_check.0.is_some());
}

#[test]
fn direct_mode_says_what_it_cannot_do() {
    let unfit = |text: &str| client(text).expect("well-formed").unfit_for_direct();
    let rule = "[[rule]]\ndomain = \"*.example.org\"\nnetwork = \"eth0\"\n";
    assert!(unfit(rule).is_some_and(|problem| problem.contains("dns = \"networks\"")));
    assert_eq!(unfit(&format!("dns = \"networks\"\n{rule}")), None);
    assert!(unfit("kill_switch = true").is_some());
    assert_eq!(unfit(""), None);
}

const HUB: &str = "endpoints = [\"hub.example.org:443\"]\npool = \"100.96.0.0/16\"\n";

#[test]
fn a_hub_file_needs_endpoint_and_pool() {
    let config = hub(HUB).unwrap();
    assert_eq!(config.nat, Nat::Auto);
    assert_eq!(config.interface.0, "hawserhub0");
    assert_eq!(config.pools().hub().0, Ipv4Addr::new(100, 96, 0, 1));
    let cases = [
        ("", "hub.toml:1: missing field `endpoints`"),
        (
            "endpoints = [\"hub\"]",
            "hub.toml:1: \"hub\" is wrong: expected HOST:PORT",
        ),
        (
            "endpoints = []\npool = \"100.96.0.1/16\"",
            "hub.toml:2: \"100.96.0.1/16\" is wrong: expected an IPv4 network",
        ),
    ];
    for (text, expected) in cases {
        let error = hub(text).unwrap_err();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
    for (line, expected) in [
        (
            "nat = \"yes\"",
            "hub.toml:3: \"yes\" is wrong: expected \"auto\", true or false",
        ),
        (
            "pool6 = \"fd00::/8\"",
            "hub.toml:3: \"fd00::/8\" is wrong: expected an IPv6 network",
        ),
        (
            "nat = 1",
            "hub.toml:3: invalid type: integer `1`, expected \"auto\", true or false",
        ),
        (
            "nat_addresses = [\"198.51.100.1\", \"198.51.100.2\"]",
            "hub.toml:3: expected one address of each family at most",
        ),
        (
            "thread_pairs = 0",
            "hub.toml:3: thread_pairs 0 is out of range: 1 to 16",
        ),
        (
            "thread_pairs = 17",
            "hub.toml:3: thread_pairs 17 is out of range: 1 to 16",
        ),
        (
            "nat_addresses = [\"::\"]",
            "hub.toml:3: expected one address of each family at most",
        ),
    ] {
        let error = hub(&format!("{HUB}{line}")).unwrap_err();
        assert!(error.starts_with(expected), "{line:?}: {error}");
    }
    assert_eq!(hub(&format!("{HUB}nat = false")).unwrap().nat, Nat::Off);
    let named = hub(&format!(
        "{HUB}nat_addresses = [\"2001:db8::1\", \"198.51.100.1\"]"
    ))
    .unwrap();
    assert_eq!(named.nat_addresses.0.len(), 2);
    assert_eq!(named.thread_pairs, None);
    assert_eq!(named.controller.0.name(), "short-queue");
    let spread = hub(&format!("{HUB}thread_pairs = 4\ncontroller = \"bbr\"")).unwrap();
    assert_eq!(spread.controller.0.name(), "bbr");
    assert_eq!(spread.thread_pairs, Some(crate::ThreadPairs(4)));
}

#[test]
fn patterns_match_like_a_shell() {
    let cases = [
        ("*", "", true),
        ("*", "wlan0", true),
        ("wlan?", "wlan0", true),
        ("wlan?", "wlan", false),
        ("w*n*0", "wlan10", true),
        ("w*n*0", "wlan1", false),
        ("**a", "bba", true),
        ("a*b*c", "abbcbc", true),
        ("a", "b", false),
    ];
    for (pattern, name, expected) in cases {
        assert_eq!(
            Pattern(pattern.to_owned()).matches(name),
            expected,
            "{pattern} {name}"
        );
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = load::<HubConfig>(Path::new("/nonexistent/hub.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("/nonexistent/hub.toml: cannot read it"),
        "{error}"
    );
    assert_eq!(
        load_or_default::<ClientConfig>(Path::new("/nonexistent/x")).unwrap(),
        ClientConfig::default()
    );
}

#[test]
fn the_examples_are_good() {
    let packaged = client(include_str!("../../../packaging/client.toml")).unwrap();
    assert_eq!(
        (packaged.unfit_for_hub(), packaged.unfit_for_direct()),
        (None, None)
    );
    hub(include_str!("../../../packaging/hub.toml")).unwrap();
    let share = include_str!("../../../packaging/share.toml");
    assert_eq!(
        parse::<ShareConfig>(Path::new("share.toml"), share).unwrap().cap,
        None
    );
}

#[test]
fn quotas_are_read_and_what_is_wrong_is_said() {
    let config =
        client("[networks.lte]\nquota = \"1.5GB\"\nreset_day = 31\nquota_action = \"drain\"\n").unwrap();
    let lte = config.network("lte");
    let quota = lte.quota().unwrap();
    assert_eq!((quota.limit.0, quota.reset_day), (1_500_000_000, 31));
    assert_eq!(lte.quota_action, QuotaAction::Drain);
    let backup = client("[networks.lte]\nquota_action = \"backup\"\n").unwrap();
    assert_eq!(backup.network("lte").quota_action, QuotaAction::Backup);
    let default = config.network("wlan0");
    assert_eq!((default.quota(), default.reset_day.0), (None, 1));
    for (text, said) in [
        ("quota = 10", "10 is not enough: expected an amount with its unit"),
        ("quota = \"10GBit\"", "\"10GBit\" is wrong"),
        ("quota = \"0GB\"", "\"0GB\" is wrong"),
        ("reset_day = 32", "32 is not a day of a month"),
        ("quota_action = \"explode\"", "expected one of"),
    ] {
        let error = client(&format!("[networks.lte]\n{text}\n")).unwrap_err();
        assert!(
            error.starts_with("client.toml:2: ") && error.contains(said),
            "{error}"
        );
    }
}

#[test]
fn conditions_of_rules_are_read_and_named() {
    let rule = |when: &str| {
        let text = format!("[[rule]]\nport = 80\nnetwork = \"lte\"\nwhen = {{ {when} }}\n");
        client(&text).map(|config| config.rules[0].to_string())
    };
    let full = "moving = false, battery = true, hours = \"22:00-06:30\", weekdays = [\"fri-sat\", \"mon\"], \
         cost_below = 5, quota_left_above = \"1GB\", signal_above = \"-70dBm\"";
    assert_eq!(
        rule(full).unwrap(),
        "port 80, when still, on battery, from 22:00 to 06:30, on mon fri sat, cost below 5, more than 1000.0 MB of quota left, \
         signal above -70 dBm"
    );
    assert_eq!(rule("").unwrap(), "port 80");
    for (when, said) in [
        ("hours = \"8-9\"", "expected a part of the day"),
        ("hours = \"08:00-08:00\"", "expected a part of the day"),
        ("hours = \"24:01-08:00\"", "expected a part of the day"),
        ("weekdays = \"someday\"", "expected a day or a range"),
        ("signal_above = -70", "-70 is not enough"),
        ("tired = true", "unknown field"),
    ] {
        let error = rule(when).unwrap_err();
        assert!(error.contains(said), "{when}: {error}");
    }
    assert!(
        rule("hours = \"18:00-24:00\"")
            .unwrap()
            .contains("from 18:00 to 00:00")
    );
}

#[test]
fn what_clients_of_a_hub_reach_is_named_and_nothing_by_default() {
    let hub = |more: &str| {
        let text = format!("endpoints = [\"h:1\"]\npool = \"100.96.0.0/16\"\n{more}");
        parse::<HubConfig>(Path::new("hub.toml"), &text)
    };
    let plain = hub("").unwrap();
    assert_eq!(plain.reach, ReachConfig::default());
    assert!(plain.waypoint.is_empty() && !plain.waypoint.allows("alice"));
    let full = hub(
        "waypoint = [\"alice\"]\n[reach]\nclients = true\nhub = [\"tcp 22\", \"all\"]\nnetworks = [\"10.0.0.0/8\", \"fd00::7\"]\nfrom = [\"0.0.0.0/0\"]\n",
    )
    .unwrap();
    assert!(full.waypoint.allows("alice") && !full.waypoint.allows("bob"));
    let isolation = full.isolation(Vec::new(), Vec::new());
    assert_eq!(isolation.services.len(), 2);
    assert!(isolation.allows("10.1.2.3".parse().unwrap()));
    assert!(hub("waypoint = [\"*\"]\n").unwrap().waypoint.allows("bob"));
    for (wrong, why) in [
        ("waypoint = [\"a b\"]", "not a client name"),
        ("[reach]\nhub = [\"22\"]", "expected a service"),
        ("[reach]\nhub = [\"tcp 0\"]", "expected a service"),
        ("[reach]\nprotocols = [\"256\"]", "an IP protocol"),
        ("[reach]\ndeny = [\"10.0.0.1/8\"]", "without host bits"),
        ("[reach]\nnetworks = [\"10.0.0.1/8\"]", "without host bits"),
        ("[reach]\nnetworks = [\"10.0.0.0/33\"]", "without host bits"),
        ("[reach]\neverything = true", "unknown field"),
    ] {
        let error = hub(wrong).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn tls_is_used_where_udp_is_blocked_unless_it_is_told_otherwise() {
    let config = client("").unwrap();
    assert_eq!((config.tls.when, config.tls.port.get()), (TlsUse::Blocked, 443));
    let config = client(
        "[tls]\nuse = \"never\"\nport = 8443\nname = \"hub.example.org\"\n[networks.eth0]\ntls = \"blocked\"\n[networks.eth2]\ntls = \"always\"\n",
    )
    .unwrap();
    assert_eq!((config.tls.when, config.tls.port.get()), (TlsUse::Never, 8443));
    assert_eq!(config.network("eth0").tls, Some(TlsUse::Blocked));
    assert_eq!(config.network("eth1").tls, None);
    assert_eq!(config.network("eth2").tls, Some(TlsUse::Always));
    for (text, line, said) in [
        ("[tls]\nuse = \"often\"\n", 2, "`blocked`"),
        ("[tls]\nport = 0\n", 2, "nonzero"),
        ("[tls]\n\nname = \"two words\"\n", 3, "hub.example.org"),
        ("[tls]\nports = 1\n", 2, "unknown field"),
    ] {
        let error = client(text).unwrap_err();
        assert!(
            error.starts_with(&format!("client.toml:{line}: ")) && error.contains(said),
            "{error}"
        );
    }
}

#[test]
fn a_proxy_is_read_and_its_password_is_never_shown() {
    let proxy = |text: &str| {
        let config = client(&format!("[networks.eth0]\nproxy = \"{text}\"\n"))?;
        config.network("eth0").proxy.ok_or_else(|| "none".to_owned())
    };
    let plain = proxy("http://192.0.2.8:3128").unwrap();
    assert_eq!(
        (plain.kind, plain.host.as_str(), plain.port),
        (ProxyKind::Http, "192.0.2.8", 3128)
    );
    assert_eq!(plain.login, None);
    let known = proxy("socks5://gu%65st:se%3acret%40x@[2001:db8::1]:1080/").unwrap();
    assert_eq!(
        (known.kind, known.host.as_str()),
        (ProxyKind::Socks5, "2001:db8::1")
    );
    let login = known.login.clone().unwrap();
    assert_eq!(
        (login.name.as_str(), login.password.as_str()),
        ("guest", "se:cret@x")
    );
    assert!(!format!("{known:?}").contains("cret"));
    for bad in [
        "192.0.2.8:3128",
        "https://x:1",
        "http://x",
        "http://secret@x:1",
        "http://a:secret%0d%0aX@x:1",
        "http://a:secret%f@x:1",
        "http://a:secret%@x:1",
        "socks5://:secret@x:1",
    ] {
        let error = proxy(bad).unwrap_err();
        assert!(
            error.starts_with("client.toml:2: ") && !error.contains("secret"),
            "{error}"
        );
    }
}

#[test]
fn a_hub_listens_for_tls_as_it_is_told() {
    let with = |text: &str| {
        hub(&format!(
            "endpoints = [\"hub.example.org:443\"]\npool = \"100.96.0.0/16\"\n[tls]\n{text}\n"
        ))
    };
    assert_eq!(with("").unwrap().tls, HubTlsConfig::default());
    assert_eq!(with("listen = \"off\"").unwrap().tls.listen, Some(TlsListen::Off));
    let config = with("listen = \"[::]:8443\"\ncertificate = \"/a\"\nkey = \"/b\"").unwrap();
    assert_eq!(
        config.tls.listen,
        Some(TlsListen::At("[::]:8443".parse().unwrap()))
    );
    assert_eq!(config.tls.certificate, Some(("/a".into(), "/b".into())));
    let acme = with("[tls.acme]\nnames = [\"Hub.example.org\"]")
        .unwrap()
        .tls
        .acme;
    assert_eq!(acme, Some(AcmeConfig::for_names(&["hub.example.org"])));
    for (text, said) in [
        ("listen = 8443", "ADDRESS:PORT"),
        ("certificate = \"/a\"", "needs its key"),
        ("key = \"/a\"", "needs its certificate"),
        ("cert = \"/a\"", "unknown field"),
        ("[tls.acme]\nnames = []", "names is empty"),
        ("[tls.acme]\nnames = [\"192.0.2.1\"]", "is an address"),
        (
            "[tls.acme]\nnames = [\"a.example\"]\ndirectory = \"http://x\"",
            "https://",
        ),
        (
            "certificate = \"/a\"\nkey = \"/b\"\n[tls.acme]\nnames = [\"a.example\"]",
            "exclude each other",
        ),
    ] {
        let error = with(text).unwrap_err();
        assert!(error.starts_with("hub.toml:") && error.contains(said), "{error}");
    }
}

#[test]
fn limits_of_all_clients_are_read() {
    let with = |table: &str| {
        hub(&format!(
            "endpoints = [\"hub:443\"]\npool = \"100.96.0.0/16\"\n{table}"
        ))
    };
    let limits = with("").unwrap().limits;
    assert_eq!(limits, LimitsConfig::default());
    assert_eq!(limits.slow.0.0, Rate::from_bps(256_000));
    let limits =
        with("[limits]\ncap = \"20mbit\"\nquota = \"100GB\"\nwhen_used = \"stop\"\nslow = \"1mbit\"\n");
    let limits = limits.unwrap().limits;
    assert_eq!(limits.cap, Some(Speed(Rate::from_mbps(20))));
    assert_eq!(limits.quota, Some(Size(100_000_000_000)));
    assert_eq!(
        (limits.when_used, limits.slow.0.0),
        (WhenUsed::Stop, Rate::from_mbps(1))
    );
    let error = with("[limits]\nwhen_used = \"never\"\n").unwrap_err();
    assert!(error.contains("`slow`") && error.contains("`stop`"), "{error}");
    let error = with("[limits]\ncap = 20\n").unwrap_err();
    assert!(error.contains("20 is not enough"), "{error}");
}
