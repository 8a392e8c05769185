//! Sends queries to the resolvers of one network over its device, bypassing all routing rules, or
//! to those of a hub through the tunnel.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hawser_linux::direct::{TUNNEL, mark};
use hawser_linux::udp::keep_outside;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::answer::Answer;
use super::exchange;

/// Access to one network, or to a hub's tunnel: its device and its resolvers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAccess {
    /// The network's number in marks, or the tunnel's.
    pub number: u8,
    /// Interface towards the resolvers.
    pub device: String,
    /// Index of the interface, for link-local addresses; 0 if there is none.
    pub index: u32,
    /// The resolvers, in the order in which they are asked.
    pub servers: Vec<IpAddr>,
}

impl NetworkAccess {
    /// Queries the servers in order; `query` is a message with one question, whose id is ignored.
    ///
    /// # Errors
    /// None of them answers.
    pub async fn ask(&self, query: &[u8], is_stream: bool) -> io::Result<Answer> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for server in self.servers.iter().take(MAX_SERVERS) {
            let server = self.port(*server, DNS);
            let exchanged = timeout(TIMEOUT, async {
                if is_stream {
                    self.by_stream(server, query).await
                } else {
                    self.by_datagram(server, query).await
                }
            });
            match exchanged.await {
                // Another server may answer.
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

    /// Returns the addresses of a name.
    ///
    /// # Errors
    /// None of the servers answers.
    pub async fn addresses(&self, name: &str, ipv6: bool) -> io::Result<Vec<IpAddr>> {
        let answer = self.resolve(name, ipv6).await?;
        Ok(answer.addresses.into_iter().map(|(address, _)| address).collect())
    }

    /// Returns the answer to a question for the addresses of a name.
    ///
    /// # Errors
    /// None of the servers answers.
    pub async fn resolve(&self, name: &str, ipv6: bool) -> io::Result<Answer> {
        let mut query = Message::new(0, MessageType::Query, OpCode::Query);
        query.metadata.recursion_desired = true;
        let kind = if ipv6 { RecordType::AAAA } else { RecordType::A };
        query.add_query(Query::query(
            Name::from_ascii(name).map_err(io::Error::other)?,
            kind,
        ));
        let query = query.to_vec().map_err(io::Error::other)?;
        self.ask(&query, false).await
    }

    /// Opens a connection over this network alone.
    ///
    /// # Errors
    /// The device was removed, or the destination does not answer.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.stream_socket(to)?.connect(to).await
    }

    /// Returns a socket for such a connection.
    ///
    /// # Errors
    /// The device was removed, or the kernel cannot create a socket.
    pub fn stream_socket(&self, to: SocketAddr) -> io::Result<TcpSocket> {
        let socket = self.socket(to, Type::STREAM, Protocol::TCP)?;
        Ok(TcpSocket::from_std_stream(socket.into()))
    }

    /// Returns a server's socket address; a link-local address gets this interface's index.
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
        exchange::by_datagram(&UdpSocket::from_std(socket.into())?, query).await
    }

    async fn by_stream(&self, server: SocketAddr, query: &[u8]) -> io::Result<Answer> {
        exchange::by_stream(&mut self.connect(server).await?, query).await
    }

    fn socket(&self, to: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(to), kind, Some(protocol))?;
        if self.number == TUNNEL {
            // Like packets of programs, whose source address the routes select.
            socket.set_mark(mark(0, TUNNEL))?;
        } else {
            keep_outside(&socket, Some(&self.device))?;
        }
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

/// Port of resolvers (RFC 1035 section 4.2.1).
const DNS: u16 = 53;
/// Timeout of an answer, so that three resolvers are asked within the 5 s that the C library waits
/// (`RES_TIMEOUT`, resolv.conf(5)). Source: 5 s over [`MAX_SERVERS`], rounded down to half seconds.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// Maximum number of resolvers. Source: `MAXNS` of resolv.conf(5).
const MAX_SERVERS: usize = 3;
