//! Kill switch: an nftables table that blocks all packets outside the tunnel.
//!
//! It is in the kernel and not in a process, so it stays active during crashes, restarts and failed
//! starts. It is closed before any other action and replaced atomically when it is closed again, so
//! a start after a crash opens nothing. Only [`System::undo`] and [`System::lift_kill_switch`] lift
//! it.
//!
//! There are two independent layers: the nftables table, and rules and routes that block all
//! traffic outside the tunnel (`near.rs`).

use super::{System, SystemError};
use crate::desired::NearPolicy;
use crate::direct::{MARK, MARK_MASK, NETWORK_MASK, REASON_MASK, reason};
use crate::journal::Entry;
use crate::nft;
use crate::udp::OUTER_MARK;

/// Exceptions of a kill switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillSwitch {
    /// The interface of the tunnel.
    pub interface: String,
    /// Interfaces to machines for which this one forwards.
    pub lans: Vec<String>,
    /// Set if flows that a rule of direct mode sends over a network are permitted too.
    pub has_direct_rules: bool,
    /// Set if Hawser searches for neighbours on the local networks.
    pub finds_neighbours: bool,
}

impl System {
    /// Closes the kill switch.
    ///
    /// # Errors
    /// `nft` is missing or fails; the previous state stays.
    pub async fn close_kill_switch(&mut self, switch: &KillSwitch) -> Result<(), SystemError> {
        self.nft_table(TABLE, &switch.table())?;
        // Strict filtering would reject received packets while all routes use another interface.
        for name in interfaces() {
            if let Err(error) = self.loosen_reverse_path(&name) {
                tracing::debug!(%error, name, "cannot change reverse path filtering");
            }
        }
        self.stay_near(NearPolicy {
            tunnel: switch.interface.clone(),
            kill_switch: true,
            lans: switch.lans.clone(),
            forwards: switch.has_direct_rules,
            ..NearPolicy::default()
        })
        .await?;
        self.block().await
    }

    /// Lifts the kill switch.
    ///
    /// # Errors
    /// `nft` refuses.
    pub async fn lift_kill_switch(&mut self) -> Result<(), SystemError> {
        for entry in self.block_entries() {
            self.undo_one(&entry).await?;
            self.strike(&entry)?;
        }
        self.drop_nft_table(TABLE)
    }

    /// Undoes all changes except the kill switch, which the next start takes over.
    pub async fn undo_but_kill_switch(&mut self) {
        self.ledger().left.clear();
        let mut entries = self.entries();
        entries.retain(|entry| !is_of_kill_switch(entry));
        // The process ends, so the remaining objects are not restored.
        self.forget_all().await;
        self.undo_all(&entries).await;
    }
}

/// Returns whether a change belongs to the kill switch.
fn is_of_kill_switch(entry: &Entry) -> bool {
    let is_table = matches!(entry, Entry::NftTable { table } if table == TABLE);
    is_table
        || matches!(
            entry,
            Entry::Block { .. } | Entry::NearRule { .. } | Entry::UplinkRule { .. } | Entry::NearTable
        )
}

/// Returns the interfaces that have settings of their own.
fn interfaces() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/sys/net/ipv4/conf")
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| !["all", "default", "lo"].contains(&name.as_str()))
        .collect()
}

impl KillSwitch {
    /// Returns the body of the table. Another one (`inbound.rs`) filters packets that arrive
    /// through the tunnel.
    ///
    /// It accepts only loopback, the tunnel, LANs, marked outer packets, and the packets with which
    /// an interface gets and keeps an address (DHCP, neighbour discovery). Names of hubs are
    /// resolved with marked packets. Multicast DNS of root's programs, which no router forwards
    /// (RFC 6762 section 3), is used to search for neighbours.
    ///
    /// Each chain ends with a drop rule, although its policy drops too. When a transaction replaces
    /// a chain, the kernel (6.18, `nf_tables_commit`) switches to the new rules, removes the old
    /// chain, and only then gives the new one its policy. Without that rule, one packet passed in
    /// several hundred replacements. The policy applies to packets that are in the old chain when
    /// its rules are removed.
    fn table(&self) -> String {
        let interface = &self.interface;
        let (mut near, mut between) = (String::new(), String::new());
        if !self.lans.is_empty() {
            let names = nft::names(&self.lans);
            near = format!("  oifname {{ {names} }} accept\n");
            between = format!("  iifname {{ {names} }} oifname {{ {names} }} accept\n");
        }
        let mut direct = String::new();
        if self.has_direct_rules {
            // Does not match the packet's mark, which programs may set.
            direct = format!(
                "  ct mark & {MARK_MASK:#x} == {MARK:#x} ct mark & {REASON_MASK:#x} >= {:#x} accept\n",
                u32::from(reason::FIRST_RULE) << 8
            );
        }
        let neighbours = if self.finds_neighbours { NEIGHBOURS } else { "" };
        format!(
            "chain output {{
  type filter hook output priority filter; policy drop;
  oifname {{ \"lo\", \"{interface}\" }} accept
  meta mark & {NETWORK_MASK:#x} == {OUTER_MARK:#x} accept
{near}{direct}{neighbours}  udp sport 68 udp dport 67 accept
  udp sport 546 udp dport 547 accept
  icmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert, mld-listener-report, mld2-listener-report }} accept
  drop
}}
chain forward {{
  type filter hook forward priority filter; policy drop;
{between}{direct}  iifname \"{interface}\" accept
  oifname \"{interface}\" accept
  drop
}}"
        )
    }
}

