//! Connections of takers: lets them in, hears their hello, and says what they are told.

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

/// What happens at the door.
pub(super) enum GuestNews {
    /// Somebody asks.
    Up(Box<Guest>),
    /// What the taker of a connection says that its hub has signed.
    Receipt(u64, Box<Receipt>),
    /// A connection is gone.
    Down(u64),
}

/// A taker that asks, or takes.
pub(super) struct Guest {
    /// Which connection; never used again.
    pub(super) id: u64,
    /// Whose key it has proven.
    pub(super) code: Code,
    /// Where it is.
    pub(super) from: SocketAddr,
    /// Where it has met this machine.
    pub(super) at: Option<IpAddr>,
    /// How it presents itself.
    pub(super) hello: PoolHello,
    /// Takes what it is to be told; a refusal is the last that it is told.
    pub(super) outbox: mpsc::Sender<PoolMessage>,
}

/// Lets takers in until the endpoint closes.
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
                        tracing::debug!(%from, error = format!("{error:#}"), "neighbour not let in");
                    }
                });
            }
            Verdict::Prove if incoming.may_retry() => drop(incoming.retry()),
            Verdict::Prove | Verdict::Ignore => incoming.ignore(),
        }
    }
}

/// Whether an address can be a neighbour's: local networks have private addresses, or those of
/// their link. Nobody else is answered, wherever the port is open to.
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
        let permit = permit.context("it has too many connections already")?;
        let (send, receive) = connection.accept_bi().await?;
        let mut stream = Stream::new(send, receive);
        let PoolMessage::Hello(hello) = stream.next().await? else {
            anyhow::bail!("the first message is no hello");
        };
        anyhow::Ok((connection, key.code(), permit, stream, hello))
    };
    let (connection, code, _permit, stream, hello) = tokio::time::timeout(TIMEOUT, opening)
        .await
        .context("it did not say hello in time")??;
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

/// Says what there is to say, and passes receipts on, until the connection ends.
async fn converse(
    id: u64,
    mut stream: Stream,
    (mut messages, news): (mpsc::Receiver<PoolMessage>, &mpsc::Sender<GuestNews>),
) -> String {
    let mut budget = Budget::new(PACE, Instant::now());
    loop {
        tokio::select! {
            heard = stream.next() => match heard {
                // A later one has what this one has.
                Ok(PoolMessage::Receipt(_)) if !budget.spend(1, Instant::now()) => {}
                Ok(PoolMessage::Receipt(receipt)) => {
                    let receipt = GuestNews::Receipt(id, receipt);
                    if news.send(receipt).await.is_err() {
                        return "given up".to_owned();
                    }
                }
                Ok(PoolMessage::Unknown(_)) if budget.spend(1, Instant::now()) => {}
                Ok(_) => return "it says what no taker says".to_owned(),
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

/// A device that is near answers within a few milliseconds.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Receipts of a taker: one of each way out a second, and some more when it connects. Each costs
/// this machine the check of a signature.
const PACE: Pace = Pace {
    burst: 64,
    per_second: 8,
};
/// Messages that wait for one that does not read: what it was told before is old by then.
const OUTBOX: usize = 64;
