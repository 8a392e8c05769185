//! Datagrams with numbers and send times: sender, receiver and results.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow};
use hawser_linux::clock;
use hawser_netem::scenario::{Direction, layer_code_point};
use hawser_units::{Duration, Instant};
use socket2::SockRef;

use super::{Context, Finding, Threads, datagram_socket, is_timeout, server_address, spawn, wait_for};

/// Sender of datagrams.
pub(super) trait Source: Send + 'static {
    /// Sends until the end of the run, and records what was sent.
    fn send(&mut self, context: &Context, socket: &UdpSocket, to: SocketAddr) -> anyhow::Result<()>;

    /// Returns the results of a run that ended at this time.
    fn finding(&self, tally: Tally, end: Instant) -> Finding;
}

/// Starts sender and receiver; the client's thread waits for the other and returns the results.
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
                Ok(join_server(sender)?.finding(tally, here.period.end))
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
                Ok(source.finding(join_server(receiver)?, here.period.end))
            })?
        }
    };
    Ok((client, std::thread::spawn(|| Ok(()))))
}

fn join_server<T>(server: JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    let result = server.join().map_err(|_| anyhow!("the server side panicked"))?;
    result.context("server side")
}

/// Waits until the client has reported its address.
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

/// Writes number and send time at the start of a datagram.
pub(super) fn stamp(datagram: &mut [u8], number: u64, now: Instant) {
    datagram[..8].copy_from_slice(&number.to_be_bytes());
    datagram[8..HEADER].copy_from_slice(&now.as_nanos().to_be_bytes());
}

/// Sets the code point of the layer on the following datagrams.
pub(super) fn mark(socket: &UdpSocket, layer: u8) -> std::io::Result<()> {
    SockRef::from(socket).set_tos_v4(u32::from(layer_code_point(layer)) << 2)
}

/// Observations of a receiver.
#[derive(Default)]
pub(super) struct Tally {
    highest: Option<u64>,
    late: BTreeSet<u64>,
    /// Number, send time and arrival time of each datagram, in order of arrival.
    arrivals: Vec<(u64, Instant, Instant)>,
}

impl Tally {
    /// Counts a datagram once; returns whether it is new.
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

    /// Returns number and delay of each arrival. Units: nanoseconds.
    pub(super) fn into_delays(self) -> Vec<(u64, u64)> {
        let delay = |sent: Instant, now: Instant| u64::try_from(now.since(sent).as_nanos());
        self.arrivals
            .into_iter()
            .map(|(number, sent, now)| (number, delay(sent, now).unwrap_or(u64::MAX)))
            .collect()
    }

    /// Returns number and time of each arrival.
    pub(super) fn into_arrivals(self) -> Vec<(u64, Instant)> {
        self.arrivals
            .into_iter()
            .map(|(number, _, now)| (number, now))
            .collect()
    }
}

/// Receives until the end of the run. `says_hello`: sends packets from which the other side learns
/// the destination.
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

/// Header of a datagram. Source: its number, and its send time, of 8 bytes each. Units: bytes.
pub(super) const HEADER: usize = 16;
/// Minimum sleep of the sender: waking up for every datagram would limit the rate, so datagrams
/// that become due meanwhile are sent together. Source: the default timer slack of Linux
/// (`init_task` in linux/init/init_task.c, 50,000 ns; prctl(2)), to which a shorter sleep is
/// extended anyway.
pub(super) const MIN_SLEEP: Duration = Duration::from_micros(50);

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
