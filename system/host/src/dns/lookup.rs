//! Questions to the resolvers of one network: over its device, past every routing rule; or to those
//! of a hub, through the tunnel.
//!
//! What comes back is somebody's bytes: only a whole message that answers this question
//! ([`dns_answer`](crate::dns::answer)) is taken, all others are waited past.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hawser_linux::direct::{TUNNEL, mark};
use hawser_linux::udp::keep_outside;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::dns::answer::{Answer, Question};

/// A network's resolvers, or a hub's, and how to reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The network's number in marks, or the tunnel's.
    pub number: u8,
    /// The interface that leads there.
    pub device: String,
    /// The interface's index, for link-local addresses; 0 where there is none.
    pub index: u32,
    /// The resolvers, in the order in which they are asked.
    pub servers: Vec<IpAddr>,
}

impl Place {
    /// Asks the servers in their order; `query` is a message with one question, whose id counts for
    /// nothing.
    ///
    /// # Errors
    /// None of them answers.
    pub async fn ask(&self, query: &[u8], is_stream: bool) -> io::Result<Answer> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for server in self.servers.iter().take(MOST_SERVERS) {
            let server = self.port(*server, DNS);
            let exchanged = timeout(TIMEOUT, async {
                if is_stream {
                    self.by_stream(server, query).await
                } else {
                    self.by_datagram(server, query).await
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
    pub async fn addresses(&self, name: &str, ipv6: bool) -> io::Result<Vec<IpAddr>> {
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
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.stream_socket(to)?.connect(to).await
    }

    /// A socket for such a connection.
    ///
    /// # Errors
    /// The device is gone, or the kernel has no socket to give.
    pub fn stream_socket(&self, to: SocketAddr) -> io::Result<TcpSocket> {
        let socket = self.socket(to, Type::STREAM, Protocol::TCP)?;
        Ok(TcpSocket::from_std_stream(socket.into()))
    }

    /// An address of a server; one that only holds on a link is meant on this one.
    pub fn port(&self, address: IpAddr, port: u16) -> SocketAddr {
        let mut address = SocketAddr::new(address, port);
        if let SocketAddr::V6(v6) = &mut address
            && v6.ip().is_unicast_link_local()
        {
            v6.set_scope_id(self.index);
        }
        address
    }

    async fn by_datagram(&self, server: SocketAddr, query: &[u8]) -> io::Result<Answer> {
        let socket = self.socket(server, Type::DGRAM, Protocol::UDP)?;
        socket.connect(&server.into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        let (question, bytes) = with_fresh_id(query)?;
        socket.send(&bytes).await?;
        let mut buffer = vec![0; MOST_BYTES];
        loop {
            let length = socket.recv(&mut buffer).await?;
            if let Some(answer) = question.read(&buffer[..length]) {
                return Ok(answer);
            }
        }
    }

    async fn by_stream(&self, server: SocketAddr, query: &[u8]) -> io::Result<Answer> {
        let mut stream = self.connect(server).await?;
        let (question, bytes) = with_fresh_id(query)?;
        write_framed(&mut stream, &bytes).await?;
        let bytes = read_framed(&mut stream).await?;
        question
            .read(&bytes)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
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
pub async fn read_framed(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Writes a message with its length before it (RFC 1035 section 4.2.2).
///
/// # Errors
/// The connection fails, or the message is longer than 65,535 bytes.
pub async fn write_framed(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = u16::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut whole = length.to_be_bytes().to_vec();
    whole.extend(bytes);
    stream.write_all(&whole).await
}

/// With an id that nobody can guess.
fn with_fresh_id(query: &[u8]) -> io::Result<(Question, Vec<u8>)> {
    let id: [u8; 2] = hawser_config::identity::random();
    let mut bytes = query.to_vec();
    let place = bytes.first_chunk_mut().ok_or(io::ErrorKind::InvalidInput)?;
    *place = id;
    let question = Question::parse(&bytes).ok_or(io::ErrorKind::InvalidInput)?;
    Ok((question, bytes))
}

const DNS: u16 = 53;
/// As the resolver of the C library waits for half of it and asks twice.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// As that resolver has room for.
const MOST_SERVERS: usize = 3;
const MOST_BYTES: usize = 65_535;
