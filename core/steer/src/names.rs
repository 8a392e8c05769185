//! Names behind addresses: which network is asked for a name, and where flows to what it answers
//! belong.
//!
//! It starts without any. Every answer that passes is remembered: name, addresses, who said so,
//! until when. A flow begins with an address and not with a name, so an address that was found for
//! a name of a rule joins the rule's [`Set`]; a private address joins that of the network which
//! named it, because it means something only there. Entries end with their time; where room is
//! short, those end first that would soonest.
//!
//! ```text
//!   question --> order: chosen network | rule | domain of a network | default
//!   answer   --> remembered --> event for its set, when that has to hear of it
//! ```
//!
//! What an answer says is somebody's claim: the answer to a name of a rule can put any address into
//! the set of that rule, and of no other. Where a set lets flows leave a tunnel, a network could so
//! choose what it sees in clear; [`Names::trusting`] therefore takes addresses from one network
//! alone.
//!
//! Source: RFC 1035 section 3.2.1 (time to live), RFC 8767 section 4 (how long it may be at most).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;

use hawser_units::{Duration, Instant, NetworkId};

/// Names that a rule is for: one name, or with `*.` before it all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    name: String,
    is_below: bool,
}

impl Pattern {
    /// Reads `example.org` or `*.example.org`; `None` for what is no name in ASCII.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("*.");
        let name = normal(rest.unwrap_or(text))?;
        Some(Self {
            name,
            is_below: rest.is_some(),
        })
    }

    /// Whether it means this name, written as [`normal`] does.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        if self.is_below {
            let before = name.strip_suffix(self.name.as_str());
            before.is_some_and(|before| before.ends_with('.') && before.len() > 1)
        } else {
            name == self.name
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_below { "*." } else { "" };
        write!(f, "{star}{}", self.name)
    }
}

/// A name in small letters without the dot at its end; `None` for what is none.
#[must_use]
pub fn normal(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    (text.len() <= 253 && text.split('.').all(is_label)).then(|| text.to_ascii_lowercase())
}

/// Addresses whose flows go the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// Of the rule with this index.
    Rule(usize),
    /// Private addresses that this network named.
    Network(NetworkId),
}

/// An address that belongs to a set for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Which.
    pub set: Set,
    /// What.
    pub address: IpAddr,
    /// From now on.
    pub lasts: Duration,
}

/// What is known of an address under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Who said so.
    pub network: NetworkId,
    /// Until when it holds.
    pub until: Instant,
    /// Until when its set was told that it is there.
    told: Instant,
}

/// Why a name is asked where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The program chose the network.
    Chosen,
    /// This rule is for the name.
    Rule(usize),
    /// The network says that the name's domain is its own.
    Domain,
    /// Nothing speaks for one of them.
    Default,
}

/// What decides whom to ask, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// For each rule: its networks now, and whether no others may do.
    pub rules: Vec<(Vec<NetworkId>, bool)>,
    /// What networks say of domains.
    pub domains: Vec<(NetworkId, Pattern)>,
    /// Who is asked otherwise, the best first.
    pub default: Vec<NetworkId>,
}

/// The names.
///
/// Cost: O(answers) an answer, O(room) when there is no more room. Memory is bounded by `room`
/// entries of at most some 350 bytes.
#[derive(Debug)]
pub struct Names {
    rules: Vec<Vec<Pattern>>,
    room: usize,
    /// The network whose answers join sets; `None`: the answers of all do.
    trusted: Option<NetworkId>,
    heard: BTreeMap<(IpAddr, String), Heard>,
    events: VecDeque<Learned>,
}

