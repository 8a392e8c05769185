//! Queues and counters of interfaces.
//!
//! Every interface has a queueing discipline, which rtnetlink reports. On Wi-Fi it is empty,
//! because the 802.11 stack queues the frames by station and traffic class, as nl80211 reports.
//! Both are included here.
//!
//! Uses netlink as bytes, because `wl-nl80211` does not expose the queues of stations. The kernel
//! answers such requests synchronously, so no call waits.

use std::io;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink_bytes::{GENERIC, ask, attribute, attributes, family, find, framed};

/// Queues of an interface. Counters start at an arbitrary time, and decrease when a station or the
/// discipline is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Queued bytes.
    pub waiting: u64,
    /// Sent bytes.
    pub sent: u64,
    /// Dropped frames.
    pub lost: u64,
}

/// Queries the kernel for queues of interfaces in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Queues {
    route: Socket,
    /// Socket with the number of nl80211's family.
    wireless: Option<(Socket, u16)>,
}

impl Queues {
    /// Opens a connection to the kernel.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            route: open(NETLINK_ROUTE)?,
            wireless: wireless().ok(),
        })
    }

    /// Returns the queues of an interface, by its index.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn of(&self, index: u32) -> io::Result<Queue> {
        let mut queue = self.discipline(index)?;
        if let Some((socket, family)) = &self.wireless {
            let mut body = vec![GET_STATION, 0, 0, 0];
            body.extend(attribute(INTERFACE, &index.to_ne_bytes()));
            let request = framed(*family, libc::NLM_F_DUMP | libc::NLM_F_ACK, &body);
            // An interface that is no access point, or no radio at all, has no stations.
            let stations = ask(socket, &request).unwrap_or_default();
            stations
                .iter()
                .for_each(|(_, station)| add_station(station, &mut queue));
        }
        Ok(queue)
    }

    /// Returns the root discipline of the interface. All disciplines are requested, because the
    /// kernel multicasts the answer to a request for a single one.
    fn discipline(&self, index: u32) -> io::Result<Queue> {
        let request = framed(GET_DISCIPLINE, libc::NLM_F_DUMP, &[0; DISCIPLINE]);
        let answers = ask(&self.route, &request)?;
        let is_root =
            |body: &[u8]| number(body, 4) == Some(index.into()) && number(body, 12) == Some(ROOT.into());
        let mut roots = answers.iter().map(|(_, body)| body).filter(|body| is_root(body));
        let root = roots.next().ok_or(io::ErrorKind::NotFound)?;
        let statistics = root.get(DISCIPLINE..).and_then(|body| find(body, STATISTICS));
        let counted = |kind| find(statistics?, kind);
        let mut queue = Queue::default();
        if let Some(bytes) = counted(BASIC).and_then(|value| value.first_chunk()) {
            queue.sent = u64::from_ne_bytes(*bytes);
        }
        if let Some(value) = counted(QUEUED) {
            queue.waiting = number(value, 4).unwrap_or(0);
            queue.lost = number(value, 8).unwrap_or(0);
        }
        Ok(queue)
    }

    /// Returns the bytes of frames that an interface has received, by its index.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn received(&self, index: u32) -> io::Result<u64> {
        let mut body = [0; LINK];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        let answers = ask(&self.route, &framed(GET_LINK, libc::NLM_F_ACK, &body))?;
        let link = answers.first().ok_or(io::ErrorKind::NotFound)?;
        let counters = link.1.get(LINK..).and_then(|body| find(body, COUNTERS));
        let received = counters.and_then(|value| value.get(16..)?.first_chunk());
        Ok(u64::from_ne_bytes(*received.ok_or(io::ErrorKind::InvalidData)?))
    }
}

/// Adds the queues of all traffic classes of a station.
fn add_station(body: &[u8], queue: &mut Queue) {
    // The attributes follow the generic header.
    let classes = body
        .get(4..)
        .and_then(|body| find(find(body, STATION)?, CLASSES))
        .unwrap_or_default();
    let queues = attributes(classes).filter_map(|(_, class)| find(class, CLASS_QUEUE));
    for (kind, value) in queues.flat_map(attributes) {
        let value = number(value, 0).unwrap_or(0);
        match kind {
            WAITING => queue.waiting += value,
            DROPPED | OVER_LIMIT | OVER_MEMORY => queue.lost += value,
            SENT => queue.sent += value,
            _ => {}
        }
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?).into())
}

fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    Ok(socket)
}

