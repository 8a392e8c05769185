//! Tests of tables `[[rule]]`, in a file and as words.

use super::*;
use crate::tests::client;

#[test]
fn rules_choose_between_the_hub_and_the_networks() {
    let config =
        client("[[rule]]\nport = 22\nvia = \"direct\"\n[[rule]]\nport = 25\nspread = \"even\"\n").unwrap();
    assert!(config.is_mixed() && config.unfit_for_hub().is_none() && config.unfit_for_direct().is_none());
    let via = |has_hub| config.rules.iter().map(move |rule| rule.via(has_hub));
    assert!(via(true).eq([Via::Direct, Via::Hub]));
    assert!(via(false).eq([Via::Direct, Via::Direct]));
    let config = client("[[rule]]\nport = 22\nvia = \"hub\"\n").unwrap();
    assert!(!config.is_mixed() && config.unfit_for_direct().unwrap().contains("needs a hub"));
    let config = client("[[rule]]\nvia = \"faster\"\nnetwork = \"wlan*\"\n").unwrap();
    assert!(config.is_mixed() && config.unfit_for_hub().is_none());
    assert!(config.unfit_for_direct().unwrap().contains("via = \"faster\""));
    for more in ["spread = \"even\"", "strict = true", "when = { cost_below = 2 }"] {
        let refused = client(&format!("[[rule]]\nvia = \"faster\"\n{more}\n")).unwrap_err();
        assert!(refused.to_string().contains("compares times only"), "{refused}");
    }
    let refused = client("[[rule]]\nport = 22\nvia = \"hub\"\nstrict = true\n")
        .unwrap_err()
        .to_string();
    assert!(refused.contains("add network"), "{refused}");
    assert!(client("[[rule]]\nvia = \"direct\"\nnetwork = \"wlan*\"\nstrict = true\n").is_ok());
    let config = client("[direct]\ndataplane = \"openvswitch\"\n[[rule]]\nvia = \"direct\"\n").unwrap();
    assert!(config.unfit_for_direct().is_none() && config.unfit_for_hub().unwrap().contains("without a hub"));
    let config = client("[[rule]]\ndomain = \"example.org\"\nvia = \"direct\"\n").unwrap();
    assert!(config.unfit_for_hub().unwrap().contains("dns = \"networks\""));
}

#[test]
fn rules_choose_a_hub_by_destination() {
    let net = |text: &str| -> Net { text.parse().unwrap() };
    let config = client(
        "[[rule]]\nto = \"203.0.113.7\"\nvia = \"hub\"\n\
         [[rule]]\nport = 22\nvia = \"hub\"\n\
         [[rule]]\nto = [\"203.0.113.0/24\", \"2001:db8::/32\"]\nhub = \"hub2.example.org\"\n\
         [[rule]]\nprotocol = \"tcp\"\nport = [25, 587]\nhub = \"hub2.example.org\"\n",
    )
    .unwrap();
    let named = HostName("hub2.example.org".to_owned());
    let to = |to: &[Net]| Match {
        to: to.to_vec(),
        ..Match::default()
    };
    let exception = to(&[net("203.0.113.7/32")]);
    let nets = to(&[net("203.0.113.0/24"), net("2001:db8::/32")]);
    let mail = Match {
        protocol: Some(Protocol::Tcp),
        ports: vec![(25, 25), (587, 587)],
        ..Match::default()
    };
    let chosen: Vec<_> = config.rules.iter().filter_map(RuleConfig::by_hub).collect();
    assert_eq!(
        chosen,
        [(&exception, None), (&nets, Some(&named)), (&mail, Some(&named))]
    );
    assert!(!config.is_mixed() && config.unfit_for_hub().is_none());
    assert!(
        client("[[rule]]\nto = \"203.0.113.0/24\"\nhub = \"203.0.113.2\"\n")
            .unwrap()
            .unfit_for_direct()
            .unwrap()
            .contains("needs a fleet")
    );
    for more in [
        "network = \"eth0\"",
        "strict = true",
        "dscp = \"ef\"",
        "from = \"192.168.50.0/24\"",
        "domain = \"example.org\"",
        "when = { moving = true }",
    ] {
        let text = format!("[[rule]]\nto = \"203.0.113.0/24\"\nhub = \"hub2.example.org\"\n{more}\n");
        let refused = client(&text).unwrap_err().to_string();
        assert!(refused.contains("needs to, protocol or port"), "{refused}");
    }
}

#[test]
fn a_rule_is_made_of_words() {
    let rule = |words: &[(&str, &str)]| {
        let words = words
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        RuleConfig::of_words(&words.collect())
    };
    let words = [
        ("protocol", "tcp"),
        ("port", "22, 8000-8100"),
        ("to", " 2001:db8::/32"),
        ("network", "wlan*,kind:cellular"),
    ];
    let made = rule(&words).unwrap();
    assert_eq!(
        made.to_string(),
        "tcp, port 22, ports 8000-8100, to 2001:db8::/32"
    );
    let networks: Vec<_> = made.networks.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["wlan*", "kind:cellular"]);
    let text = "[[rule]]\nprotocol = \"tcp\"\nport = [22, \"8000-8100\"]\nto = \"2001:db8::/32\"\n\
                network = [\"wlan*\", \"kind:cellular\"]\n";
    assert_eq!(client(text).unwrap().rules, [made]);
    for (words, said) in [
        (&[("port", "ssh"), ("network", "lte")][..], "a port such as 443"),
        (&[("port", "22")], "no effect on its flows"),
        (&[("prot", "tcp")], "unknown field `prot`"),
        (&[("network", "")], "an interface name"),
        (
            &[("to", "203.0.113.0/24"), ("hub", "hub2.example.org")],
            "is for rules in client.toml",
        ),
        (&[("via", "moon")], "\"direct\", \"hub\" or \"faster\""),
    ] {
        let error = rule(words).unwrap_err();
        assert!(error.contains(said), "{words:?}: {error}");
    }
}
