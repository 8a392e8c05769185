//! Discovery between two boxes that share links: the joining box sends requests on each link, and
//! the access point answers.
//!
//! ```text
//!            link appears                    answer                     silent for FORGOTTEN
//!   (no link) -----------> asking, every ASK --------> heard, still asked ---------------> asking
//! ```
//!
//! A joining box repeats its requests on every link, so that it finds an access point that returns
//! with another address. Discovery fails when no answer arrives, which [`Discovery::heard`] shows.
//! Bounds: at most [`MAX_HEARD`] neighbours are stored, and a link gets at most one answer per
//! [`ANSWER`].
//!
//! Source: the exchange is that of RFC 4861 section 6 (solicitation and advertisement).

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use hawser_units::{Duration, Instant};
use hawser_wire::link_hello::{Kind, LinkHello};

/// Role of a box on its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Answers, and accepts sessions at this UDP port.
    AccessPoint(u16),
    /// Asks.
    Joining,
}

/// A neighbour that has been heard on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The index of the link's interface.
    pub link: u32,
    /// Link-local address of the neighbour.
    pub address: Ipv6Addr,
    /// UDP port at which the neighbour accepts sessions; 0 if it accepts none.
    pub port: u16,
    /// Hash of the key that the neighbour claims to have; unauthenticated.
    pub key: [u8; 32],
}

/// A hello to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Interface index of the link.
    pub link: u32,
    /// Destination; `None` sends to all neighbours on the link.
    pub to: Option<Ipv6Addr>,
    /// Message to send.
    pub hello: LinkHello,
}

#[derive(Debug)]
struct Link {
    /// Address to ask; `None` for all.
    whom: Option<Ipv6Addr>,
    ask_at: Instant,
    answer_at: Instant,
    answer_to: Option<Ipv6Addr>,
}

/// Discovers neighbours and announces this box to them.
///
/// Cost: O(log n) a hello in the number of links and neighbours.
#[derive(Debug)]
pub struct Discovery {
    side: Side,
    key: [u8; 32],
    links: BTreeMap<u32, Link>,
    heard: BTreeMap<(u32, [u8; 32]), (Heard, Instant)>,
}

impl Discovery {
    /// Creates a state without links. `key`: the hash of its own key.
    #[must_use]
    pub fn new(side: Side, key: [u8; 32]) -> Self {
        Self {
            side,
            key,
            links: BTreeMap::new(),
            heard: BTreeMap::new(),
        }
    }

    /// Handles a link that can be used now. `whom`: the one neighbour to ask, all where there is
    /// none.
    pub fn handle_link_up(&mut self, link: u32, whom: Option<Ipv6Addr>, now: Instant) {
        self.links.entry(link).or_insert(Link {
            whom,
            ask_at: now,
            answer_at: now,
            answer_to: None,
        });
    }

    /// Handles the removal of a link.
    pub fn handle_link_down(&mut self, link: u32) {
        self.links.remove(&link);
        self.heard.retain(|(at, _), _| *at != link);
    }

    /// Processes a hello.
    pub fn handle_hello(&mut self, link: u32, from: Ipv6Addr, hello: &LinkHello, now: Instant) {
        let Some(entry) = self.links.get_mut(&link) else {
            return;
        };
        // Our own message, received over a second link on the same wire, or a copy of it.
        if hello.key == self.key || !is_link_local(from) {
            return;
        }
        let is_meant = match (self.side, hello.kind) {
            (Side::AccessPoint(_), Kind::Ask) => {
                entry.answer_to = Some(from);
                true
            }
            (Side::Joining, Kind::Answer) => hello.port != 0 && entry.whom.is_none_or(|whom| whom == from),
            (Side::AccessPoint(_), Kind::Answer) | (Side::Joining, Kind::Ask) => false,
        };
        let id = (link, hello.key);
        if !is_meant || (self.heard.len() >= MAX_HEARD && !self.heard.contains_key(&id)) {
            return;
        }
        let heard = Heard {
            link,
            address: from,
            port: hello.port,
            key: hello.key,
        };
        self.heard.insert(id, (heard, now));
    }