/// Rules that permit multicast DNS queries. Source: addresses and port of RFC 6762 section 3.
const NEIGHBOURS: &str = "  meta skuid 0 ip daddr 224.0.0.251 udp sport 5353 udp dport 5353 accept
  meta skuid 0 ip6 daddr ff02::fb udp sport 5353 udp dport 5353 accept
";

const TABLE: &str = "hawser_kill";

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::netns::Namespace;
    use crate::system::nft_tables::replace_table;

    fn switch(finds_neighbours: bool) -> KillSwitch {
        KillSwitch {
            interface: "hawser0".to_owned(),
            lans: Vec::new(),
            has_direct_rules: false,
            finds_neighbours,
        }
    }

    /// A namespace with a cable to another one, in which all sent packets are received.
    fn cable() -> Option<(Namespace, Namespace)> {
        let made = Namespace::new().and_then(|inside| Ok((inside, Namespace::new()?)));
        let (inside, outside) = made
            .inspect_err(|error| hawser_testing::skip(format!("no namespaces: {error}")))
            .ok()?;
        let far = outside.path();
        let mut ip = inside.command("sh");
        ip.args([
            "-ec",
            &format!(
                "ip link set lo up; ip link add net type veth peer name net netns {far}; ip addr add 10.7.0.1/24 dev net; ip link set net up"
            ),
        ]);
        assert!(ip.status().unwrap().success());
        let mut ip = outside.command("sh");
        ip.args(["-ec", "ip addr add 10.7.0.2/24 dev net; ip link set net up"]);
        assert!(ip.status().unwrap().success());
        Some((inside, outside))
    }

    /// The kernel applies a chain's policy after its rules: with a policy only, some of these
    /// packets would leave.
    #[test]
    fn replaced_while_programs_send_it_lets_nothing_out() {
        let Some((inside, outside)) = cable() else { return };
        let heard = outside.run(|| UdpSocket::bind("10.7.0.2:9")).unwrap();
        heard.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let socket = inside.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        let (ends, tried) = (AtomicBool::new(false), AtomicU64::new(0));
        let table = switch(false).table();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let _ = socket.send_to(b"leak", "10.7.0.2:9");
                    tried.fetch_add(1, Ordering::Relaxed);
                }
            });
            heard.recv(&mut [0; 8]).expect("the cable works");
            inside
                .run(|| replace_table(TABLE, &table).map_err(std::io::Error::other))
                .unwrap();
            // Receive packets that were in flight.
            while heard.recv(&mut [0; 8]).is_ok() {}
            for _ in 0..100 {
                inside
                    .run(|| replace_table(TABLE, &table).map_err(std::io::Error::other))
                    .unwrap();
            }
            ends.store(true, Ordering::Relaxed);
        });
        let leaked = std::iter::from_fn(|| heard.recv(&mut [0; 8]).ok()).count();
        assert_eq!(leaked, 0, "of {tried:?}");
    }

    #[test]
    fn questions_for_neighbours_are_let_out_where_they_are_wanted() {
        let Some((inside, outside)) = cable() else { return };
        let (group, port) = (std::net::Ipv4Addr::new(224, 0, 0, 251), 5353);
        let heard = outside
            .run(|| {
                let heard = UdpSocket::bind(("0.0.0.0", port))?;
                heard.join_multicast_v4(&group, &std::net::Ipv4Addr::new(10, 7, 0, 2))?;
                heard.set_read_timeout(Some(Duration::from_millis(200)))?;
                Ok(heard)
            })
            .unwrap();
        let is_heard = |finds_neighbours, from: u16| {
            let table = switch(finds_neighbours).table();
            let sent = inside.run(|| {
                replace_table(TABLE, &table).map_err(std::io::Error::other)?;
                let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
                socket.set_multicast_if_v4(&std::net::Ipv4Addr::new(10, 7, 0, 1))?;
                socket.bind(&std::net::SocketAddr::from(([0, 0, 0, 0], from)).into())?;
                let _ = socket.send_to(b"who", &std::net::SocketAddr::from((group, port)).into());
                Ok(())
            });
            sent.unwrap();
            heard.recv(&mut [0; 8]).is_ok()
        };
        assert!(is_heard(true, port), "a question of multicast DNS");
        assert!(!is_heard(true, port + 1), "anything else to that address");
        assert!(!is_heard(false, port), "nobody looks for neighbours");
    }
}