impl Names {
    /// Knows no name yet. `rules`: the patterns of each rule, none for those that are not for
    /// names.
    #[must_use]
    pub fn new(rules: Vec<Vec<Pattern>>, room: usize) -> Self {
        Self {
            rules,
            room,
            trusted: None,
            heard: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }

    /// Lets only answers of that network join sets; what others answer is remembered.
    #[must_use]
    pub fn trusting(mut self, network: NetworkId) -> Self {
        self.trusted = Some(network);
        self
    }

    /// Other rules from now on; what was heard counts for them too, once
    /// [`elements`](Self::elements) is read again.
    pub fn handle_rules(&mut self, rules: Vec<Vec<Pattern>>) {
        self.rules = rules;
        self.events.clear();
    }

    /// The first rule that is for the name.
    #[must_use]
    pub fn rule_of(&self, name: &str) -> Option<usize> {
        self.rules
            .iter()
            .position(|patterns| patterns.iter().any(|pattern| pattern.matches(name)))
    }

    /// Whom to ask for a name, in order, and why. `chosen`: the network of the program that asks.
    #[must_use]
    pub fn order(
        &self,
        name: &str,
        chosen: Option<NetworkId>,
        choices: &Choices,
    ) -> (Vec<NetworkId>, Reason) {
        if let Some(network) = chosen {
            return (vec![network], Reason::Chosen);
        }
        if let Some(rule) = self.rule_of(name)
            && let Some((networks, is_strict)) = choices.rules.get(rule)
            && (*is_strict || !networks.is_empty())
        {
            return (networks.clone(), Reason::Rule(rule));
        }
        let own = choices
            .domains
            .iter()
            .filter(|(_, pattern)| pattern.matches(name));
        let own: Vec<_> = own.map(|(network, _)| *network).collect();
        if own.is_empty() {
            (choices.default.clone(), Reason::Default)
        } else {
            (own, Reason::Domain)
        }
    }

    /// A network has said that a name has these addresses, each for so long.
    pub fn handle_answer(
        &mut self,
        name: &str,
        network: NetworkId,
        addresses: &[(IpAddr, Duration)],
        now: Instant,
    ) {
        let rule = self.rule_of(name);
        for (address, lasts) in addresses.iter().take(MOST_OF_ANSWER) {
            let until = now + (*lasts).clamp(SHORTEST, LONGEST);
            let key = (*address, name.to_owned());
            if !self.heard.contains_key(&key) && self.heard.len() >= self.room {
                self.make_room(now);
            }
            let told = self.heard.get(&key).map_or(now, |before| before.told);
            let set = set_of(rule, (network, self.trusted), *address);
            let is_news = told.since(now) < until.since(now) / 2;
            if let Some(set) = set
                && is_news
            {
                self.events.push_back(Learned {
                    set,
                    address: *address,
                    lasts: until.since(now),
                });
            }
            let told = if is_news && set.is_some() { until } else { told };
            self.heard.insert(key, Heard { network, until, told });
        }
    }

    fn make_room(&mut self, now: Instant) {
        self.handle_timeout(now);
        if self.heard.len() >= self.room
            && let Some(key) = self
                .heard
                .iter()
                .min_by_key(|(_, heard)| heard.until)
                .map(|(key, _)| key.clone())
        {
            self.heard.remove(&key);
        }
    }

    /// What a set has to hear, once.
    pub fn poll_event(&mut self) -> Option<Learned> {
        self.events.pop_front()
    }

    /// All that sets contain now; they count as told.
    pub fn elements(&mut self, now: Instant) -> Vec<Learned> {
        let mut latest = BTreeMap::new();
        let rules = &self.rules;
        for ((address, name), heard) in &mut self.heard {
            if heard.until <= now {
                continue;
            }
            let rule = rules
                .iter()
                .position(|patterns| patterns.iter().any(|pattern| pattern.matches(name)));
            if let Some(set) = set_of(rule, (heard.network, self.trusted), *address) {
                heard.told = heard.until;
                let until = latest.entry((set, *address)).or_insert(heard.until);
                *until = heard.until.max(*until);
            }
        }
        let learned = |((set, address), until): ((Set, IpAddr), Instant)| Learned {
            set,
            address,
            lasts: until.since(now),
        };
        latest.into_iter().map(learned).collect()
    }

    /// A name of an address: the one that was heard last.
    #[must_use]
    pub fn name_of(&self, address: IpAddr, now: Instant) -> Option<&str> {
        let names = self
            .heard
            .range((address, String::new())..)
            .take_while(|((other, _), _)| *other == address);
        let alive = names.filter(|(_, heard)| heard.until > now);
        alive
            .max_by_key(|(_, heard)| heard.until)
            .map(|((_, name), _)| name.as_str())
    }

    /// All that is known now: name, address, and who said so.
    pub fn all(&self, now: Instant) -> impl Iterator<Item = (&str, IpAddr, &Heard)> {
        self.heard
            .iter()
            .filter(move |(_, heard)| heard.until > now)
            .map(|((address, name), heard)| (name.as_str(), *address, heard))
    }

    /// Forgets what does not hold any more.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.heard.retain(|_, heard| heard.until > now);
    }
}

