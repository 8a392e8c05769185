//! Reaching the hub: concurrent attempts over all networks, and the first successful connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_config::identity::KeyHash;
use hawser_units::NetworkId;
use hawser_wire::control::{CloseReason, Hello, Message};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::networks::Networks;
use crate::client::{ConnectError, Established, Turn, connect};
use crate::stream::ControlStream;

/// Outcome of an attempt: the hub, the network, and the result.
pub type Outcome = (KeyHash, NetworkId, Result<Established, ConnectError>);

/// Attempt at a hub.
pub struct Call {
    /// Key of the hub.
    pub hub: KeyHash,
    /// TLS configuration: verification of the hub's key, and the presented key.
    pub config: quinn::ClientConfig,
    /// First message.
    pub hello: Hello,
    /// Addresses, unless those of the networks are used.
    pub addresses: Option<Vec<SocketAddr>>,
    /// Rule that decides which of several attempts presents itself.
    pub turn: Turn,
}

/// Attempts in progress.
#[derive(Default)]
pub struct Reach {
    attempts: JoinSet<Outcome>,
    /// Hubs that are being tried.
    calls: Vec<Arc<Call>>,
    begun: Option<Instant>,
    pauses: u32,
    /// Round trip measured by the last connection.
    round_trip: Duration,
}

