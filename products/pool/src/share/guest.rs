//! Connections of takers: handshake, first message, and messages to them.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Context;
use hawser_config::identity::Code;
use hawser_control::admission::{Admission, Permit, Verdict};
use hawser_control::budget::{Budget, Pace};
use hawser_control::stream::ControlStream;
use hawser_control::tls;
use hawser_linux::udp::plain;
use hawser_units::is_private;
use hawser_wire::pool::{PoolHello, PoolMessage};
use hawser_wire::receipt::Receipt;
use quinn::Endpoint;
use tokio::sync::mpsc;

type Stream = ControlStream<PoolMessage>;

/// Event of a taker's connection.
pub(super) enum GuestNews {
    /// Accepted connection.
    Up(Box<Guest>),
    /// Signed receipt, as the taker of a connection reports it.
    Receipt(u64, Box<Receipt>),
    /// End of a connection.
    Down(u64),
}

/// Taker that requests or uses uplinks.
pub(super) struct Guest {
    /// Id of the connection; never used again.
    pub(super) id: u64,
    /// Code of its authenticated key.
    pub(super) code: Code,
    /// Address of the taker.
    pub(super) from: SocketAddr,
    /// Local address of the connection.
    pub(super) at: Option<IpAddr>,
    /// First message of the taker.
    pub(super) hello: PoolHello,
    /// Queue of messages to it; a rejection is the last one.
    pub(super) outbox: mpsc::Sender<PoolMessage>,
}

/// Accepts takers until the endpoint closes.
pub(super) async fn serve(endpoint: Endpoint, news: mpsc::Sender<GuestNews>) {
    let admission = Admission::default();
    let mut next = 0;
    while let Some(incoming) = endpoint.accept().await {
        let from = incoming.remote_address();
        if !is_near(plain(from).ip()) {
            incoming.ignore();
            continue;
        }
        match admission.handshake(from.ip(), incoming.remote_address_validated()) {
            Verdict::Go(handshake) => {
                let (admission, news) = (admission.clone(), news.clone());
                next += 1;
                hawser_linux::tasks::spawn(async move {
                    if let Err(error) = serve_one(next, incoming, handshake, admission, &news).await {
                        tracing::debug!(%from, error = format!("{error:#}"), "neighbour rejected");
                    }
                });
            }
            Verdict::Prove if incoming.may_retry() => drop(incoming.retry()),
            Verdict::Prove | Verdict::Ignore => incoming.ignore(),
        }
    }
}

/// Returns whether an address may be a neighbour's: local networks have private or link-local
/// addresses. Other sources get no answer, regardless of firewalls.
fn is_near(address: IpAddr) -> bool {
    is_private(address)
}

async fn serve_one(
    id: u64,
    incoming: quinn::Incoming,
    handshake: Permit,
    admission: Admission,
    news: &mpsc::Sender<GuestNews>,
) -> anyhow::Result<()> {
    let opening = async {
        let connection = incoming.await?;
        let key = tls::peer_key(&connection)?;
        let permit = admission.connection(key);
        let permit = permit.context("it has too many connections")?;
        let (send, receive) = connection.accept_bi().await?;
        let mut stream = Stream::new(send, receive);
        let PoolMessage::Hello(hello) = stream.next().await? else {
            anyhow::bail!("the first message is not a hello");
        };
        anyhow::Ok((connection, key.code(), permit, stream, hello))
    };
    let (connection, code, _permit, stream, hello) = tokio::time::timeout(TIMEOUT, opening)
        .await
        .context("it sent no hello in time")??;
    drop(handshake);
    let (outbox, messages) = mpsc::channel(OUTBOX);
    let guest = Guest {
        id,
        code,
        from: connection.remote_address(),
        at: connection.local_ip(),
        hello,
        outbox,
    };
    let told = news.send(GuestNews::Up(Box::new(guest))).await;
    if told.is_ok() {
        let why = converse(id, stream, (messages, news)).await;
        tracing::debug!(%code, why, "neighbour's connection ended");
        let _ = news.send(GuestNews::Down(id)).await;
    }
    connection.close(0_u8.into(), b"");
    Ok(())
}

/// Sends waiting messages, and passes receipts on, until the connection ends.
async fn converse(
    id: u64,
    mut stream: Stream,
    (mut messages, news): (mpsc::Receiver<PoolMessage>, &mpsc::Sender<GuestNews>),
) -> String {
    let mut budget = Budget::new(PACE, Instant::now());
    loop {
        tokio::select! {
            heard = stream.next() => match heard {
                // A later receipt includes this one.
                Ok(PoolMessage::Receipt(_)) if !budget.spend(1, Instant::now()) => {}
                Ok(PoolMessage::Receipt(receipt)) => {
                    let receipt = GuestNews::Receipt(id, receipt);
                    if news.send(receipt).await.is_err() {
                        return "given up".to_owned();
                    }
                }
                Ok(PoolMessage::Unknown(_)) if budget.spend(1, Instant::now()) => {}
                Ok(_) => return "it sent an unexpected message".to_owned(),
                Err(error) => return error.to_string(),
            },
            message = messages.recv() => match message {
                Some(message @ PoolMessage::Refused(_)) => {
                    stream.finish(&message).await;
                    return "refused".to_owned();
                }
                Some(message) => if let Err(error) = stream.send(&message).await {
                    return error.to_string();
                },
                None => return "given up".to_owned(),
            },
        }
    }
}

/// Timeout of an answer; a nearby device answers within a few milliseconds. Source: our choice; a
/// longer one keeps permits from others, a shorter one fails while a device wakes its radio.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Rate of a taker's receipts: one of each uplink per second, and some more when it connects. Each
/// costs this machine the verification of a signature.
const PACE: Pace = Pace {
    burst: 64,
    per_second: 8,
};
/// Capacity of the queue to a taker that does not read: older messages are obsolete. Source: our
/// choice; more only takes memory.
const OUTBOX: usize = 64;