fn set_of(
    rule: Option<usize>,
    (network, trusted): (NetworkId, Option<NetworkId>),
    address: IpAddr,
) -> Option<Set> {
    if trusted.is_some_and(|trusted| trusted != network) {
        return None;
    }
    match rule {
        Some(rule) => Some(Set::Rule(rule)),
        None => is_private(address).then_some(Set::Network(network)),
    }
}

/// Whether an address means another host in every network.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            v4.is_private() || (first == 100 && second & 0xc0 == 64)
        }
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

/// Programs use an answer for some time, whatever it says of its own.
const SHORTEST: Duration = Duration::from_secs(60);
/// More than a day is a week at most (RFC 8767), and of no use here.
const LONGEST: Duration = Duration::from_secs(86_400);
/// No honest answer has more addresses.
const MOST_OF_ANSWER: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WIFI: NetworkId = NetworkId(2);
    const LTE: NetworkId = NetworkId(3);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn names() -> Names {
        let patterns = ["*.example.org", "example.org"].map(|text| Pattern::parse(text).unwrap());
        Names::new(vec![vec![], patterns.into()], 4)
    }

    fn events(names: &mut Names) -> Vec<Learned> {
        std::iter::from_fn(|| names.poll_event()).collect()
    }

    #[test]
    fn patterns_mean_whole_labels() {
        let below = Pattern::parse("*.Example.org").unwrap();
        assert!(below.matches("www.example.org") && below.matches("a.b.example.org"));
        assert!(!below.matches("example.org") && !below.matches("notexample.org"));
        assert!(!below.matches(".example.org"));
        let one = Pattern::parse("example.org.").unwrap();
        assert!(one.matches("example.org") && !one.matches("www.example.org"));
        assert_eq!(
            (below.to_string(), one.to_string()),
            ("*.example.org".into(), "example.org".into())
        );
        for wrong in [
            "",
            ".",
            "*",
            "*.",
            "a..b",
            "*.*.org",
            "exa mple.org",
            "m\u{fc}nchen.de",
            &"x".repeat(64),
        ] {
            assert_eq!(Pattern::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn addresses_of_a_rule_join_its_set_until_their_time_is_over() {
        let mut names = names();
        let found = [(address("198.51.100.7"), secs(300))];
        names.handle_answer("www.example.org", WIFI, &found, at(0));
        let learned = Learned {
            set: Set::Rule(1),
            address: address("198.51.100.7"),
            lasts: secs(300),
        };
        assert_eq!(events(&mut names), [learned]);
        names.handle_answer("www.example.org", WIFI, &found, at(10));
        assert_eq!(events(&mut names), [], "told a moment ago");
        names.handle_answer("www.example.org", WIFI, &found, at(200));
        assert_eq!(events(&mut names), [learned], "told long ago");
        assert_eq!(names.elements(at(400)).len(), 1);
        assert_eq!(
            names.name_of(address("198.51.100.7"), at(400)),
            Some("www.example.org")
        );
        assert_eq!(names.elements(at(500)), []);
        assert_eq!(names.name_of(address("198.51.100.7"), at(500)), None);
    }

    #[test]
    fn where_one_network_is_trusted_no_other_chooses_what_joins_a_set() {
        const HUB: NetworkId = NetworkId(251);
        let mut names = names().trusting(HUB);
        let found = [
            (address("198.51.100.7"), secs(300)),
            (address("10.1.2.3"), secs(300)),
        ];
        names.handle_answer("www.example.org", WIFI, &found, at(0));
        names.handle_answer("printer.lan", WIFI, &found, at(0));
        assert_eq!(events(&mut names), []);
        assert_eq!(names.elements(at(1)), []);
        assert!(names.name_of(address("198.51.100.7"), at(1)).is_some());
        names.handle_answer("www.example.org", HUB, &found[..1], at(1));
        assert_eq!(events(&mut names).len(), 1);
        assert_eq!(names.elements(at(2)).len(), 1);
    }

    #[test]
    fn a_private_address_belongs_to_the_network_that_named_it() {
        let mut names = names();
        let found = [(address("10.1.2.3"), secs(5)), (address("198.51.100.7"), secs(5))];
        names.handle_answer("printer.lan", LTE, &found, at(0));
        let learned = Learned {
            set: Set::Network(LTE),
            address: address("10.1.2.3"),
            lasts: SHORTEST,
        };
        assert_eq!(events(&mut names), [learned]);
    }

    #[test]
    fn a_choice_comes_before_a_rule_and_that_before_a_domain() {
        let names = names();
        let mut choices = Choices {
            rules: vec![(vec![], false), (vec![LTE], false)],
            domains: vec![
                (WIFI, Pattern::parse("*.example.org").unwrap()),
                (WIFI, Pattern::parse("*.lan").unwrap()),
            ],
            default: vec![LTE, WIFI],
        };
        let order = |name, chosen, choices: &Choices| names.order(name, chosen, choices);
        assert_eq!(
            order("www.example.org", Some(WIFI), &choices),
            (vec![WIFI], Reason::Chosen)
        );
        assert_eq!(
            order("www.example.org", None, &choices),
            (vec![LTE], Reason::Rule(1))
        );
        assert_eq!(order("printer.lan", None, &choices), (vec![WIFI], Reason::Domain));
        assert_eq!(
            order("example.net", None, &choices),
            (vec![LTE, WIFI], Reason::Default)
        );
        choices.rules[1] = (vec![], false);
        assert_eq!(
            order("www.example.org", None, &choices),
            (vec![WIFI], Reason::Domain)
        );
        choices.rules[1] = (vec![], true);
        assert_eq!(
            order("www.example.org", None, &choices),
            (vec![], Reason::Rule(1))
        );
    }

    // However many answers come, room and times are kept, and every set is told of what it
    // contains.
    proptest! {
        #[test]
        fn room_and_times_are_kept(answers in prop::collection::vec((0_u8..3, 0_u8..12, 0_u64..200_000, 0_u64..100), 1..80)) {
            let mut names = names();
            let mut sets: BTreeMap<(Set, IpAddr), Instant> = BTreeMap::new();
            let mut now = at(0);
            for (name, last, ttl, passed) in answers {
                now += secs(passed);
                let name = ["www.example.org", "printer.lan", "example.net"][usize::from(name)];
                let found = [(IpAddr::from([10, 0, 0, last]), secs(ttl))];
                names.handle_answer(name, WIFI, &found, now);
                while let Some(learned) = names.poll_event() {
                    prop_assert!((SHORTEST..=LONGEST).contains(&learned.lasts));
                    let until = sets.entry((learned.set, learned.address)).or_insert(now);
                    *until = (now + learned.lasts).max(*until);
                }
                prop_assert!(names.all(now).count() <= 4);
                let set = if name == "www.example.org" { Set::Rule(1) } else { Set::Network(WIFI) };
                let least = secs(ttl).clamp(SHORTEST, LONGEST) / 2;
                prop_assert!(sets[&(set, found[0].0)] >= now + least, "the answer counts for half of its time at least");
            }
        }
    }
}
