//! Names of a hub's clients, such as `alice.hawser`: decides about the answer to a query, without
//! I/O.
//!
//! A client may resolve its own name and the hub's (`hub.hawser`), and names of other clients only
//! if `[reach]` lets clients reach each other. Queries below `hawser` are never forwarded, because
//! no other resolver knows these names.

use std::net::IpAddr;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{Name, RData, Record, RecordType};

/// Names and addresses of a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Zone {
    /// Inner addresses of the hub.
    pub(super) hub: Vec<IpAddr>,
    /// Clients by name, with their inner addresses.
    pub(super) clients: Vec<(String, Vec<IpAddr>)>,
    /// Set if clients reach each other.
    pub(super) is_open: bool,
}

/// Treatment of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Answer of the hub.
    Own(Vec<u8>),
    /// The query is forwarded to another resolver.
    PassOn,
}

impl Zone {
    /// Decides about a query from the machine with this inner address; `None` if it is not a valid
    /// query.
    pub(super) fn reply(&self, query: &[u8], asker: IpAddr) -> Option<Reply> {
        let asked = Message::from_vec(query).ok()?;
        if asked.metadata.message_type != MessageType::Query {
            return None;
        }
        let code = match (asked.metadata.op_code, asked.queries.as_slice()) {
            (OpCode::Query, [question]) => match client_of(&question.name) {
                None => return Some(Reply::PassOn),
                Some(label) => {
                    let (name, kind) = (question.name.clone(), question.query_type);
                    return own(asked, self.addresses(&label, asker), &name, kind);
                }
            },
            (OpCode::Query, _) => ResponseCode::FormErr,
            _ => ResponseCode::NotImp,
        };
        own_code(asked, code)
    }

    /// Returns the addresses of a name that the asking client may know.
    fn addresses(&self, label: &str, asker: IpAddr) -> Option<&[IpAddr]> {
        if label == HUB {
            return Some(&self.hub);
        }
        let mut clients = self.clients.iter();
        let (_, addresses) = clients.find(|(name, _)| name == label)?;
        (self.is_open || addresses.contains(&asker)).then_some(addresses)
    }
}

/// Returns the failure answer for a resolver that could not be queried.
pub(super) fn failure(query: &[u8]) -> Option<Vec<u8>> {
    match own_code(Message::from_vec(query).ok()?, ResponseCode::ServFail)? {
        Reply::Own(bytes) => Some(bytes),
        Reply::PassOn => None,
    }
}

/// Returns the label before `.hawser`; `None` for all other names.
fn client_of(name: &Name) -> Option<String> {
    let text = name.to_ascii().to_ascii_lowercase();
    let text = text.trim_end_matches('.');
    match text.strip_suffix(DOMAIN)? {
        "" => Some(String::new()),
        label => label.strip_suffix('.').map(str::to_owned),
    }
}

fn own(asked: Message, found: Option<&[IpAddr]>, name: &Name, kind: RecordType) -> Option<Reply> {
    let Some(addresses) = found else {
        return own_code(asked, ResponseCode::NXDomain);
    };
    let mut answer = reply_to(asked, ResponseCode::NoError);
    for address in addresses {
        let data = match (*address, kind) {
            (IpAddr::V4(v4), RecordType::A) => RData::A(A(v4)),
            (IpAddr::V6(v6), RecordType::AAAA) => RData::AAAA(AAAA(v6)),
            (IpAddr::V4(_) | IpAddr::V6(_), _) => continue,
        };
        answer.add_answer(Record::from_rdata(name.clone(), TTL, data));
    }
    answer.to_vec().ok().map(Reply::Own)
}

fn own_code(asked: Message, code: ResponseCode) -> Option<Reply> {
    reply_to(asked, code).to_vec().ok().map(Reply::Own)
}

fn reply_to(asked: Message, code: ResponseCode) -> Message {
    let mut answer = Message::new(asked.metadata.id, MessageType::Response, asked.metadata.op_code);
    answer.metadata.recursion_desired = asked.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.metadata.authoritative = true;
    answer.metadata.response_code = code;
    answer.add_queries(asked.queries);
    answer
}

