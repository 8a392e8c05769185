//! Bulk TCP at the networks' full rate until the end of the run.

use std::io::Read;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use hawser_linux::clock;
use hawser_netem::scenario::Direction;
use hawser_units::Duration;
use socket2::Socket;

use super::{
    Context, Finding, Threads, any_address, is_timeout, server_address, spawn, stream_socket, wait_for,
};

/// Starts the server and `streams` connections.
pub(super) fn start(
    context: Context,
    direction: Direction,
    streams: u32,
    congestion: &str,
) -> anyhow::Result<Threads> {
    let listener = context
        .server
        .run(|| listen(&context, streams, congestion).map_err(std::io::Error::other))?;
    let namespace = context.server.clone();
    let at_server = context.clone();
    let server = spawn(&namespace, "tcp-server", move || {
        accept(&at_server, &listener, direction, streams)
    })?;
    let namespace = context.client.clone();
    let congestion = congestion.to_owned();
    let client = spawn(&namespace, "tcp-client", move || {
        connect_all(&context, direction, streams, &congestion)
    })?;
    Ok((client, server))
}

fn listen(context: &Context, streams: u32, congestion: &str) -> anyhow::Result<Socket> {
    let listener = stream_socket(context.is_multipath)?;
    set_congestion(&listener, congestion)?;
    listener.bind(&any_address(context.port).into())?;
    listener.listen(i32::try_from(streams).unwrap_or(i32::MAX))?;
    // `accept` of multipath TCP ignores the timeout for reads.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn accept(context: &Context, listener: &Socket, direction: Direction, streams: u32) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let mut accepted = 0;
        while (accepted < streams || context.is_reopened) && !context.period.is_over() {
            match listener.accept() {
                Ok((stream, _)) => {
                    accepted += 1;
                    scope.spawn(move || match direction {
                        Direction::Down => send(context, &stream),
                        Direction::Up => receive(context, &stream),
                    });
                }
                Err(error) if is_timeout(&error) => std::thread::sleep(ACCEPT_INTERVAL),
                Err(error) => return Err(error).context("cannot accept"),
            }
        }
        Ok(())
    })
}

fn connect_all(
    context: &Context,
    direction: Direction,
    streams: u32,
    congestion: &str,
) -> anyhow::Result<Finding> {
    wait_for(context.period.start);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..streams)
            .map(|_| {
                scope.spawn(|| match context.is_reopened {
                    true => {
                        reopen(context, direction, congestion);
                        Ok(())
                    }
                    false => transfer(context, direction, congestion),
                })
            })
            .collect();
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a stream panicked"))??;
        }
        Ok(Finding::Tcp { streams })
    })
}

fn transfer(context: &Context, direction: Direction, congestion: &str) -> anyhow::Result<()> {
    let stream = connect(context, congestion)?;
    match direction {
        Direction::Down => receive(context, &stream),
        Direction::Up => send(context, &stream),
    }
    Ok(())
}

fn reopen(context: &Context, direction: Direction, congestion: &str) {
    while !context.period.is_over() {
        // The next connection may use another network, so any error is ignored.
        let _ = transfer(context, direction, congestion);
        std::thread::sleep(super::TIMEOUT);
    }
}

fn connect(context: &Context, congestion: &str) -> anyhow::Result<Socket> {
    let stream = stream_socket(context.is_multipath)?;
    set_congestion(&stream, congestion)?;
    if let Some(device) = &context.device {
        let bound = stream.bind_device(Some(device.as_bytes()));
        bound.with_context(|| format!("cannot use {device} alone"))?;
    }
    let address = server_address(context.port);
    let timeout = context
        .period
        .end
        .since(clock::now())
        .min(CONNECT_TIMEOUT)
        .max(Duration::from_millis(1));
    // `connect` of multipath TCP ignores the timeout for writes.
    stream
        .connect_timeout(&address.into(), timeout)
        .with_context(|| format!("cannot connect to {address}"))?;
    Ok(stream)
}

fn send(context: &Context, stream: &Socket) {
    let block: Arc<[u8]> = vec![0; BLOCK].into();
    while !context.period.is_over() {
        match stream.send(&block) {
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            Err(_) => return,
        }
    }
}

fn receive(context: &Context, stream: &Socket) {
    let mut stream = stream;
    // Reads as an application does: without the kernel's copy, every system would look faster,
    // plain TCP most.
    let mut block = vec![0; BLOCK];
    while !context.period.is_over() {
        match stream.read(&mut block) {
            Ok(0) => return,
            Ok(bytes) => context.recorder.record(clock::now(), bytes as u64),
            Err(error) if is_timeout(&error) => {}
            Err(_) => return,
        }
    }
}

fn set_congestion(socket: &Socket, name: &str) -> anyhow::Result<()> {
    // An MPTCP socket accepts any name of a congestion control, so a plain socket checks it first.
    let is_known = stream_socket(false)?.set_tcp_congestion(name.as_bytes());
    if let Err(error) = is_known.and_then(|()| socket.set_tcp_congestion(name.as_bytes())) {
        let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        bail!(
            "congestion control {name:?} is refused ({error}); this kernel has {}",
            known.unwrap_or_default().trim()
        );
    }
    Ok(())
}

/// Maximum size of one system call. Units: bytes. Source: our choice; smaller ones cost more system
/// calls, larger ones only take memory.
const BLOCK: usize = 256 * 1024;
/// Poll interval of connections, short in comparison with any round trip of interest. Source: our
/// choice; a shorter one takes processor time.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(1);
/// Time limit of a connection attempt. Source: our choice, two retransmissions after 1 and 3 s (RFC
/// 6298 section 2).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
