//! Reaching the hub: attempts over all networks at once, and the connection that won.

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

/// What an attempt came to: at which hub, over which network.
pub type Outcome = (KeyHash, NetworkId, Result<Established, ConnectError>);

/// A hub to be tried.
pub struct Call {
    /// Its key.
    pub hub: KeyHash,
    /// How the hub's key is checked, and which is shown to it.
    pub config: quinn::ClientConfig,
    /// What is said first.
    pub hello: Hello,
    /// Where it is, unless the networks lead to it.
    pub addresses: Option<Vec<SocketAddr>>,
    /// Which of several attempts presents itself.
    pub turn: Turn,
}

/// Attempts under way; none at first.
#[derive(Default)]
pub struct Reach {
    attempts: JoinSet<Outcome>,
    /// The hubs that are being tried.
    calls: Vec<Arc<Call>>,
    begun: Option<Instant>,
    pauses: u32,
    /// What the last connection measured.
    round_trip: Duration,
}

impl Reach {
    /// Whether attempts are under way.
    pub fn is_busy(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// Whether attempts are under way that are younger than that.
    pub fn has_begun_within(&self, age: Duration) -> bool {
        self.is_busy() && self.begun.is_some_and(|begun| begun.elapsed() < age)
    }

    /// Takes note of the round trip that a connection measured.
    pub fn handle_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Tries every network, `last` at the end, each a moment after the one before.
    pub fn start(&mut self, networks: &Networks, last: Option<NetworkId>, calls: Vec<Call>) {
        self.attempts.abort_all();
        self.attempts = JoinSet::new();
        self.calls.clear();
        self.call(networks, last, calls);
    }

    /// The same, beside the attempts that are under way. A hub that is being tried is tried once
    /// more, and the attempts at it go on taking turns.
    pub fn start_beside(&mut self, networks: &Networks, calls: Vec<Call>) {
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

    /// Tries one network more, beside those that are being tried. False: nobody is being sought.
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

    /// The next outcome; waits for ever while no attempt runs. May be dropped while it waits.
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

    /// The hub is reached: the other attempts are moot.
    pub fn stop(&mut self) {
        self.attempts.abort_all();
        self.attempts = JoinSet::new();
        self.calls.clear();
        self.pauses = 0;
    }

    /// How long to wait after all attempts have failed.
    pub fn pause(&mut self) -> Duration {
        let pause = FIRST_PAUSE * 2_u32.pow(self.pauses.min(4));
        self.pauses += 1;
        pause.min(LAST_PAUSE)
    }
}

/// Networks whose path works first; those known to be dead after those nobody knows; `last` at the
/// end.
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

/// What a control connection reports.
pub enum News {
    /// The hub said something.
    Message(Message),
    /// The connection is gone.
    Lost(String),
}

/// The connection that carries the session.
pub struct Line {
    /// Tells it from earlier ones.
    pub number: u64,
    /// Over which network it goes.
    pub network: NetworkId,
    connection: quinn::Connection,
    outbox: mpsc::Sender<Message>,
    /// What carries its messages.
    pub task: tokio::task::JoinHandle<()>,
}

impl Line {
    /// Serves a connection in the background; what it hears goes to `news`, under its number. Where
    /// `news` is full, nothing more is read, so the flow control of QUIC holds the hub back.
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

    /// Says something. Where a hub has not read [`OUTBOX`] messages, the connection ends.
    pub fn send(&self, message: Message) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.outbox.try_send(message) {
            self.connection.close(0_u8.into(), b"");
        }
    }

    /// Ends the connection with a word to the hub.
    pub fn close(self, reason: CloseReason) -> tokio::task::JoinHandle<()> {
        self.send(Message::Close(reason));
        self.task
    }

    /// As its packets have measured it.
    pub fn round_trip(&self) -> Duration {
        self.connection.rtt()
    }

    /// Ends a connection that is of no more use: the other side would not hear.
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

/// Between the starts of two attempts, or a round trip where that is longer: a healthy network
/// answers within it, so the rest need not be troubled. On a slow one a handshake is much.
const STAGGER: Duration = Duration::from_millis(250);
const LONGEST_STAGGER: Duration = Duration::from_secs(2);
/// Messages that wait for a hub that does not read. A roam over all 64 paths of a session closes
/// and opens each, and says its cap and its end: 256 messages, and four of those.
const OUTBOX: usize = 1_024;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(5);
