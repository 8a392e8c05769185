//! Validates answers of a network's resolver, which are untrusted bytes: only a complete message
//! that answers the question is accepted.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hickory_proto::op::{Message, MessageType, Query, ResponseCode};
use hickory_proto::rr::{Name, RData};

/// Question that was sent.
#[derive(Debug)]
pub struct Question {
    id: u16,
    query: Query,
}

/// Accepted answer.
#[derive(Debug)]
pub struct Answer {
    /// Complete message.
    pub bytes: Vec<u8>,
    /// Response code of the name.
    pub code: ResponseCode,
    /// Addresses of the name, over all its aliases, each with its lifetime in seconds.
    pub addresses: Vec<(IpAddr, u32)>,
}

impl Question {
    /// Returns the first question of a message; `None` if it has none.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        let message = Message::from_vec(message).ok()?;
        let id = message.metadata.id;
        let query = message.queries.into_iter().next()?;
        Some(Self { id, query })
    }

    /// Returns the answer, if the message answers this question.
    #[must_use]
    pub fn read(&self, bytes: &[u8]) -> Option<Answer> {
        let message = Message::from_vec(bytes).ok()?;
        let meta = &message.metadata;
        let is_answer = meta.id == self.id && meta.message_type == MessageType::Response;
        let [answered] = message.queries.as_slice() else {
            return None;
        };
        let is_same = answered.name == self.query.name
            && answered.query_type == self.query.query_type
            && answered.query_class == self.query.query_class;
        (is_answer && is_same).then(|| Answer {
            bytes: bytes.to_vec(),
            code: meta.response_code,
            addresses: addresses(&message, &self.query.name),
        })
    }
}

/// Returns the addresses of the name; other records of an answer are ignored.
fn addresses(message: &Message, name: &Name) -> Vec<(IpAddr, u32)> {
    let mut names = BTreeSet::from([name.to_lowercase()]);
    for _ in 0..MAX_ALIASES {
        let targets = message.answers.iter().filter_map(|record| {
            let RData::CNAME(target) = &record.data else {
                return None;
            };
            names
                .contains(&record.name.to_lowercase())
                .then(|| target.0.to_lowercase())
        });
        let targets: Vec<_> = targets.collect();
        let before = names.len();
        names.extend(targets);
        if names.len() == before {
            break;
        }
    }
    let own = message
        .answers
        .iter()
        .filter(|record| names.contains(&record.name.to_lowercase()));
    let address = |data: &RData| {
        if let RData::A(v4) = data {
            return Some(IpAddr::from(v4.0));
        }
        let RData::AAAA(v6) = data else { return None };
        Some(IpAddr::from(v6.0))
    };
    own.filter_map(|record| Some((address(&record.data)?, record.ttl)))
        .collect()
}

/// Maximum number of aliases in a chain, more than any name has; it also ends loops. Source: our
/// choice; common chains of content networks have three to five, and each more costs a search of
/// the answer.
const MAX_ALIASES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::OpCode;
    use hickory_proto::rr::rdata::{A, CNAME};
    use hickory_proto::rr::{Record, RecordType};
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn question() -> Query {
        Query::query(name("www.example.org."), RecordType::A)
    }

    /// The question that was sent.
    fn asked() -> Question {
        Question {
            id: 7,
            query: question(),
        }
    }

    fn answer(id: u16) -> Message {
        let mut message = Message::new(id, MessageType::Response, OpCode::Query);
        message.add_query(question());
        let cname = RData::CNAME(CNAME(name("cdn.example.net.")));
        let a = |last| RData::A(A([198, 51, 100, last].into()));
        // The alias may come after the record to which it refers.
        message.add_answer(Record::from_rdata(name("cdn.example.net."), 30, a(7)));
        message.add_answer(Record::from_rdata(name("WWW.example.org."), 60, cname));
        message.add_answer(Record::from_rdata(name("bank.example."), 60, a(8)));
        message
    }

    #[test]
    fn an_answer_counts_for_its_question_alone() {
        let bytes = answer(7).to_vec().unwrap();
        let taken = asked().read(&bytes).unwrap();
        assert_eq!(taken.addresses, [("198.51.100.7".parse().unwrap(), 30)]);
        assert!(Question { id: 8, ..asked() }.read(&bytes).is_none(), "another id");
        let other = Query::query(name("example.org."), RecordType::A);
        assert!(
            Question {
                query: other,
                ..asked()
            }
            .read(&bytes)
            .is_none(),
            "another name"
        );
        let mut query = answer(7);
        query.metadata.message_type = MessageType::Query;
        assert!(asked().read(&query.to_vec().unwrap()).is_none(), "no answer");
    }

    #[test]
    fn aliases_that_lead_in_a_circle_end() {
        let mut message = Message::new(7, MessageType::Response, OpCode::Query);
        message.add_query(question());
        for (from, to) in [
            ("www.example.org.", "a.example."),
            ("a.example.", "www.example.org."),
        ] {
            let cname = RData::CNAME(CNAME(name(to)));
            message.add_answer(Record::from_rdata(name(from), 60, cname));
        }
        let taken = asked().read(&message.to_vec().unwrap()).unwrap();
        assert_eq!(taken.addresses, []);
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..600), at in 0_usize..100, value: u8) {
            let _ = asked().read(&bytes);
            let mut bytes = answer(7).to_vec().unwrap();
            let length = bytes.len();
            bytes[at % length] = value;
            let _ = asked().read(&bytes);
            let _ = asked().read(&bytes[..at % length]);
        }

        // For all chains of aliases in any order, exactly the addresses that the queried name
        // resolves to are accepted.
        #[test]
        fn addresses_are_those_to_which_the_name_leads(
            records in prop::collection::vec((0_usize..6, prop::option::of(0_usize..6), any::<u8>()), 0..20),
        ) {
            let named = |number: usize| {
                if number == 0 { question().name } else { name(&format!("n{number}.example.")) }
            };
            let mut message = Message::new(7, MessageType::Response, OpCode::Query);
            message.add_query(question());
            for (from, to, last) in &records {
                let data = match to {
                    Some(to) => RData::CNAME(CNAME(named(*to))),
                    None => RData::A(A([192, 0, 2, *last].into())),
                };
                message.add_answer(Record::from_rdata(named(*from), u32::from(*last), data));
            }
            let mut leads = [true, false, false, false, false, false];
            for _ in 0..leads.len() {
                for (from, to, _) in &records {
                    if let Some(to) = to {
                        leads[*to] |= leads[*from];
                    }
                }
            }
            let own = records.iter().filter(|(from, to, _)| leads[*from] && to.is_none());
            let expected: Vec<_> = own
                .map(|(_, _, last)| (IpAddr::from([192, 0, 2, *last]), u32::from(*last)))
                .collect();
            let taken = asked().read(&message.to_vec().unwrap()).unwrap();
            prop_assert_eq!(taken.addresses, expected);
        }
    }
}
