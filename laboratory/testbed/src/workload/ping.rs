//! Small requests and echoes over UDP at a fixed interval.

use std::net::UdpSocket;

use anyhow::Context as _;
use hawser_linux::clock;
use hawser_units::{Duration, Instant};

use super::{
    Context, Finding, RoundTrips, Threads, datagram_socket, is_timeout, quantile, server_address, spawn,
    wait_for,
};

/// Starts client and server.
pub(super) fn start(context: Context, interval: Duration) -> anyhow::Result<Threads> {
    let port = context.port;
    let echo = context
        .server
        .run(|| datagram_socket(port).map_err(std::io::Error::other))?;
    let namespace = context.server.clone();
    let at_server = context.clone();
    let server = spawn(&namespace, "ping-server", move || answer(&at_server, &echo))?;
    let namespace = context.client.clone();
    let client = spawn(&namespace, "ping-client", move || {
        let socket = datagram_socket(0)?;
        ask(&context, &socket, interval)
    })?;
    Ok((client, server))
}

fn answer(context: &Context, socket: &UdpSocket) -> anyhow::Result<()> {
    let mut buffer = [0u8; 128];
    while !context.period.is_over() {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                let _ = socket.send_to(&buffer[..length], from);
            }
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
    Ok(())
}

fn ask(context: &Context, socket: &UdpSocket, interval: Duration) -> anyhow::Result<Finding> {
    wait_for(context.period.start);
    let server = server_address(context.port);
    let mut trips: Vec<u64> = Vec::new();
    let (mut sent, mut due) = (0u64, clock::now());
    while !context.period.is_over() {
        let now = clock::now();
        if now >= due {
            let _ = socket.send_to(&now.as_nanos().to_be_bytes().repeat(7), server);
            sent += 1;
            due += interval;
            continue;
        }
        let timeout = due.since(now).clamp(Duration::from_micros(1), super::TIMEOUT);
        socket.set_read_timeout(Some(timeout))?;
        if let Some(asked) = read_echo(socket)? {
            trips.push(u64::try_from(clock::now().since(asked).as_nanos()).unwrap_or(u64::MAX));
        }
    }
    trips.sort_unstable();
    let rtt_ms = (!trips.is_empty()).then(|| RoundTrips {
        min: quantile(&trips, 0.0),
        p50: quantile(&trips, 0.5),
        p99: quantile(&trips, 0.99),
    });
    Ok(Finding::Ping {
        sent,
        received: trips.len() as u64,
        rtt_ms,
    })
}

/// Returns the send time of the next echo's request; `None` if none arrives in time.
fn read_echo(socket: &UdpSocket) -> anyhow::Result<Option<Instant>> {
    let mut buffer = [0u8; 128];
    match socket.recv(&mut buffer) {
        Ok(length) if length >= 8 => {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&buffer[..8]);
            Ok(Some(Instant::from_nanos(u64::from_be_bytes(bytes))))
        }
        Ok(_) => Ok(None),
        Err(error) if is_timeout(&error) => Ok(None),
        Err(error) => Err(error).context("cannot receive"),
    }
}
