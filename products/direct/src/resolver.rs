//! Resolver for programs: it receives their queries, lets the event loop select the network, and
//! returns the answer after the rules contain it.
//!
//! It answers on the private addresses at port 53, and for each network at a separate port, to
//! which the kernel redirects the queries of programs that chose that network. It does not cache
//! answers; systemd-resolved and browsers do.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hawser_host::dns::NetworkAccess;
use hawser_host::dns::server::{self, Answer, Server};
use hawser_steer::names::normal;
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::notices::TaskResult;

/// Listener for queries, which ends with this value.
#[derive(Default)]
pub(super) struct Resolver {
    tasks: JoinSet<()>,
    /// Ports by network.
    ports: BTreeMap<u8, u16>,
}

/// Context of a task that answers.
#[derive(Clone)]
struct Desk {
    /// Network that the programs of this listener have chosen; `None` for all other programs.
    chosen: Option<u8>,
    tell: mpsc::Sender<TaskResult>,
}

impl Resolver {
    /// Answers at port 53 of these addresses.
    ///
    /// # Errors
    /// If none of the addresses can be bound.
    pub(super) async fn start(addresses: &[IpAddr], tell: mpsc::Sender<TaskResult>) -> io::Result<Self> {
        let mut resolver = Self::default();
        let room = Arc::new(Semaphore::new(server::MAX_QUESTIONS));
        let desk = Desk { chosen: None, tell };
        resolver.listen(addresses, server::PORT, &desk, &room).await?;
        // The ports of all possible networks are opened in advance.
        for number in hawser_linux::direct::NUMBERS.take(MAX_NETWORKS) {
            let port = FIRST_PORT + u16::from(number);
            let desk = Desk {
                chosen: Some(number),
                ..desk.clone()
            };
            resolver.listen(addresses, port, &desk, &room).await?;
            resolver.ports.insert(number, port);
        }
        Ok(resolver)
    }

    /// Returns the port of each network's resolver.
    pub(super) fn ports(&self) -> &BTreeMap<u8, u16> {
        &self.ports
    }

    /// Binds the sockets; if IPv6 is disabled, IPv4 suffices.
    async fn listen(
        &mut self,
        addresses: &[IpAddr],
        port: u16,
        desk: &Desk,
        room: &Arc<Semaphore>,
    ) -> io::Result<()> {
        let mut last = None;
        let mut is_heard = false;
        for address in addresses {
            match Server::bind(SocketAddr::new(*address, port)).await {
                Ok(server) => {
                    is_heard = true;
                    self.tasks.spawn(server.run(desk.clone(), Arc::clone(room)));
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

impl Answer for Desk {
    async fn answer(&self, query: &[u8], _from: IpAddr, is_stream: bool) -> Option<Vec<u8>> {
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
}

impl Desk {
    /// Queries one network after the other until one answers. The rules receive the answer before
    /// the program does.
    async fn pass_on(&self, query: &[u8], name: String, is_stream: bool) -> Option<Vec<u8>> {
        // Names with other characters (for example of service records) are resolved unchanged, and
        // match no rule.
        let name = normal(&name).unwrap_or_default();
        let (reply, answer) = oneshot::channel();
        let told = TaskResult::Question {
            name: name.clone(),
            chosen: self.chosen,
            reply,
        };
        self.tell.send(told).await.ok()?;
        for access in answer.await.ok()? {
            match access.ask(query, is_stream).await {
                Ok(answer) => {
                    if !answer.addresses.is_empty() {
                        self.report_answer(name, &access, answer.addresses).await?;
                    }
                    return Some(answer.bytes);
                }
                Err(error) => tracing::debug!(network = access.device, %error, "its resolvers do not answer"),
            }
        }
        None
    }

    async fn report_answer(
        &self,
        name: String,
        access: &NetworkAccess,
        addresses: Vec<(IpAddr, u32)>,
    ) -> Option<()> {
        let (done, known) = oneshot::channel();
        let told = TaskResult::Answer {
            name,
            number: access.number,
            addresses,
            done,
        };
        self.tell.send(told).await.ok()?;
        known.await.ok()
    }
}

/// First port; the following ones are numbered like the networks' routing tables. Source:
/// `FIRST_TABLE` of `system/linux/src/system/network_tables.rs`.
const FIRST_PORT: u16 = 18_600;
/// Maximum number of networks among which programs choose. Source: our choice; each opens its ports
/// in advance, and programs cannot choose a further network.
const MAX_NETWORKS: usize = 32;
