//! Detects firewalls of other programs that drop packets which a hub or a gateway forwards.
//!
//! A packet passes only if every chain of the forward hook accepts it, so another program's chain
//! with the policy drop (Docker, ufw, libvirt) drops all packets that none of its rules accepts.
//! Tables of `iptables-legacy` are a separate firewall, which `nft` does not show.

use crate::system::program::run;

/// Describes each chain of the forward hook with the policy drop that has no rule for `interface`.
#[must_use]
pub fn forward_drops(interface: &str) -> Vec<String> {
    let listed = run("nft", &["-s", "list", "chains"], "").unwrap_or_default();
    let by_nft = dropping_chains(&listed)
        .into_iter()
        .filter_map(|(family, table, chain)| {
            let shown = run("nft", &["-s", "list", "chain", &family, &table, &chain], "").unwrap_or_default();
            let is_ours = table.starts_with("hawser_");
            (!is_ours && !shown.contains(interface))
                .then(|| format!("nftables chain {family} {table} {chain}"))
        });
    by_nft.chain(by_legacy(interface)).collect()
}

/// Examines the tables of `iptables-legacy`, if the kernel has any.
fn by_legacy(interface: &str) -> Vec<String> {
    let programs = [
        ("/proc/net/ip_tables_names", "iptables-legacy"),
        ("/proc/net/ip6_tables_names", "ip6tables-legacy"),
    ];
    let has_filter = |file: &str| {
        std::fs::read_to_string(file).is_ok_and(|names| names.lines().any(|name| name == "filter"))
    };
    let present = programs.into_iter().filter(|(file, _)| has_filter(file));
    let drops = present.filter(|(_, program)| {
        let rules = run(program, &["-S", "FORWARD"], "").unwrap_or_default();
        rules.starts_with("-P FORWARD DROP") && !rules.contains(interface)
    });
    drops
        .map(|(_, program)| format!("{program} chain FORWARD"))
        .collect()
}

/// Returns family, table and name of the chains of the forward hook with the policy drop.
fn dropping_chains(listed: &str) -> Vec<(String, String, String)> {
    let (mut table, mut chain) = (None, None);
    let mut found = Vec::new();
    for line in listed.lines().map(str::trim) {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["table", family, name, "{"] => table = Some((family.to_owned(), name.to_owned())),
            ["chain", name, "{"] => chain = Some(name.to_owned()),
            ["type", "filter", "hook", "forward", ..] if line.contains("policy drop") => {
                if let (Some((family, table)), Some(chain)) = (table.clone(), chain.clone()) {
                    found.push((family, table, chain));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn chains_that_drop_by_policy_are_found_and_those_that_name_the_interface_are_not() {
        let Ok(namespace) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let drops = || namespace.run(|| Ok(forward_drops("hawserhub0"))).unwrap();
        assert_eq!(drops(), Vec::<String>::new());
        let nft = |script: &str| assert!(namespace.command("nft").arg(script).status().unwrap().success());
        nft(
            "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }",
        );
        nft("add table inet open; add chain inet open f { type filter hook forward priority 0; }");
        nft(
            "add table inet hawser_x; add chain inet hawser_x f { type filter hook forward priority 0; policy drop; }",
        );
        assert_eq!(drops(), ["nftables chain ip filter FORWARD"]);
        nft("add rule ip filter FORWARD iifname hawserhub0 accept");
        assert_eq!(drops(), Vec::<String>::new());
    }
}
