//! Excludes a hub's outer port from connection tracking.
//!
//! Each client's path would otherwise have an entry, in addition to those of the clients' own
//! connections, and when the table is full, packets of new connections are dropped: one busy client
//! could lock out all others. Packets of the port need no entry, because they are not translated.
//! If a rule of the machine translates them when the hub starts, they stay tracked.

use crate::system::program::run;

/// The name of the table.
pub const OUTER_PORT_TABLE: &str = "hawser_outer";

/// Returns the text between the braces of the table; `None` if another rule of this machine
/// translates packets to or from the port.
#[must_use]
pub fn untracked(port: u16) -> Option<String> {
    let listed = run("nft", &["-s", "-n", "list", "ruleset"], "").unwrap_or_default();
    (!is_translated(&listed, port)).then(|| body(port))
}

fn body(port: u16) -> String {
    format!(
        "chain prerouting {{
  type filter hook prerouting priority raw; policy accept;
  fib daddr type local udp dport {port} notrack
}}
chain output {{
  type filter hook output priority raw; policy accept;
  udp sport {port} notrack
}}"
    )
}

/// Returns whether a rule translates packets to or from that port, such as `udp dport 443 redirect
/// to :4430` and its equivalents in iptables.
fn is_translated(ruleset: &str, port: u16) -> bool {
    let port = port.to_string();
    let mut lines = ruleset.lines().map(str::to_ascii_lowercase);
    lines.any(|line| {
        let mut numbers = line.split(|c: char| !c.is_ascii_digit());
        let translates = ["redirect", "dnat"].iter().any(|word| line.contains(word));
        translates && numbers.any(|number| number == port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nft_takes_the_table() {
        crate::direct::tests::nft_takes(OUTER_PORT_TABLE, &body(4430));
    }

    #[test]
    fn a_port_to_which_a_rule_translates_is_known() {
        for (rule, is_known) in [
            ("udp dport 443 redirect to :4430", true),
            ("udp dport 443 dnat ip to 192.0.2.1:4430", true),
            (
                "udp dport 443 counter packets 0 bytes 0 xt target \"REDIRECT\" to-ports 4430",
                true,
            ),
            ("udp dport 4430 accept", false),
            ("udp dport 4430 redirect to :5000", true),
            ("udp dport 443 redirect to :5000", false),
        ] {
            assert_eq!(
                is_translated(&format!("table ip t {{\n{rule}\n}}"), 4430),
                is_known,
                "{rule}"
            );
        }
    }
}
