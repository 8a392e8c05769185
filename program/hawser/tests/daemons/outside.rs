//! Counters of packets that leave a client outside the tunnel, at the far end of its cables, and
//! programs that send such packets.

use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_linux::netns::Namespace;

use crate::world::{World, good};

/// Counters in `nft` of packets outside the tunnel: those from the client over a cable that are
/// neither outer packets, nor needed for an interface's address, nor Hawser's checks of a gateway.
pub(crate) const COUNTERS: [&str; 4] = ["dns", "v4", "v6", "behind"];
const RULES: &str = "
table inet outside {
  counter dns {}
  counter v4 {}
  counter v6 {}
  counter behind {}
  set four { type ipv4_addr . ipv4_addr . inet_proto; flags dynamic; size 64; }
  chain in {
    type filter hook prerouting priority -400;
    iifname != { fiber, lte } accept
    udp dport 4430 accept
    ip daddr 198.51.100.1 tcp dport 443 accept
    ip daddr { 10.0.10.1, 10.0.11.1 } icmp type echo-request accept
    ip6 daddr { 2001:db8:10::1, 2001:db8:11::1 } icmpv6 type echo-request accept
    icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert, mld-listener-report, mld2-listener-report } accept
    ip saddr 192.168.7.2 counter name behind accept
    meta l4proto { udp, tcp } th dport 53 counter name dns accept
    meta nfproto ipv4 counter name v4 add @four { ip saddr . ip daddr . meta l4proto }
    meta nfproto ipv6 counter name v6
  }
}";

/// Access to the counters.
pub(crate) struct Outside<'a>(&'a World);

impl<'a> Outside<'a> {
    pub(crate) fn count(world: &'a World) -> Self {
        nft(world, RULES);
        Self(world)
    }

    pub(crate) fn packets(&self) -> [u64; 4] {
        let mut nft = self.0.inside("h", "nft");
        nft.args(["-j", "list", "counters", "table", "inet", "outside"]);
        let listed: serde_json::Value = serde_json::from_slice(&good(nft).stdout).unwrap();
        let all = listed["nftables"].as_array().unwrap().clone();
        COUNTERS.map(|name| {
            let counter = all.iter().find(|found| found["counter"]["name"] == name);
            counter.unwrap()["counter"]["packets"].as_u64().unwrap()
        })
    }

    pub(crate) fn assert_none(&self, when: &str) {
        let mut nft = self.0.inside("h", "nft");
        nft.args(["list", "table", "inet", "outside"]);
        let packets = self.packets();
        let shown = String::from_utf8_lossy(&good(nft).stdout).into_owned();
        assert_eq!(packets, [0; 4], "{COUNTERS:?} {when}: {shown}");
    }

    pub(crate) fn reset(&self) {
        nft(
            self.0,
            "flush set inet outside four; reset counters table inet outside",
        );
    }
}

fn nft(world: &World, script: &str) {
    let mut nft = world.inside("h", "nft");
    nft.arg(script);
    good(nft);
}

/// Programs that send continuously.
pub(crate) struct Traffic {
    ends: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

/// Destinations: far and near hosts, and far and near resolvers.
pub(crate) const TO: [&str; 8] = [
    "203.0.113.2:7000",
    "10.0.10.1:7001",
    "[2001:db8:99::2]:7000",
    "[2001:db8:10::1]:7001",
    "192.0.2.53:53",
    "10.0.10.1:53",
    "10.0.11.1:53",
    "[2001:db8:10::1]:53",
];

impl Traffic {
    pub(crate) fn start(client: &Namespace, behind: Option<&Namespace>) -> Self {
        let (ends, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut traffic = Self {
            ends,
            sent,
            threads: Vec::new(),
        };
        let sockets = client.run(|| Ok([UdpSocket::bind("0.0.0.0:0")?, UdpSocket::bind("[::]:0")?]));
        let [four, six] = sockets.unwrap();
        let sent = Arc::clone(&traffic.sent);
        traffic.repeat(move || {
            for to in TO {
                let socket = if to.starts_with('[') { &six } else { &four };
                let _ = socket.send_to(b"leak", to);
            }
            sent.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(500));
        });
        let inside = client.clone();
        traffic.repeat(move || {
            for to in ["203.0.113.2:80", "[2001:db8:99::2]:80", "10.0.11.1:53"] {
                let wait = Duration::from_millis(2);
                let _ = inside.run(|| TcpStream::connect_timeout(&to.parse().unwrap(), wait));
            }
        });
        if let Some(behind) = behind {
            let behind = behind.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
            traffic.repeat(move || {
                for to in ["203.0.113.2:7000", "192.0.2.53:53"] {
                    let _ = behind.send_to(b"leak", to);
                }
                std::thread::sleep(Duration::from_millis(1));
            });
        }
        traffic
    }

    /// Returns how many times packets were sent to all destinations.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until packets were sent to all destinations this many times more.
    pub(crate) fn send(&self, times: u64) {
        let before = self.sent();
        while self.sent() < before + times {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn repeat(&mut self, mut work: impl FnMut() + Send + 'static) {
        let ends = Arc::clone(&self.ends);
        self.threads.push(std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                work();
            }
        }));
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
