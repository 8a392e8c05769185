//! A video as datagrams, each marked with the layer of its picture.

use std::net::{SocketAddr, UdpSocket};
use std::thread::JoinHandle;

use hawser_linux::clock;
use hawser_netem::scenario::Direction;
use hawser_netem::video::Video;
use hawser_units::Instant;

use super::udp::{self, HEADER, LEAST_SLEEP, Tally};
use super::{Context, Finding, Threads, datagram_socket, server_address, spawn, wait_for};

/// Starts who sends and who receives; the client's thread says in the end what could be shown.
pub(super) fn start(context: Context, direction: Direction, video: Video) -> anyhow::Result<Threads> {
    let port = context.port;
    let at_server = context
        .server
        .run(|| datagram_socket(port).map_err(std::io::Error::other))?;
    let (server, client) = (context.server.clone(), context.client.clone());
    let at_end = context.clone();
    let client = match direction {
        Direction::Down => {
            let sender = context.clone();
            let source = spawn(&server, "video-server", move || {
                let to = udp::first_sender(&sender, &at_server)?;
                to.map_or(Ok(video.clone()), |to| send(&sender, &at_server, to, video))
            })?;
            spawn(&client, "video-client", move || {
                let socket = datagram_socket(0)?;
                wait_for(context.period.start);
                let tally = udp::receive(&context, &socket, true)?;
                Ok(finding(&joined(source)?, tally, at_end.period.end))
            })?
        }
        Direction::Up => {
            let receiver = context.clone();
            let sink = spawn(&server, "video-server", move || {
                udp::receive(&receiver, &at_server, false)
            })?;
            spawn(&client, "video-client", move || {
                let socket = datagram_socket(0)?;
                wait_for(context.period.start);
                let to = server_address(context.port).into();
                let video = send(&context, &socket, to, video)?;
                Ok(finding(&video, joined(sink)?, at_end.period.end))
            })?
        }
    };
    Ok((client, std::thread::spawn(|| Ok(0))))
}

/// Sends a video until the run is over; gives it back, as it knows what was sent.
fn send(context: &Context, socket: &UdpSocket, to: SocketAddr, mut video: Video) -> anyhow::Result<Video> {
    let mut buffer = vec![0; 2048];
    let mut layer = None;
    while let Some(due) = video.poll_timeout() {
        let now = clock::now();
        if context.period.is_over() {
            break;
        }
        if due > now {
            std::thread::sleep(due.since(now).max(LEAST_SLEEP));
            continue;
        }
        while let Some(part) = video.poll_transmit(now) {
            if layer != Some(part.layer) {
                udp::mark(socket, part.layer)?;
                layer = Some(part.layer);
            }
            let datagram = &mut buffer[..HEADER.max(part.bytes as usize)];
            udp::stamp(datagram, part.number, now);
            // A full buffer or an unreachable network loses the datagram, as it would for an
            // application.
            let _ = socket.send_to(datagram, to);
        }
    }
    Ok(video)
}

fn finding(video: &Video, tally: Tally, end: Instant) -> Finding {
    Finding::of_video(video.shown(&tally.into_arrivals(), end))
}

fn joined<T>(thread: JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    thread
        .join()
        .map_err(|_| anyhow::anyhow!("the other side panicked"))?
}