    /// The next hello to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let key = self.key;
        for (link, entry) in &mut self.links {
            match self.side {
                Side::Joining if entry.ask_at <= now => {
                    entry.ask_at = now + ASK;
                    let hello = LinkHello {
                        kind: Kind::Ask,
                        port: 0,
                        key,
                    };
                    return Some(Transmit {
                        link: *link,
                        to: entry.whom,
                        hello,
                    });
                }
                Side::AccessPoint(port) if entry.answer_to.is_some() && entry.answer_at <= now => {
                    entry.answer_at = now + ANSWER;
                    let hello = LinkHello {
                        kind: Kind::Answer,
                        port,
                        key,
                    };
                    return Some(Transmit {
                        link: *link,
                        to: entry.answer_to.take(),
                        hello,
                    });
                }
                Side::Joining | Side::AccessPoint(_) => {}
            }
        }
        None
    }

    /// Removes neighbours whose last answer is too old.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.heard.retain(|_, (_, at)| now.since(*at) < FORGOTTEN);
    }

    /// Returns when to call [`Self::handle_timeout`] and [`Self::poll_transmit`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.links.values().filter_map(|link| match self.side {
            Side::Joining => Some(link.ask_at),
            Side::AccessPoint(_) => link.answer_to.map(|_| link.answer_at),
        });
        due.min()
    }

    /// Returns the neighbours that were heard recently, in order of link.
    pub fn heard(&self) -> impl Iterator<Item = &Heard> {
        self.heard.values().map(|(heard, _)| heard)
    }
}

fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

/// Interval between two questions on a link: a returning access point is found within 1 s. Source:
/// our choice; half of it costs twice the packets for half a second.
pub const ASK: Duration = Duration::from_secs(1);
/// Minimum interval between two answers on a link. Source: a bound on traffic, 44 bytes ten times a
/// second.
const ANSWER: Duration = Duration::from_millis(100);
/// Time after which a neighbour that does not ask is forgotten. Source: five intervals of [`ASK`].
const FORGOTTEN: Duration = Duration::from_secs(5);
/// Maximum number of neighbours that are remembered. Source: a bound on memory, since any device on
/// a link can invent neighbours; the number was not measured.
const MAX_HEARD: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn ask(key: u8) -> LinkHello {
        LinkHello {
            kind: Kind::Ask,
            port: 0,
            key: [key; 32],
        }
    }

    #[test]
    fn two_boxes_find_each_other_on_both_links() {
        let mut ap = Discovery::new(Side::AccessPoint(9), [1; 32]);
        let mut joining = Discovery::new(Side::Joining, [2; 32]);
        for link in [3, 4] {
            ap.handle_link_up(link, None, at(0));
            joining.handle_link_up(link, None, at(0));
        }
        while let Some(ask) = joining.poll_transmit(at(0)) {
            assert_eq!(ask.to, None);
            ap.handle_hello(ask.link, NEAR, &ask.hello, at(1));
            let answer = ap.poll_transmit(at(1)).expect("an answer");
            assert_eq!((answer.link, answer.to), (ask.link, Some(NEAR)));
            joining.handle_hello(answer.link, NEAR, &answer.hello, at(2));
        }
        let heard: Vec<_> = joining
            .heard()
            .map(|heard| (heard.link, heard.port, heard.key[0]))
            .collect();
        assert_eq!(heard, [(3, 9, 1), (4, 9, 1)]);
        assert_eq!(ap.heard().count(), 2);
        assert_eq!(joining.poll_timeout(), Some(at(1000)));
        joining.handle_timeout(at(6000));
        assert_eq!(joining.heard().count(), 0);
        ap.handle_link_down(3);
        assert_eq!(ap.heard().count(), 1);
    }

    #[test]
    fn a_flood_of_asks_gets_few_answers_and_little_memory() {
        let mut ap = Discovery::new(Side::AccessPoint(9), [255; 32]);
        ap.handle_link_up(3, None, at(0));
        let mut answers = 0;
        for ms in 0..1000 {
            ap.handle_hello(3, NEAR, &ask((ms % 200) as u8), at(ms));
            answers += std::iter::from_fn(|| ap.poll_transmit(at(ms))).count();
        }
        assert_eq!(answers, 10);
        assert_eq!(ap.heard().count(), MAX_HEARD);
    }

    #[test]
    fn what_comes_from_elsewhere_is_not_heard() {
        let mut ap = Discovery::new(Side::AccessPoint(9), [1; 32]);
        ap.handle_link_up(3, None, at(0));
        ap.handle_hello(4, NEAR, &ask(2), at(0));
        ap.handle_hello(3, Ipv6Addr::LOCALHOST, &ask(2), at(0));
        ap.handle_hello(3, NEAR, &ask(1), at(0));
        assert_eq!((ap.heard().count(), ap.poll_transmit(at(1))), (0, None));
        let mut joining = Discovery::new(Side::Joining, [2; 32]);
        joining.handle_link_up(3, Some(NEAR), at(0));
        let whom = joining.poll_transmit(at(0)).map(|ask| ask.to);
        assert_eq!(whom, Some(Some(NEAR)));
        let answer = LinkHello {
            kind: Kind::Answer,
            port: 9,
            key: [1; 32],
        };
        let other = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 8);
        joining.handle_hello(3, other, &answer, at(1));
        assert_eq!(joining.heard().count(), 0);
    }
}
