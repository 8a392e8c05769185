//! The resolver that programs ask: takes their questions, has the event loop say which network to
//! ask, and passes the answer back once the rules know of it.
//!
//! It answers on the private addresses at port 53, and for each network at a port of its own, to
//! which the kernel leads the questions of programs that chose that network. It remembers no
//! answers: systemd-resolved and browsers do.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hawser_host::dns::{Place, read_framed, write_framed};
use hawser_steer::names::normal;
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::told::Told;

/// Where questions come in; it ends with this value.
#[derive(Default)]
pub(super) struct Resolver {
    tasks: JoinSet<()>,
    /// By network.
    ports: BTreeMap<u8, u16>,
}

/// What a task that answers needs.
#[derive(Clone)]
struct Desk {
    /// Whose programs ask here; `None`: all others.
    chosen: Option<u8>,
    tell: mpsc::Sender<Told>,
    room: Arc<Semaphore>,
}

impl Resolver {
    /// Answers at port 53 of these addresses.
    ///
    /// # Errors
    /// None of the addresses can be had.
    pub(super) async fn start(addresses: &[IpAddr], tell: mpsc::Sender<Told>) -> io::Result<Self> {
        let mut resolver = Self::default();
        let desk = Desk {
            chosen: None,
            tell,
            room: Arc::new(Semaphore::new(MOST_AT_ONCE)),
        };
        resolver.listen(addresses, DNS, &desk).await?;
        // Every number that a network may have: so nothing is opened when it comes.
        for number in hawser_linux::direct::NUMBERS.take(MOST_NETWORKS) {
            let port = FIRST_PORT + u16::from(number);
            let desk = Desk {
                chosen: Some(number),
                ..desk.clone()
            };
            resolver.listen(addresses, port, &desk).await?;
            resolver.ports.insert(number, port);
        }
        Ok(resolver)
    }

    /// Where each network's own resolver answers.
    pub(super) fn ports(&self) -> &BTreeMap<u8, u16> {
        &self.ports
    }

    /// Where IPv6 is switched off, IPv4 does.
    async fn listen(&mut self, addresses: &[IpAddr], port: u16, desk: &Desk) -> io::Result<()> {
        let mut last = None;
        let mut is_heard = false;
        for address in addresses {
            let place = SocketAddr::new(*address, port);
            let both = async {
                Ok::<_, io::Error>((UdpSocket::bind(place).await?, TcpListener::bind(place).await?))
            };
            match both.await {
                Ok((datagrams, streams)) => {
                    is_heard = true;
                    self.tasks.spawn(hear_datagrams(datagrams, desk.clone()));
                    self.tasks.spawn(hear_streams(streams, desk.clone()));
                }
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if !is_heard => Err(error),
            _ => Ok(()),
        }
    }
}

async fn hear_datagrams(socket: UdpSocket, desk: Desk) {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; MOST_BYTES];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(heard) => heard,
            Err(error) => {
                tracing::debug!(%error, "a question was not heard");
                continue;
            }
        };
        // Who asks too much is not heard, and asks again.
        let Ok(permit) = Arc::clone(&desk.room).try_acquire_owned() else {
            continue;
        };
        let (query, socket, desk) = (buffer[..length].to_vec(), Arc::clone(&socket), desk.clone());
        hawser_linux::tasks::spawn(async move {
            if let Some(answer) = desk.answer(&query, false).await {
                let _ = socket.send_to(&answer, from).await;
            }
            drop(permit);
        });
    }
}

async fn hear_streams(listener: TcpListener, desk: Desk) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&desk.room).try_acquire_owned() else {
            continue;
        };
        let desk = desk.clone();
        hawser_linux::tasks::spawn(async move {
            let _ = converse(stream, &desk).await;
            drop(permit);
        });
    }
}

/// One question after the other, until nobody asks any more.
async fn converse(mut stream: TcpStream, desk: &Desk) -> io::Result<()> {
    loop {
        let query = timeout(IDLE, read_framed(&mut stream)).await??;
        let Some(answer) = desk.answer(&query, true).await else {
            return Ok(());
        };
        write_framed(&mut stream, &answer).await?;
    }
}

impl Desk {
    /// The answer to a message; none where it is not even a question.
    async fn answer(&self, query: &[u8], is_stream: bool) -> Option<Vec<u8>> {
        let asked = Message::from_vec(query).ok()?;
        if asked.metadata.message_type != MessageType::Query {
            return None;
        }
        let code = match (asked.metadata.op_code, asked.queries.as_slice()) {
            (OpCode::Query, [question]) => {
                match self.pass_on(query, question.name.to_ascii(), is_stream).await {
                    Some(mut answer) => {
                        answer[..2].copy_from_slice(&query[..2]);
                        return Some(answer);
                    }
                    None => ResponseCode::ServFail,
                }
            }
            (OpCode::Query, _) => ResponseCode::FormErr,
            _ => ResponseCode::NotImp,
        };
        let mut refusal = Message::error_msg(asked.metadata.id, asked.metadata.op_code, code);
        refusal.metadata.recursion_desired = asked.metadata.recursion_desired;
        refusal.add_queries(asked.queries);
        refusal.to_vec().ok()
    }

    /// Asks network after network until one answers; the rules hear of the answer before the
    /// program does.
    async fn pass_on(&self, query: &[u8], name: String, is_stream: bool) -> Option<Vec<u8>> {
        // Names with other letters (of service records, say) are asked for as they are, and are in
        // no rule.
        let name = normal(&name).unwrap_or_default();
        let (places, answer) = oneshot::channel();
        let told = Told::Question {
            name: name.clone(),
            chosen: self.chosen,
            places,
        };
        self.tell.send(told).await.ok()?;
        for place in answer.await.ok()? {
            match place.ask(query, is_stream).await {
                Ok(answer) => {
                    if !answer.addresses.is_empty() {
                        self.tell_answer(name, &place, answer.addresses).await?;
                    }
                    return Some(answer.bytes);
                }
                Err(error) => tracing::debug!(network = place.device, %error, "its resolvers do not answer"),
            }
        }
        None
    }

    async fn tell_answer(&self, name: String, place: &Place, addresses: Vec<(IpAddr, u32)>) -> Option<()> {
        let (done, known) = oneshot::channel();
        let told = Told::Answer {
            name,
            number: place.number,
            addresses,
            done,
        };
        self.tell.send(told).await.ok()?;
        known.await.ok()
    }
}

const DNS: u16 = 53;
/// As the tables of networks are numbered.
const FIRST_PORT: u16 = 18_600;
/// Programs choose among more networks than this only where nobody can test it.
const MOST_NETWORKS: usize = 32;
/// Questions at once: each holds a socket for some seconds at most.
const MOST_AT_ONCE: usize = 256;
const MOST_BYTES: usize = 4096;
/// A stream on which nobody asks (RFC 7766 section 6.2.3: a few seconds).
const IDLE: Duration = Duration::from_secs(10);
