//! Datagrams, each with its number and the time it was sent: who sends, who receives, what came.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow};
use hawser_linux::clock;
use hawser_netem::scenario::{Direction, layer_code_point};
use hawser_units::{Duration, Instant};
use socket2::SockRef;

use super::{Context, Finding, Threads, datagram_socket, is_timeout, server_address, spawn, wait_for};

/// What sends datagrams.
pub(super) trait Source: Send + 'static {
    /// Sends until the run is over, and notes what was sent.
    fn send(&mut self, context: &Context, socket: &UdpSocket, to: SocketAddr) -> anyhow::Result<()>;

    /// What became of them, for a run that ended then.
    fn finding(&self, tally: Tally, end: Instant) -> Finding;
}

/// Starts who sends and who receives; the client's thread waits for the other and says what was
/// found.
pub(super) fn start(
    context: Context,
    direction: Direction,
    mut source: impl Source,
) -> anyhow::Result<Threads> {
    let port = context.port;
    let at_server = context
        .server
        .run(|| datagram_socket(port).map_err(std::io::Error::other))?;
    let (server, client) = (context.server.clone(), context.client.clone());
    let (here, there) = (context.clone(), context);
    let client = match direction {
        Direction::Down => {
            let sender = spawn(&server, "datagram-server", move || {
                if let Some(to) = first_sender(&there, &at_server)? {
                    source.send(&there, &at_server, to)?;
                }
                Ok(source)
            })?;
            spawn(&client, "datagram-client", move || {
                let socket = datagram_socket(0)?;
                wait_for(here.period.start);
                let tally = receive(&here, &socket, true)?;
                Ok(joined(sender)?.finding(tally, here.period.end))
            })?
        }
        Direction::Up => {
            let receiver = spawn(&server, "datagram-server", move || {
                receive(&there, &at_server, false)
            })?;
            spawn(&client, "datagram-client", move || {
                let socket = datagram_socket(0)?;
                wait_for(here.period.start);
                source.send(&here, &socket, server_address(here.port).into())?;
                Ok(source.finding(joined(receiver)?, here.period.end))
            })?
        }
    };
    Ok((client, std::thread::spawn(|| Ok(()))))
}

fn joined<T>(server: JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    let result = server.join().map_err(|_| anyhow!("the server side panicked"))?;
    result.context("server side")
}

/// Waits until the client has said where it is.
fn first_sender(context: &Context, socket: &UdpSocket) -> anyhow::Result<Option<SocketAddr>> {
    let mut buffer = [0; 64];
    while !context.period.is_over() {
        match socket.recv_from(&mut buffer) {
            Ok((_, from)) => return Ok(Some(from)),
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
    Ok(None)
}

/// Writes number and time at the beginning of a datagram.
pub(super) fn stamp(datagram: &mut [u8], number: u64, now: Instant) {
    datagram[..8].copy_from_slice(&number.to_be_bytes());
    datagram[8..HEADER].copy_from_slice(&now.as_nanos().to_be_bytes());
}

/// Gives the datagrams that follow the code point of their layer.
pub(super) fn mark(socket: &UdpSocket, layer: u8) -> std::io::Result<()> {
    SockRef::from(socket).set_tos_v4(u32::from(layer_code_point(layer)) << 2)
}

/// What a receiver has seen.
#[derive(Default)]
pub(super) struct Tally {
    highest: Option<u64>,
    late: BTreeSet<u64>,
    /// Number, when it was sent and when it was here, in order of arrival.
    arrivals: Vec<(u64, Instant, Instant)>,
}

impl Tally {
    /// Counts a datagram once; says whether it is new.
    fn count(&mut self, number: u64, sent: Instant, now: Instant) -> bool {
        match self.highest {
            Some(highest) if number < highest => {
                if !self.late.insert(number) {
                    return false;
                }
            }
            Some(highest) if number == highest => return false,
            _ => self.highest = Some(number),
        }
        self.arrivals.push((number, sent, now));
        true
    }

    /// Number and delay of each arrival. Units: nanoseconds.
    pub(super) fn into_delays(self) -> Vec<(u64, u64)> {
        let delay = |sent: Instant, now: Instant| u64::try_from(now.since(sent).as_nanos());
        self.arrivals
            .into_iter()
            .map(|(number, sent, now)| (number, delay(sent, now).unwrap_or(u64::MAX)))
            .collect()
    }

    /// Number and time of each arrival.
    pub(super) fn into_arrivals(self) -> Vec<(u64, Instant)> {
        self.arrivals
            .into_iter()
            .map(|(number, _, now)| (number, now))
            .collect()
    }
}

/// Takes what comes until the run is over. `says_hello`: the other side learns by that where to
/// send.
fn receive(context: &Context, socket: &UdpSocket, says_hello: bool) -> anyhow::Result<Tally> {
    let hello = || socket.send_to(b"hello", server_address(context.port));
    let mut tally = Tally::default();
    let mut buffer = [0u8; 2048];
    if says_hello {
        hello().context("cannot send")?;
    }
    while !context.period.is_over() {
        let received = socket.recv(&mut buffer);
        let now = clock::now();
        match received {
            Ok(length) if length >= HEADER => {
                let number = |at: usize| {
                    let mut bytes = [0; 8];
                    bytes.copy_from_slice(&buffer[at..at + 8]);
                    u64::from_be_bytes(bytes)
                };
                let sent = Instant::from_nanos(number(8));
                if tally.count(number(0), sent, now) {
                    context.recorder.record(now, length as u64);
                }
            }
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {
                if says_hello && tally.highest.is_none() {
                    // The first one may have been lost.
                    let _ = hello();
                }
            }
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
    Ok(tally)
}

/// What a datagram begins with: its number, and when it was sent. Units: bytes.
pub(super) const HEADER: usize = 16;
/// Waking up for every datagram would limit their number; those that became due meanwhile go out
/// together.
pub(super) const LEAST_SLEEP: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_reordering_and_duplicates_once() {
        let mut tally = Tally::default();
        let fresh: Vec<bool> = [0, 2, 1, 1, 2, 3]
            .iter()
            .map(|n| tally.count(*n, Instant::ZERO, Instant::from_nanos(*n)))
            .collect();
        assert_eq!(fresh, [true, true, true, false, false, true]);
        // The last was sent shortly before the end, and is not asked for.
        let Finding::Udp {
            received,
            reordered,
            loss,
            layer_loss,
            ..
        } = Finding::of_datagrams(3, tally.into_delays(), 0)
        else {
            panic!("datagrams are found as datagrams");
        };
        assert_eq!((received, reordered, loss, layer_loss), (3, 1, 0.0, vec![]));
    }
}
