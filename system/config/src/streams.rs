//! TCP connections as streams: `tcp` of `client.toml` and its rules, `[streams]` of `hub.toml`.

use std::num::NonZeroU16;

use hawser_proto::stream::{ConnectRate, Form};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use crate::Size;

/// Form of TCP connections that enter the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TcpMode {
    /// Packets pass the tunnel unchanged.
    EndToEnd,
    /// Connections are split: each end of the tunnel has its own TCP, and the bytes form a stream.
    #[default]
    Stream,
}

impl From<TcpMode> for Form {
    fn from(mode: TcpMode) -> Self {
        match mode {
            TcpMode::EndToEnd => Self::EndToEnd,
            TcpMode::Stream => Self::Stream,
        }
    }
}

/// `[streams]`: connections that the hub opens for its clients.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamsConfig {
    /// Maximum number of concurrent streams of a client; 0 for none. The default is 1,024, or none
    /// if `nat_addresses` has addresses that may move to a standby.
    pub most_per_client: Option<u16>,
    /// Maximum number of connections that a client opens per second on average; bursts of five
    /// times this number are permitted.
    pub connects_per_second: NonZeroU16,
    /// Memory of all streams of all clients, half of it for each direction.
    pub memory: Memory,
}

/// Memory of streams; at least [`MIN_MEMORY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(pub u64);

/// Minimum memory of streams.
///
/// Source: one stream whose window has grown (`Config::max_window`,
/// `core/proto/src/stream/receiving.rs`), in each direction.
const MIN_MEMORY: u64 = 64 << 20;

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Size(bytes) = Size::deserialize(deserializer)?;
        if bytes < MIN_MEMORY {
            return Err(D::Error::custom(
                "too little for one fast stream: write \"64MiB\" or more (most_per_client = 0 disables streams)",
            ));
        }
        Ok(Self(bytes))
    }
}

impl Default for StreamsConfig {
    /// Sources of the values. `connects_per_second`: no measurement; pages open some ten
    /// connections, and a gateway's machines open pages concurrently. `memory`: the first window of
    /// 512 clients, the number that descriptors permit.
    fn default() -> Self {
        Self {
            most_per_client: None,
            connects_per_second: NonZeroU16::new(100).expect("100 is not 0"),
            memory: Memory(1 << 30),
        }
    }
}

/// Default maximum number of concurrent streams of a client.
///
/// Source: `RLIMIT_NOFILE` of a service is 524,288 at most by default (systemd 256): 500 clients.
const MAX_PER_CLIENT: u16 = 1_024;

/// Burst of connections after a pause, as seconds of the rate.
///
/// Source: no measurement; a restarted browser opens all its pages.
const BURST: u32 = 5;

impl StreamsConfig {
    /// Returns the limit of connections that a client opens.
    #[must_use]
    pub fn connects(&self) -> ConnectRate {
        let per_second = u32::from(self.connects_per_second.get());
        ConnectRate {
            per_second,
            burst: BURST * per_second,
        }
    }

