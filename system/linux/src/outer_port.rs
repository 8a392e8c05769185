//! A hub's outer port is left out of the kernel's table of connections.
//!
//! Each client's path would be an entry there, beside those of the clients' own connections, and a
//! table that is full drops the packets of whoever is new in it: one busy client could shut all
//! others out. Packets of the port need no entry, because nothing translates them. Where a rule of
//! the machine does when the hub starts, they keep theirs.

use crate::system::program::run;

/// The name of the table.
pub const OUTER_PORT_TABLE: &str = "hawser_outer";

/// Writes what stands between the braces of the table; nothing where another rule of this machine
/// leads packets to the port or away from it by translation.
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

/// Returns true if a rule translates packets to that port, or those that are for it, as
/// `udp dport 443 redirect to :4430` and its forms of iptables do.
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
