//! Datagrams at a constant rate, each with its number and the time it was sent.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};

use anyhow::Context as _;
use hawser_linux::clock;
use hawser_netem::scenario::{Direction, layer_code_point};
use hawser_units::{Bytes, Duration, Instant};
use socket2::SockRef;

use super::{Context, Finding, Threads, datagram_socket, is_timeout, server_address, spawn, wait_for};

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// From one datagram to the next.
    pub(super) gap: Duration,
    /// UDP payload of each.
    pub(super) size: Bytes,
    /// Of how many layers they are in turn; 0 where they have no marks.
    pub(super) layers: u8,
}

/// Starts who sends and who receives.
pub(super) fn start(context: Context, direction: Direction, stream: Stream) -> anyhow::Result<Threads> {
    let port = context.port;
    let at_server = context
        .server
        .run(|| datagram_socket(port).map_err(std::io::Error::other))?;
    let namespace = context.server.clone();
    let (server_context, client_context) = (context.clone(), context);
    let client_namespace = client_context.client.clone();
    match direction {
        Direction::Down => {
            let server = spawn(&namespace, "udp-server", move || {
                let Some(client) = first_sender(&server_context, &at_server)? else {
                    return Ok(0);
                };
                send(&server_context, &at_server, client, stream)
            })?;
            let client = spawn(&client_namespace, "udp-client", move || {
                let socket = datagram_socket(0)?;
                wait_for(client_context.period.start);
                receive(&client_context, &socket, true).map(|tally| tally.finding(0, stream.layers))
            })?;
            Ok((client, server))
        }
        Direction::Up => {
            // The receiving side knows what matters; the client's thread asks it at the end.
            let receiver = spawn(&namespace, "udp-server", move || {
                receive(&server_context, &at_server, false)
            })?;
            let client = spawn(&client_namespace, "udp-client", move || {
                let socket = datagram_socket(0)?;
                wait_for(client_context.period.start);
                let to = server_address(client_context.port).into();
                let sent = send(&client_context, &socket, to, stream)?;
                let tally = receiver
                    .join()
                    .map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
                Ok(tally.finding(sent, stream.layers))
            })?;
            let nothing = std::thread::spawn(|| Ok(0));
            Ok((client, nothing))
        }
    }
}

/// Waits until the client has said where it is.
pub(super) fn first_sender(context: &Context, socket: &UdpSocket) -> anyhow::Result<Option<SocketAddr>> {
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

fn send(context: &Context, socket: &UdpSocket, to: SocketAddr, stream: Stream) -> anyhow::Result<u64> {
    let mut datagram = vec![0; usize::try_from(stream.size.0)?];
    let (mut sent, mut asked_for) = (0u64, 0);
    let mut due = clock::now();
    while !context.period.is_over() {
        let now = clock::now();
        if due > now {
            std::thread::sleep(due.since(now).max(LEAST_SLEEP));
            continue;
        }
        stamp(&mut datagram, sent, now);
        if stream.layers > 0 {
            mark(socket, u8::try_from(sent % u64::from(stream.layers))?)?;
        }
        // A full buffer or an unreachable network loses the datagram, as it would for an
        // application.
        let _ = socket.send_to(&datagram, to);
        sent += 1;
        if now < context.period.settled {
            asked_for = sent;
        }
        due += stream.gap;
    }
    Ok(asked_for)
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

    fn finding(self, sent: u64, layers: u8) -> Finding {
        let delay = |sent: Instant, now: Instant| u64::try_from(now.since(sent).as_nanos());
        let arrivals = self
            .arrivals
            .into_iter()
            .map(|(number, sent, now)| (number, delay(sent, now).unwrap_or(u64::MAX)));
        Finding::of_datagrams(sent, arrivals.collect(), layers)
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
pub(super) fn receive(context: &Context, socket: &UdpSocket, says_hello: bool) -> anyhow::Result<Tally> {
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
        } = tally.finding(3, 0)
        else {
            panic!("datagrams are found as datagrams");
        };
        assert_eq!((received, reordered, loss, layer_loss), (3, 1, 0.0, vec![]));
    }
}
