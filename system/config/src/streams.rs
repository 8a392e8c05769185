//! TCP connections as streams: `tcp` of `client.toml`, `[streams]` of `hub.toml`.

use serde::Deserialize;

/// Form of TCP connections that enter the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TcpMode {
    /// Packets are transferred.
    #[default]
    EndToEnd,
    /// Connections are split: each end of the tunnel has a TCP of its own, and their bytes are a
    /// stream.
    Stream,
}

/// `[streams]`: connections that the hub opens for its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamsConfig {
    /// Streams of a client at once; 0 for none. Unless set, 1,024, and none where `nat_addresses`
    /// names addresses that may move to a standby.
    pub most_per_client: Option<u16>,
}

/// Streams of a client at once, unless set.
///
/// Source: `RLIMIT_NOFILE` of a service is 524,288 at most by default (systemd 256): 500 clients.
const MAX_PER_CLIENT: u16 = 1_024;

impl StreamsConfig {
    /// Streams of a client at once, of a hub that has addresses for its clients or not.
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
    fn connections_are_left_whole_unless_the_file_says_otherwise() {
        assert_eq!(client("").unwrap().tcp, TcpMode::EndToEnd);
        assert_eq!(client("tcp = \"end-to-end\"").unwrap().tcp, TcpMode::EndToEnd);
        assert_eq!(client("tcp = \"stream\"").unwrap().tcp, TcpMode::Stream);
        let error = client("tcp = \"split\"").unwrap_err();
        assert!(
            error.contains("`end-to-end`") && error.contains("`stream`"),
            "{error}"
        );
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
        };
        assert_eq!((set.max_per_client(false), set.max_per_client(true)), (7, 7));
    }
}
