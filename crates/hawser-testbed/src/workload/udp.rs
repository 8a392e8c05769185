//! Datagrams at a constant rate, each with its number and the time it was sent.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};

use anyhow::Context as _;
use hawser_linux::clock;
use hawser_netem::scenario::Direction;
use hawser_units::{Bytes, Duration, Instant, Rate};

use super::{
    Context, Finding, Threads, datagram_socket, is_timeout, quantile, server_address, share_lost, spawn,
    wait_for,
};

/// Starts who sends and who receives.
pub(super) fn start(
    context: Context,
    direction: Direction,
    rate: Rate,
    size: Bytes,
) -> anyhow::Result<Threads> {
    let port = context.port;
    let at_server = context
        .server
        .run(|| datagram_socket(port).map_err(std::io::Error::other))?;
    let namespace = context.server.clone();
    let (server_context, client_context) = (context.clone(), context);
    let gap = rate.time_for(size);
    let client_namespace = client_context.client.clone();
    match direction {
        Direction::Down => {
            let server = spawn(&namespace, "udp-server", move || {
                let Some(client) = first_sender(&server_context, &at_server)? else {
                    return Ok(0);
                };
                send(&server_context, &at_server, client, (gap, size))
            })?;
            let client = spawn(&client_namespace, "udp-client", move || {
                let socket = datagram_socket(0)?;
                wait_for(client_context.period.start);
                receive(&client_context, &socket, true).map(|tally| tally.finding(0))
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
                let sent = send(&client_context, &socket, to, (gap, size))?;
                let tally = receiver
                    .join()
                    .map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
                Ok(tally.finding(sent))
            })?;
            let nothing = std::thread::spawn(|| Ok(0));
            Ok((client, nothing))
        }
    }
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

fn send(
    context: &Context,
    socket: &UdpSocket,
    to: SocketAddr,
    (gap, size): (Duration, Bytes),
) -> anyhow::Result<u64> {
    let mut datagram = vec![0; usize::try_from(size.0)?];
    let (mut sent, mut asked_for) = (0u64, 0);
    let mut due = clock::now();
    while !context.period.is_over() {
        let now = clock::now();
        if due > now {
            std::thread::sleep(due.since(now).max(LEAST_SLEEP));
            continue;
        }
        datagram[..8].copy_from_slice(&sent.to_be_bytes());
        datagram[8..16].copy_from_slice(&now.as_nanos().to_be_bytes());
        // A full buffer or an unreachable network loses the datagram, as it would for an
        // application.
        let _ = socket.send_to(&datagram, to);
        sent += 1;
        if now < context.period.settled {
            asked_for = sent;
        }
        due += gap;
    }
    Ok(asked_for)
}

/// What a receiver has seen.
#[derive(Default)]
struct Tally {
    received: u64,
    reordered: u64,
    highest: Option<u64>,
    late: BTreeSet<u64>,
    delays: Vec<u64>,
}

impl Tally {
    /// Counts a datagram once; says whether it is new. One that is not asked for was sent shortly
    /// before the end.
    fn count(&mut self, number: u64, delay: Duration, is_asked_for: bool) -> bool {
        match self.highest {
            Some(highest) if number < highest => {
                if !self.late.insert(number) {
                    return false;
                }
                self.reordered += 1;
            }
            Some(highest) if number == highest => return false,
            _ => self.highest = Some(number),
        }
        self.received += u64::from(is_asked_for);
        self.delays
            .push(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
        true
    }

    fn finding(mut self, sent: u64) -> Finding {
        self.delays.sort_unstable();
        Finding::Udp {
            sent,
            received: self.received,
            loss: share_lost(sent, self.received),
            reordered: self.reordered,
            delay_p50_ms: quantile(&self.delays, 0.5),
            delay_p99_ms: quantile(&self.delays, 0.99),
        }
    }
}

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
            Ok(length) if length >= 16 => {
                let number = |at: usize| {
                    let mut bytes = [0; 8];
                    bytes.copy_from_slice(&buffer[at..at + 8]);
                    u64::from_be_bytes(bytes)
                };
                let sent = Instant::from_nanos(number(8));
                let is_asked_for = sent < context.period.settled;
                if tally.count(number(0), now.since(sent), is_asked_for) {
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

/// Waking up for every datagram would limit their number; those that became due meanwhile go out
/// together.
const LEAST_SLEEP: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_reordering_and_duplicates_once() {
        let mut tally = Tally::default();
        let fresh: Vec<bool> = [0, 2, 1, 1, 2, 3]
            .iter()
            .map(|n| tally.count(*n, Duration::from_millis(*n), *n < 3))
            .collect();
        assert_eq!(fresh, [true, true, true, false, false, true]);
        assert_eq!((tally.received, tally.reordered), (3, 1));
    }
}
