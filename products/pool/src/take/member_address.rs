//! Address of a member or possible member, and the conversation with it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::Context;
use hawser_config::identity::Code;
use hawser_control::event_thread::Task;
use hawser_control::stream::ControlStream;
use hawser_control::tls;
use hawser_linux::udp::open_near;
use hawser_wire::pool::{PoolHello, PoolMessage};
use tokio::sync::mpsc;

use super::{Brought, News};

/// Address of a member or possible member.
pub(super) struct MemberAddress {
    pub(super) is_fixed: bool,
    pub(super) found: Clock,
    /// Connection, or the attempt at one.
    pub(super) dial: Option<(u64, Task)>,
    /// Queue of messages on the connection.
    pub(super) outbox: Option<mpsc::Sender<PoolMessage>>,
    /// Code of the key that the member has proven.
    pub(super) code: Option<Code>,
    pub(super) state: &'static str,
    pub(super) trouble: Option<String>,
    pub(super) retry_at: Clock,
    pub(super) pause: Duration,
    /// Hubs that were requested from the member.
    pub(super) hubs: Vec<SocketAddr>,
}

impl MemberAddress {
    pub(super) fn new(found: Clock) -> Self {
        Self {
            is_fixed: false,
            found,
            dial: None,
            outbox: None,
            code: None,
            state: "found",
            trouble: None,
            retry_at: found,
            pause: FIRST_PAUSE,
            hubs: Vec::new(),
        }
    }

    pub(super) fn hear(&mut self, message: &PoolMessage) {
        match message {
            PoolMessage::Offer(_) => {
                (self.state, self.trouble, self.pause) = ("gives", None, FIRST_PAUSE);
            }
            PoolMessage::Waiting => (self.state, self.trouble) = ("waits for consent", None),
            PoolMessage::Refused(reason) => {
                (self.state, self.trouble) = ("refused", Some(reason.to_string()));
            }
            PoolMessage::Hello(_)
            | PoolMessage::Withdraw { .. }
            | PoolMessage::Receipt(_)
            | PoolMessage::Unknown(_) => {}
        }
    }

    pub(super) fn gives(&self) -> bool {
        self.state == "gives"
    }
}

/// Sends the first message to a member, then pending messages, and delivers its messages until the
/// connection ends. Returns the reason of the end.
pub(super) async fn speak(
    at: SocketAddr,
    config: quinn::ClientConfig,
    (hello, mut messages): (PoolHello, mpsc::Receiver<PoolMessage>),
    number: u64,
    news: &mpsc::Sender<News>,
) -> anyhow::Result<String> {
    let endpoint = quinn::Endpoint::new(
        tls::client_endpoint_config(),
        None,
        open_near(at.is_ipv6())?,
        Arc::new(quinn::TokioRuntime),
    )?;
    let reaching = async {
        let connection = endpoint.connect_with(config, at, tls::SERVER_NAME)?.await?;
        let (send, receive) = connection.open_bi().await?;
        let mut stream = ControlStream::<PoolMessage>::new(send, receive);
        stream.send(&PoolMessage::Hello(hello)).await?;
        anyhow::Ok((connection, stream))
    };
    let reached = tokio::time::timeout(TIMEOUT, reaching).await;
    let (connection, mut stream) = reached.context("no answer")??;
    let code = tls::peer_key(&connection)?.code();
    loop {
        let heard = tokio::select! {
            heard = stream.next() => heard,
            Some(message) = messages.recv() => {
                stream.send(&message).await?;
                continue;
            }
        };
        match heard {
            Ok(message) => {
                let is_last = matches!(message, PoolMessage::Refused(_));
                let heard = News::Of(number, Brought::Heard(code, message));
                if news.send(heard).await.is_err() || is_last {
                    return Ok("refused".to_owned());
                }
            }
            Err(error) => return Ok(error.to_string()),
        }
    }
}

/// First interval between two attempts at an address. Source: our choice; a shorter one repeats an
/// attempt that has just failed, a longer one delays the use of a neighbour that restarts.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Timeout of an answer; a nearby device answers within a few milliseconds. Source: our choice, as
/// long as the member waits for a hello (`TIMEOUT` of `share/guest.rs`).
const TIMEOUT: Duration = Duration::from_secs(4);
/// Capacity of the queue of receipts to a member: a later receipt includes an earlier one. Source:
/// our choice; more only takes memory.
pub(super) const OUTBOX: usize = 32;
