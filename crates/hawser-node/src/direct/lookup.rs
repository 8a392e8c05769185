//! Questions to the resolvers of one network: over its device, past every routing rule; or to those of a hub, through the tunnel.
//!
//! What comes back is somebody's bytes: only a whole message that answers this question is taken, all others are waited past.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hawser_linux::direct::{TUNNEL, mark};
use hawser_linux::udp::keep_outside;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;

/// A network's resolvers, or a hub's, and how to reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) number: u8,
    pub(super) device: String,
    pub(super) index: u32,
    pub(super) servers: Vec<IpAddr>,
}

/// An answer that was taken.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    pub(super) code: ResponseCode,
    /// What the name leads to, over all its other names, each for so many seconds.
    pub(super) addresses: Vec<(IpAddr, u32)>,
}

impl Place {
    /// Asks the servers in their order; `query` is a message with one question, whose id counts for nothing.
    ///
    /// # Errors
    /// None of them answers.
    pub(super) async fn ask(&self, query: &[u8], is_stream: bool) -> io::Result<Answer> {
        let asked = Message::from_vec(query).map_err(io::Error::other)?;
        let question = asked.queries.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for server in self.servers.iter().take(MOST_SERVERS) {
            let server = self.port(*server, DNS);
            let exchanged = timeout(PATIENCE, async {
                if is_stream {
                    self.by_stream(server, query, question).await
                } else {
                    self.by_datagram(server, query, question).await
                }
            });
            match exchanged.await {
                // This one cannot or will not; another may.
                Ok(Ok(answer)) if [ResponseCode::ServFail, ResponseCode::Refused].contains(&answer.code) => {
                    last = io::Error::other(answer.code.to_string());
                }
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }

    /// The addresses of a name.
    ///
    /// # Errors
    /// None of the servers answers.
    pub(super) async fn addresses(&self, name: &str, ipv6: bool) -> io::Result<Vec<IpAddr>> {
        let mut query = Message::new(0, MessageType::Query, OpCode::Query);
        query.metadata.recursion_desired = true;
        let kind = if ipv6 { RecordType::AAAA } else { RecordType::A };
        query.add_query(Query::query(
            Name::from_ascii(name).map_err(io::Error::other)?,
            kind,
        ));
        let query = query.to_vec().map_err(io::Error::other)?;
        let answer = self.ask(&query, false).await?;
        Ok(answer.addresses.into_iter().map(|(address, _)| address).collect())
    }

    /// A connection over this network alone.
    ///
    /// # Errors
    /// The device is gone, or nobody answers.
    pub(super) async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.socket(to, Type::STREAM, Protocol::TCP)?;
        TcpSocket::from_std_stream(socket.into()).connect(to).await
    }

    /// An address of a server; one that only holds on a link is meant on this one.
    pub(super) fn port(&self, address: IpAddr, port: u16) -> SocketAddr {
        let mut address = SocketAddr::new(address, port);
        if let SocketAddr::V6(v6) = &mut address
            && v6.ip().is_unicast_link_local()
        {
            v6.set_scope_id(self.index);
        }
        address
    }

    async fn by_datagram(&self, server: SocketAddr, query: &[u8], question: &Query) -> io::Result<Answer> {
        let socket = self.socket(server, Type::DGRAM, Protocol::UDP)?;
        socket.connect(&server.into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        let (id, bytes) = with_fresh_id(query);
        socket.send(&bytes).await?;
        let mut buffer = vec![0; MOST_BYTES];
        loop {
            let length = socket.recv(&mut buffer).await?;
            if let Some(answer) = read(&buffer[..length], id, question) {
                return Ok(answer);
            }
        }
    }

    async fn by_stream(&self, server: SocketAddr, query: &[u8], question: &Query) -> io::Result<Answer> {
        let mut stream = self.connect(server).await?;
        let (id, bytes) = with_fresh_id(query);
        write_framed(&mut stream, &bytes).await?;
        let bytes = read_framed(&mut stream).await?;
        read(&bytes, id, question).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn socket(&self, to: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(to), kind, Some(protocol))?;
        if self.number == TUNNEL {
            // As programs' own packets, whose address the routes name.
            socket.set_mark(mark(0, TUNNEL))?;
        } else {
            keep_outside(&socket, Some(&self.device))?;
        }
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

/// A message with its length before it (RFC 1035 section 4.2.2).
pub(super) async fn read_framed(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

pub(super) async fn write_framed(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = u16::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut whole = length.to_be_bytes().to_vec();
    whole.extend(bytes);
    stream.write_all(&whole).await
}

/// An id that nobody can guess.
fn with_fresh_id(query: &[u8]) -> (u16, Vec<u8>) {
    let id: [u8; 2] = crate::identity::random();
    let mut bytes = query.to_vec();
    bytes[..2].copy_from_slice(&id);
    (u16::from_be_bytes(id), bytes)
}

/// The message, if it answers the question.
fn read(bytes: &[u8], id: u16, question: &Query) -> Option<Answer> {
    let message = Message::from_vec(bytes).ok()?;
    let meta = &message.metadata;
    let is_answer = meta.id == id && meta.message_type == MessageType::Response;
    let [answered] = message.queries.as_slice() else {
        return None;
    };
    let is_same = answered.name == question.name
        && answered.query_type == question.query_type
        && answered.query_class == question.query_class;
    (is_answer && is_same).then(|| Answer {
        bytes: bytes.to_vec(),
        code: meta.response_code,
        addresses: addresses(&message, &question.name),
    })
}

/// The addresses to which the name leads; what else an answer holds, nobody asked for.
fn addresses(message: &Message, name: &Name) -> Vec<(IpAddr, u32)> {
    let mut names = BTreeSet::from([name.to_lowercase()]);
    for _ in 0..MOST_ALIASES {
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

const DNS: u16 = 53;
/// As the resolver of the C library waits for half of it and asks twice.
const PATIENCE: Duration = Duration::from_millis(1500);
/// As that resolver has room for.
const MOST_SERVERS: usize = 3;
const MOST_ALIASES: usize = 16;
const MOST_BYTES: usize = 65_535;

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::Record;
    use hickory_proto::rr::rdata::{A, CNAME};
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn question() -> Query {
        Query::query(name("www.example.org."), RecordType::A)
    }

    fn answer(id: u16) -> Message {
        let mut message = Message::new(id, MessageType::Response, OpCode::Query);
        message.add_query(question());
        let cname = RData::CNAME(CNAME(name("cdn.example.net.")));
        let a = |last| RData::A(A([198, 51, 100, last].into()));
        // The alias may stand behind what it leads to.
        message.add_answer(Record::from_rdata(name("cdn.example.net."), 30, a(7)));
        message.add_answer(Record::from_rdata(name("WWW.example.org."), 60, cname));
        message.add_answer(Record::from_rdata(name("bank.example."), 60, a(8)));
        message
    }

    #[test]
    fn an_answer_counts_for_its_question_alone() {
        let bytes = answer(7).to_vec().unwrap();
        let taken = read(&bytes, 7, &question()).unwrap();
        assert_eq!(taken.addresses, [("198.51.100.7".parse().unwrap(), 30)]);
        assert!(read(&bytes, 8, &question()).is_none(), "another id");
        let other = Query::query(name("example.org."), RecordType::A);
        assert!(read(&bytes, 7, &other).is_none(), "another name");
        let mut query = answer(7);
        query.metadata.message_type = MessageType::Query;
        assert!(
            read(&query.to_vec().unwrap(), 7, &question()).is_none(),
            "no answer"
        );
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
        let taken = read(&message.to_vec().unwrap(), 7, &question()).unwrap();
        assert_eq!(taken.addresses, []);
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..600), at in 0_usize..100, value: u8) {
            let _ = read(&bytes, 7, &question());
            let mut bytes = answer(7).to_vec().unwrap();
            let length = bytes.len();
            bytes[at % length] = value;
            let _ = read(&bytes, 7, &question());
            let _ = read(&bytes[..at % length], 7, &question());
        }
    }
}