    /// Returns the maximum number of concurrent streams of a client; `has_nat_addresses` is set if
    /// the hub has addresses for its clients.
    #[must_use]
    pub fn max_per_client(&self, has_nat_addresses: bool) -> usize {
        let unset = if has_nat_addresses { 0 } else { MAX_PER_CLIENT };
        self.most_per_client.unwrap_or(unset).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::client;

    #[test]
    fn connections_are_split_unless_the_file_says_otherwise() {
        let unless_ruled = |text: &str| client(text).unwrap().forms().unless_ruled;
        assert_eq!(unless_ruled(""), Form::Stream);
        assert_eq!(unless_ruled("tcp = \"end-to-end\""), Form::EndToEnd);
        assert_eq!(unless_ruled("tcp = \"stream\""), Form::Stream);
        let error = client("tcp = \"split\"").unwrap_err();
        assert!(
            error.contains("`end-to-end`") && error.contains("`stream`"),
            "{error}"
        );
    }

    #[test]
    fn rules_choose_the_form_of_connections() {
        let config = client(
            "tcp = \"stream\"\n\
             [[rule]]\nport = 443\ndeadline = \"100ms\"\n\
             [[rule]]\nto = \"203.0.113.0/24\"\nvia = \"hub\"\n\
             [[rule]]\nport = [443, \"8000-8999\"]\nto = [\"198.51.100.0/24\", \"2001:db8::/32\"]\ntcp = \"end-to-end\"\n\
             [[rule]]\nport = 22\ndscp = \"cs1\"\ntcp = \"stream\"\n\
             [[rule]]\nport = 9\nvia = \"hub\"\n",
        );
        let forms = config.unwrap().forms();
        assert_eq!(forms.unless_ruled, Form::Stream);
        let found: Vec<_> = forms.rules.iter().map(|rule| (rule.ports, rule.form)).collect();
        let whole = Some(Form::EndToEnd);
        let expected = [
            (None, None),
            (Some((443, 443)), whole),
            (Some((443, 443)), whole),
            (Some((8000, 8999)), whole),
            (Some((8000, 8999)), whole),
            (Some((22, 22)), Some(Form::Stream)),
        ];
        assert_eq!(
            found, expected,
            "no deadline, and nothing after the last rule with tcp"
        );
        assert_eq!(forms.rules[5].dscp, Some(8));
        for (rule, may_split) in [("tcp = \"stream\"", true), ("via = \"hub\"", false)] {
            let text = format!("tcp = \"end-to-end\"\n[[rule]]\nport = 443\n{rule}");
            assert_eq!(client(&text).unwrap().forms().may_split(), may_split, "{rule}");
        }
    }

    #[test]
    fn a_rule_with_tcp_refuses_what_has_no_effect_beside_it() {
        for (beside, named) in [
            ("network = \"eth0\"", "remove network"),
            ("via = \"direct\"", "hub and via"),
            ("via = \"faster\"", "hub and via"),
            ("to = \"203.0.113.0/24\"\nhub = \"b.example\"", "hub"),
            ("domain = \"example.org\"", "domain"),
            ("cgroup = \"user.slice\"", "cgroup"),
            ("when = { battery = true }", "when"),
            ("from = \"192.168.1.0/24\"", "from"),
            ("protocol = \"udp\"", "protocol = \"tcp\""),
        ] {
            let error = client(&format!("[[rule]]\ntcp = \"stream\"\n{beside}")).unwrap_err();
            assert!(
                error.contains("tcp") && error.contains(named),
                "{beside}: {error}"
            );
        }
        for fit in ["", "via = \"hub\"", "protocol = \"tcp\"", "dscp = \"af11\""] {
            client(&format!("[[rule]]\ntcp = \"stream\"\n{fit}")).unwrap();
        }
    }

    #[test]
    fn a_hub_bounds_what_streams_take() {
        let read = |text: &str| toml::from_str::<StreamsConfig>(text).map_err(|error| error.to_string());
        let set = read("memory = \"256MiB\"\nconnects_per_second = 7").unwrap();
        let rate = ConnectRate {
            per_second: 7,
            burst: 35,
        };
        assert_eq!((set.memory.0, set.connects()), (256 << 20, rate));
        assert_eq!(read("").unwrap(), StreamsConfig::default());
        let error = read("memory = \"1MB\"").unwrap_err();
        assert!(
            error.contains("64MiB") && error.contains("most_per_client"),
            "{error}"
        );
        assert!(read("connects_per_second = 0").is_err());
    }

    #[test]
    fn a_hub_with_addresses_that_move_takes_no_streams_unless_it_says_so() {
        let unset = StreamsConfig::default();
        assert_eq!(
            (unset.max_per_client(false), unset.max_per_client(true)),
            (1_024, 0)
        );
        let set = StreamsConfig {
            most_per_client: Some(7),
            ..StreamsConfig::default()
        };
        assert_eq!((set.max_per_client(false), set.max_per_client(true)), (7, 7));
    }
}
