//! Names behind addresses: decides which network's resolver is asked for a name, and to which rule
//! or network flows to the answered addresses belong.
//!
//! It starts empty. It stores every observed answer: name, addresses, network of the resolver,
//! expiry. A flow begins with an address instead of a name, so the address of a name that a rule
//! matches is added to the rule's [`Set`]. A private address is added to the set of the network
//! whose resolver returned it, because the address is valid only there. Entries expire; when the
//! memory is full, the entries that expire soonest are removed.
//!
//! ```text
//!   question --> order: chosen network | rule | domain of a network | default
//!   answer   --> remembered --> event for its set, if the set changes
//! ```
//!
//! An answer of a resolver is an unverified claim: the answer to a name of a rule can add any
//! address to the set of that rule, and to no other. If a set lets flows bypass the tunnel, a
//! network could choose the traffic that it can read; therefore [`Names::trusting`] accepts
//! addresses from one network only.
//!
//! Source: RFC 1035 section 3.2.1 (time to live), RFC 8767 section 4 (its maximum).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;

use hawser_units::{Duration, Instant, NetworkId};

/// Names that a rule matches: one name, or with `*.` in front all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    name: String,
    is_below: bool,
}

impl Pattern {
    /// Parses `example.org` or `*.example.org`; `None` if it is not an ASCII host name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("*.");
        let name = normal(rest.unwrap_or(text))?;
        Some(Self {
            name,
            is_below: rest.is_some(),
        })
    }

    /// Returns whether the pattern matches this name, written as [`normal`] does.
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

/// Returns the name in lower case without the final dot; `None` if it is not a valid name.
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

/// Set of addresses whose flows take the same route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// Set of the rule with this index.
    Rule(usize),
    /// Private addresses in answers of this network's resolver.
    Network(NetworkId),
}

/// Addition of an address to a set for a limited time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Set that changes.
    pub set: Set,
    /// Address to add.
    pub address: IpAddr,
    /// Lifetime of the entry from now on.
    pub lasts: Duration,
}

/// Answer that contained an address of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Network whose resolver answered.
    pub network: NetworkId,
    /// Expiry of the answer.
    pub until: Instant,
    /// Expiry that was last reported for the set.
    told: Instant,
}

/// Reason for the choice of a resolver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The program chose the network.
    Chosen,
    /// Rule for the name.
    Rule(usize),
    /// The network claims the name's domain.
    Domain,
    /// Default, as no rule or domain applies.
    Default,
}

/// Inputs of the choice of resolvers, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Present networks of each rule, and whether the rule excludes others.
    pub rules: Vec<(Vec<NetworkId>, bool)>,
    /// Domains that networks claim as their own.
    pub domains: Vec<(NetworkId, Pattern)>,
    /// Networks to ask if no rule or domain applies, the best first.
    pub default: Vec<NetworkId>,
}

/// Known names and their addresses.
///
/// Cost: O(answers) an answer, O(room) when the memory is full. Memory is bounded by `room` entries
/// of at most about 350 bytes.
#[derive(Debug)]
pub struct Names {
    rules: Vec<Vec<Pattern>>,
    room: usize,
    /// Network whose answers may extend sets; `None`: all networks.
    trusted: Option<NetworkId>,
    heard: BTreeMap<(IpAddr, String), Heard>,
    events: VecDeque<Learned>,
}

impl Names {
    /// Creates an empty machine. `rules`: the patterns of each rule, empty for rules without names.
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

    /// Lets only answers of `network` extend sets; answers of other networks are only stored.
    #[must_use]
    pub fn trusting(mut self, network: NetworkId) -> Self {
        self.trusted = Some(network);
        self
    }

    /// Replaces the rules. Stored answers count for the new rules once [`elements`](Self::elements)
    /// is read again.
    pub fn handle_rules(&mut self, rules: Vec<Vec<Pattern>>) {
        self.rules = rules;
        self.events.clear();
    }

    /// Returns the first rule that matches the name.
    #[must_use]
    pub fn rule_of(&self, name: &str) -> Option<usize> {
        self.rules
            .iter()
            .position(|patterns| patterns.iter().any(|pattern| pattern.matches(name)))
    }

    /// Returns the networks to ask for a name, in order, and the reason. `chosen`: the network of
    /// the program that asks.
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

    /// Handles an answer of a network's resolver: addresses of a name with their lifetimes.
    pub fn handle_answer(
        &mut self,
        name: &str,
        network: NetworkId,
        addresses: &[(IpAddr, Duration)],
        now: Instant,
    ) {
        let rule = self.rule_of(name);
        for (address, lasts) in addresses.iter().take(MAX_OF_ANSWER) {
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

    /// Returns the next change of a set.
    pub fn poll_event(&mut self) -> Option<Learned> {
        self.events.pop_front()
    }

    /// Returns the present contents of all sets, and counts them as reported.
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

    /// Returns the most recent name of an address.
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

    /// Returns all known answers: name, address, and source.
    pub fn all(&self, now: Instant) -> impl Iterator<Item = (&str, IpAddr, &Heard)> {
        self.heard
            .iter()
            .filter(move |(_, heard)| heard.until > now)
            .map(|((address, name), heard)| (name.as_str(), *address, heard))
    }

    /// Removes expired answers.
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

/// Returns whether an address has a different meaning in each network.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            v4.is_private() || (first == 100 && second & 0xc0 == 64)
        }
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

/// Minimum lifetime of an answer: programs use an address for some time after its expiry. Source:
/// our choice; a shorter one lets a flow that begins late match no rule, a longer one applies a
/// rule to an address that has another name now.
const SHORTEST: Duration = Duration::from_secs(60);
/// Maximum lifetime of an answer; RFC 8767 permits up to a week, which has no benefit here.
const LONGEST: Duration = Duration::from_secs(86_400);
/// Maximum number of addresses in an answer; legitimate answers have fewer. Source: our choice, a
/// bound on memory; a message of 4,096 bytes has some 250 at most, and programs use the first ones.
const MAX_OF_ANSWER: usize = 64;

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
        assert_eq!(events(&mut names), [], "reported a moment ago");
        names.handle_answer("www.example.org", WIFI, &found, at(200));
        assert_eq!(events(&mut names), [learned], "reported long ago");
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

    // With any number of answers, the bounds of memory and lifetimes hold, and the reported
    // elements of every set are its contents.
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