/// Returns a socket to nl80211, and the number of its family.
fn wireless() -> io::Result<(Socket, u16)> {
    let socket = open(GENERIC)?;
    let family = family(&socket, b"nl80211\0")?;
    Ok((socket, family))
}

// linux/rtnetlink.h, linux/if_link.h: `struct ifinfomsg`, `struct tcmsg`
const GET_LINK: u16 = 18;
const GET_DISCIPLINE: u16 = 38;
const LINK: usize = 16;
const COUNTERS: u16 = 23;
const DISCIPLINE: usize = 20;
const ROOT: u32 = 0xffff_ffff;
const STATISTICS: u16 = 7;
// linux/gen_stats.h
const BASIC: u16 = 1;
const QUEUED: u16 = 3;
// linux/nl80211.h
const GET_STATION: u8 = 17;
const INTERFACE: u16 = 3;
const STATION: u16 = 21;
const CLASSES: u16 = 31;
const CLASS_QUEUE: u16 = 6;
const WAITING: u16 = 1;
const DROPPED: u16 = 4;
const OVER_LIMIT: u16 = 6;
const OVER_MEMORY: u16 = 7;
const SENT: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn what_waits_is_dropped_and_passes_is_counted() {
        let Ok(namespace) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let run = |program: &str, arguments: &str| {
            let mut command = namespace.command(program);
            let done = command.args(arguments.split(' ')).status();
            assert!(done.unwrap().success(), "{program} {arguments}");
        };
        run("ip", "link add near type veth peer name far");
        // Frames that IPv6 sends by itself would occupy the queue instead of the counted ones.
        run("ip", "link set near addrgenmode none");
        run("ip", "link set far addrgenmode none");
        run("ip", "addr add 192.0.2.1/24 dev near");
        run("ip", "link set near up");
        run("ip", "link set far up");
        run("ip", "neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev near");
        let index = |name: &str| {
            let name = std::ffi::CString::new(name).unwrap();
            namespace
                .run(|| {
                    // SAFETY: a name that ends with a zero, which outlives the call.
                    Ok(unsafe { libc::if_nametoindex(name.as_ptr()) })
                })
                .unwrap()
        };
        let (near, far) = (index("near"), index("far"));
        let queues = namespace.run(Queues::open).unwrap();
        assert_eq!(queues.of(near).unwrap().waiting, 0, "without a discipline");
        assert!(queues.of(9_999).is_err() && queues.received(9_999).is_err());
        // About one frame is sent every 4 s, and four are queued.
        run(
            "tc",
            "qdisc add dev near root tbf rate 2kbit burst 1100 limit 4500",
        );
        let before = (queues.of(near).unwrap(), queues.received(far).unwrap());
        let socket = namespace
            .run(|| std::net::UdpSocket::bind("192.0.2.1:0"))
            .unwrap();
        for _ in 0..10 {
            socket.send_to(&[0; 1_000], "192.0.2.2:9").unwrap();
        }
        let queue = queues.of(near).unwrap();
        assert!((2_000..=4_500).contains(&queue.waiting), "{queue:?}");
        assert!(queue.lost >= before.0.lost + 4, "{queue:?}");
        assert!(queue.sent >= before.0.sent + 1_000, "{queue:?}");
        assert!(queues.received(far).unwrap() >= before.1 + 1_000);
    }

    #[test]
    fn the_queues_of_a_station_are_added_up() {
        let class = |tid: u16, values: &[(u16, u32)]| {
            let values: Vec<u8> = values
                .iter()
                .flat_map(|(kind, value)| attribute(*kind, &value.to_ne_bytes()))
                .collect();
            attribute(
                tid,
                &[attribute(1, &[0; 8]), attribute(CLASS_QUEUE, &values)].concat(),
            )
        };
        let classes = [
            class(1, &[(WAITING, 3_000), (2, 2), (DROPPED, 1), (SENT, 500)]),
            class(2, &[(WAITING, 1_500), (OVER_LIMIT, 2)]),
        ];
        let station = attribute(STATION, &attribute(CLASSES, &classes.concat()));
        let body = [&[0; 4][..], &attribute(INTERFACE, &[0; 4]), &station].concat();
        let mut queue = Queue::default();
        add_station(&body, &mut queue);
        let expected = Queue {
            waiting: 4_500,
            sent: 500,
            lost: 3,
        };
        assert_eq!(queue, expected);
        for cut in 0..body.len() {
            add_station(&body[..cut], &mut queue);
        }
    }
}