impl Reach {
    /// Returns whether attempts are in progress.
    pub fn is_busy(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// Returns whether attempts younger than `age` are in progress.
    pub fn has_begun_within(&self, age: Duration) -> bool {
        self.is_busy() && self.begun.is_some_and(|begun| begun.elapsed() < age)
    }

    /// Records the round-trip time that a connection measured.
    pub fn handle_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Tries every network with staggered starts, `last` at the end.
    pub fn start(&mut self, networks: &Networks, last: Option<NetworkId>, calls: Vec<Call>) {
        self.attempts.abort_all();
        self.attempts = JoinSet::new();
        self.calls.clear();
        self.call(networks, last, calls);
    }

    /// Starts attempts in addition to those in progress. A hub that is already being tried is tried
    /// again, and its attempts share their turn.
    pub fn start_concurrent(&mut self, networks: &Networks, calls: Vec<Call>) {
        if !self.is_busy() {
            self.calls.clear();
        }
        self.call(networks, None, calls);
    }

    fn call(&mut self, networks: &Networks, last: Option<NetworkId>, calls: Vec<Call>) {
        self.begun = Some(Instant::now());
        let mut present = Vec::new();
        for call in calls {
            let known = self.calls.iter().find(|known| known.hub == call.hub);
            let call = known.map_or_else(|| Arc::new(call), Arc::clone);
            if !self.calls.iter().any(|known| known.hub == call.hub) {
                self.calls.push(Arc::clone(&call));
            }
            present.push(call);
        }
        let stagger = self.round_trip.clamp(STAGGER, LONGEST_STAGGER);
        for (place, id) in (0_u32..).zip(order(networks, last)) {
            self.attempt(networks, id, &present, stagger * place);
        }
    }

    /// Tries an additional network. Returns `false` if no attempt is in progress.
    pub fn join(&mut self, networks: &Networks, id: NetworkId) -> bool {
        let is_busy = self.is_busy() && !self.calls.is_empty();
        if is_busy {
            let calls = self.calls.clone();
            self.attempt(networks, id, &calls, Duration::ZERO);
        }
        is_busy
    }

    fn attempt(&mut self, networks: &Networks, id: NetworkId, calls: &[Arc<Call>], after: Duration) {
        let Some(attached) = networks.attached.get(&id) else {
            return;
        };
        for call in calls {
            let remote = match &call.addresses {
                None => attached.remote,
                Some(addresses) => match attached.leads_to(addresses) {
                    Some(remote) => remote,
                    None => continue,
                },
            };
            let named = match call.addresses {
                None => networks.hub(id).unwrap_or(remote),
                Some(_) => remote,
            };
            let (endpoint, call) = (attached.endpoint.clone(), Arc::clone(call));
            self.attempts.spawn(async move {
                tokio::time::sleep(after).await;
                let (config, hello) = (call.config.clone(), call.hello.clone());
                let result = connect(&endpoint, config, remote, hello, &call.turn).await;
                (call.hub, id, result.map_err(|error| error.of(named)))
            });
        }
    }

    /// Waits for the next outcome; forever without an attempt. Cancel safe.
    pub async fn next(&mut self) -> Outcome {
        loop {
            match self.attempts.join_next().await {
                Some(Ok(outcome)) => return outcome,
                // Aborted.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Cancels the other attempts after the hub has been reached.
    pub fn stop(&mut self) {
        self.attempts.abort_all();
        self.attempts = JoinSet::new();
        self.calls.clear();
        self.pauses = 0;
    }

    /// Returns the pause after all attempts have failed.
    pub fn pause(&mut self) -> Duration {
        let pause = FIRST_PAUSE * 2_u32.pow(self.pauses.min(4));
        self.pauses += 1;
        pause.min(LAST_PAUSE)
    }
}

/// Returns the networks in the order of attempts: those whose path works first; failed ones after
/// unknown ones; `last` at the end.
fn order(networks: &Networks, last: Option<NetworkId>) -> Vec<NetworkId> {
    use hawser_dataplane::PathState as P;
    let mut order: Vec<_> = networks.attached.iter().collect();
    order.sort_by_key(|(id, attached)| {
        let rank = match attached.state {
            Some(P::Active) => 0,
            Some(P::Validating) | None => 1,
            Some(P::Suspect) => 2,
            Some(P::Dead) => 3,
        };
        (Some(**id) == last, rank)
    });
    order.into_iter().map(|(id, _)| *id).collect()
}

/// Report of a control connection.
pub enum News {
    /// The hub sent a message.
    Message(Message),
    /// The connection has ended.
    Lost(String),
}

/// Control connection of the session.
pub struct Line {
    /// Number that distinguishes it from earlier ones.
    pub number: u64,
    /// Network of the connection.
    pub network: NetworkId,
    connection: quinn::Connection,
    outbox: mpsc::Sender<Message>,
    /// Task that transfers its messages.
    pub task: tokio::task::JoinHandle<()>,
}

impl Line {
    /// Serves a connection in the background; received messages are passed to `news`, under its
    /// number. While `news` is full, nothing more is read, so the flow control of QUIC stops the
    /// hub.
    pub fn serve(
        number: u64,
        network: NetworkId,
        connection: quinn::Connection,
        stream: ControlStream,
        news: mpsc::Sender<(u64, News)>,
    ) -> Self {
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let kept = connection.clone();
        let task = hawser_linux::tasks::spawn(async move {
            let why = converse(stream, messages, number, &news).await;
            kept.close(0_u8.into(), b"");
            let _ = news.send((number, News::Lost(why))).await;
        });
        Self {
            number,
            network,
            connection,
            outbox,
            task,
        }
    }

    /// Queues a message. If a hub has not read [`OUTBOX`] messages, the connection ends.
    pub fn send(&self, message: Message) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.outbox.try_send(message) {
            self.connection.close(0_u8.into(), b"");
        }
    }

    /// Ends the connection and notifies the hub.
    pub fn close(self, reason: CloseReason) -> tokio::task::JoinHandle<()> {
        self.send(Message::Close(reason));
        self.task
    }

    /// Returns the round trip that its packets have measured.
    pub fn round_trip(&self) -> Duration {
        self.connection.rtt()
    }

    /// Ends a failed connection without a notification, which could not arrive.
    pub fn abandon(self) {
        self.connection.close(0_u8.into(), b"");
        self.task.abort();
    }
}

async fn converse(
    mut stream: ControlStream,
    mut messages: mpsc::Receiver<Message>,
    number: u64,
    news: &mpsc::Sender<(u64, News)>,
) -> String {
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Ok(message) => if news.send((number, News::Message(message))).await.is_err() {
                    return "given up".to_owned();
                },
                Err(error) => return error.to_string(),
            },
            message = messages.recv() => match message {
                Some(message @ Message::Close(_)) => {
                    stream.finish(&message).await;
                    return "closed".to_owned();
                }
                Some(message) => if let Err(error) = stream.send(&message).await {
                    return error.to_string();
                },
                None => return "given up".to_owned(),
            },
        }
    }
}

/// Interval between the starts of two attempts, or a round trip if that is longer: a healthy
/// network answers within it, so the others need not be tried. On a slow network a handshake is
/// expensive. Source: RFC 8305 section 8, the recommended and the maximum connection attempt delay.
const STAGGER: Duration = Duration::from_millis(250);
const LONGEST_STAGGER: Duration = Duration::from_secs(2);
/// Capacity of the queue to a hub that does not read. Source: a change of all 64 paths of a session
/// closes and opens each, and sends its cap and its end, which are 256 messages; four times this
/// number.
const OUTBOX: usize = 1_024;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(5);