/// Domain of all names. It is not public, like `home.arpa` for homes (RFC 8375).
const DOMAIN: &str = "hawser";
/// Name of the hub.
const HUB: &str = "hub";
/// Time to live of an answer, limited because a revoked invitation frees its address. Units: s.
/// Source: our choice; a longer one lets programs use an address that another client has now, a
/// shorter one asks more often.
const TTL: u32 = 60;

#[cfg(test)]
mod tests {
    use hickory_proto::op::Query;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn zone(is_open: bool) -> Zone {
        Zone {
            hub: vec![address("100.96.0.1")],
            clients: vec![
                (
                    "alice".to_owned(),
                    vec![address("100.96.0.2"), address("fd00:1::2")],
                ),
                ("bob".to_owned(), vec![address("100.96.0.3")]),
            ],
            is_open,
        }
    }

    fn question(name: &str, kind: RecordType) -> Vec<u8> {
        let mut query = Message::new(7, MessageType::Query, OpCode::Query);
        query.add_query(Query::query(Name::from_ascii(name).expect("a name"), kind));
        query.to_vec().expect("bytes")
    }

    /// Returns code and addresses of alice's answer; `None` if the query is forwarded.
    fn answer(zone: &Zone, name: &str, kind: RecordType) -> Option<(ResponseCode, Vec<IpAddr>)> {
        let reply = zone.reply(&question(name, kind), address("100.96.0.2"));
        let Reply::Own(bytes) = reply.expect("it is a question") else {
            return None;
        };
        let message = Message::from_vec(&bytes).expect("an answer");
        assert_eq!((message.metadata.id, message.queries.len()), (7, 1));
        let addresses = message.answers.iter().filter_map(|record| {
            if let RData::A(A(v4)) = &record.data {
                return Some(IpAddr::from(*v4));
            }
            let RData::AAAA(AAAA(v6)) = &record.data else {
                return None;
            };
            Some(IpAddr::from(*v6))
        });
        Some((message.metadata.response_code, addresses.collect()))
    }

    #[test]
    fn a_client_hears_of_itself_and_of_the_hub() {
        let closed = zone(false);
        let found = |text: &str| Some((ResponseCode::NoError, vec![address(text)]));
        assert_eq!(
            answer(&closed, "alice.hawser.", RecordType::A),
            found("100.96.0.2")
        );
        assert_eq!(
            answer(&closed, "ALICE.Hawser.", RecordType::AAAA),
            found("fd00:1::2")
        );
        assert_eq!(answer(&closed, "hub.hawser.", RecordType::A), found("100.96.0.1"));
        let nothing = Some((ResponseCode::NoError, Vec::new()));
        assert_eq!(answer(&closed, "alice.hawser.", RecordType::MX), nothing);
        assert_eq!(answer(&closed, "hub.hawser.", RecordType::AAAA), nothing);
    }

    #[test]
    fn others_are_named_only_where_clients_reach_each_other() {
        let unknown = Some((ResponseCode::NXDomain, Vec::new()));
        assert_eq!(answer(&zone(false), "bob.hawser.", RecordType::A), unknown);
        assert_eq!(answer(&zone(true), "carol.hawser.", RecordType::A), unknown);
        let found = Some((ResponseCode::NoError, vec![address("100.96.0.3")]));
        assert_eq!(answer(&zone(true), "bob.hawser.", RecordType::A), found);
    }

    #[test]
    fn what_is_below_the_domain_is_never_passed_on() {
        for name in ["hawser.", "x.bob.hawser.", "_tcp.bob.hawser."] {
            let found = answer(&zone(true), name, RecordType::A);
            assert_eq!(found, Some((ResponseCode::NXDomain, Vec::new())), "{name}");
        }
        for name in ["example.org.", "nothawser.", "hawser.example.", "."] {
            assert_eq!(answer(&zone(true), name, RecordType::A), None, "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_it(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
            at in 0_usize..100,
            value: u8,
        ) {
            let _ = zone(true).reply(&bytes, address("100.96.0.2"));
            let mut bytes = question("alice.hawser.", RecordType::A);
            let length = bytes.len();
            bytes[at % length] = value;
            let _ = zone(true).reply(&bytes, address("100.96.0.2"));
            let _ = zone(true).reply(&bytes[..at % length], address("100.96.0.2"));
            let _ = failure(&bytes);
        }
    }
}
