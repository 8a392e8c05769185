//! Tests of both ends over loopback, and of unknown clients at the listener.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use hawser_config::identity::Identity;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_websockets::{ClientBuilder, Message};

use super::dial::{Dialer, Plan, TlsState};
use super::listen::{Listening, PresentedCertificate};
use super::{HEAD, certificate};
use crate::event_thread::EventThread;
use crate::relay_connections::STRANGE_FOR;
use crate::relays::LONGEST;

/// Timeout of tests; unknown clients are disconnected and handshakes are complete well within it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Creates the hub's UDP port as an echo server.
fn echo() -> SocketAddr {
    let hub = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = hub.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((len, from)) = hub.recv_from(&mut buffer) {
            // The test ends it.
            if &buffer[..len] == b"end" {
                return;
            }
            let _ = hub.send_to(&buffer[..len], from);
        }
    });
    at
}

fn listening(hub: SocketAddr) -> (Listening, Identity, SocketAddr) {
    let identity = Identity::generate().unwrap();
    let shown = PresentedCertificate::new(&identity, None).unwrap();
    let listening = Listening::start("127.0.0.1:0".parse().unwrap(), hub, shown).unwrap();
    let at = listening.status()["listen"].as_str().unwrap().parse().unwrap();
    (listening, identity, at)
}

type Stream = tokio_rustls::client::TlsStream<TcpStream>;

async fn tls(at: SocketAddr) -> Stream {
    let stream = TcpStream::connect(at).await.unwrap();
    let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
    let connector = TlsConnector::from(certificate::client().unwrap());
    connector.connect(name, stream).await.unwrap()
}

async fn websocket(at: SocketAddr) -> tokio_websockets::WebSocketStream<Stream> {
    let stream = tls(at).await;
    let builder = ClientBuilder::new().uri("wss://hub.example.org/").unwrap();
    builder.connect_on(stream).await.unwrap().0
}

/// Sends a datagram and returns its echo.
async fn ask(stream: &mut tokio_websockets::WebSocketStream<Stream>, datagram: &[u8]) -> Option<Vec<u8>> {
    stream.send(Message::binary(datagram.to_vec())).await.ok()?;
    let answer = tokio::time::timeout(TIMEOUT, stream.next()).await.unwrap()?;
    Some(answer.ok()?.as_payload().to_vec())
}

#[tokio::test]
async fn datagrams_go_to_the_hub_s_port_and_back() {
    let (listening, _, at) = listening(echo());
    let mut stream = websocket(at).await;
    for len in [1, 40, 1_472, 9_000] {
        let datagram = vec![len as u8 & 0x3f; len];
        assert_eq!(ask(&mut stream, &datagram).await.unwrap(), datagram);
    }
    assert_eq!(listening.connections().counts().1, 1);
}

#[tokio::test]
async fn keys_are_agreed_on_with_ml_kem_beside_x25519() {
    let (_listening, _, at) = listening(echo());
    let stream = tls(at).await;
    let agreed = stream.get_ref().1.negotiated_key_exchange_group();
    assert_eq!(
        agreed.map(|group| group.name()),
        Some(rustls::NamedGroup::X25519MLKEM768)
    );
}

#[tokio::test]
async fn many_datagrams_keep_their_bounds() {
    let (_listening, _, at) = listening(echo());
    let mut stream = websocket(at).await;
    let datagrams: Vec<Vec<u8>> = (0..200_usize)
        .map(|n| vec![(n % 64) as u8; if n % 7 == 0 { 300 } else { 1_200 }])
        .collect();
    // The chunks have the number of datagrams that the kernel buffers for the echo.
    for some in datagrams.chunks(20) {
        for datagram in some {
            stream.feed(Message::binary(datagram.clone())).await.unwrap();
        }
        stream.flush().await.unwrap();
        for datagram in some {
            let answer = tokio::time::timeout(TIMEOUT, stream.next())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(&answer.unwrap().as_payload()[..], datagram);
        }
    }
}

/// Checks that the connection ends, regardless of further data.
async fn ends(mut stream: impl tokio::io::AsyncRead + Unpin) {
    let mut rest = Vec::new();
    let over = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await;
    assert!(over.is_ok(), "the listener holds on to a stranger");
}

#[tokio::test]
async fn strangers_are_cut_off_and_others_are_not_harmed() {
    let (listening, _, at) = listening(echo());
    let mut other = websocket(at).await;
    // No TLS.
    let mut garbage = TcpStream::connect(at).await.unwrap();
    garbage.write_all(&[0x47; 5_000]).await.unwrap();
    ends(garbage).await;
    // TLS, and then no WebSocket.
    let mut page = tls(at).await;
    page.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(TIMEOUT, page.read_to_end(&mut answer))
        .await
        .unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
    // An endless head is not buffered.
    let mut endless = tls(at).await;
    let mut sent = 0;
    while endless.write_all(&[b'a'; 1_024]).await.is_ok() && sent < 64 << 20 {
        sent += 1_024;
    }
    assert!(sent < 64 << 20, "a head of {sent} bytes, and the bound is {HEAD}");
    // A message that is too long.
    let mut long = websocket(at).await;
    assert!(
        ask(&mut long, &vec![0; LONGEST + 1])
            .await
            .is_none_or(|said| said.len() < 200)
    );
    // Endless pings whose answers are not read.
    let mut chatter = websocket(at).await;
    let mut pings = 0;
    while chatter.send(Message::ping(&b"are you there"[..])).await.is_ok() && pings < 1_000_000 {
        pings += 1;
    }
    assert!(pings < 1_000_000, "nobody minds");
    assert_eq!(ask(&mut other, &[7; 100]).await.unwrap(), [7; 100]);
    drop((endless, long, chatter));
    let since = Instant::now();
    while listening.connections().counts().1 > 1 {
        assert!(
            since.elapsed() < TIMEOUT,
            "{:?}",
            listening.connections().counts()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The echo returns datagrams that begin like a data packet; only these make a client known.
#[tokio::test]
async fn who_hears_no_data_packet_is_cut_off() {
    let (listening, _, at) = listening(echo());
    let (mut known, mut stranger) = (websocket(at).await, websocket(at).await);
    let since = Instant::now();
    let mut is_cut_off = false;
    while !is_cut_off && since.elapsed() < TIMEOUT {
        assert!(ask(&mut known, &[0; 60]).await.is_some(), "a client is cut off");
        is_cut_off = ask(&mut stranger, &[0xc0; 60])
            .await
            .is_none_or(|said| said.len() != 60);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(is_cut_off);
    assert_eq!(listening.connections().counts().0, 1);
}

/// Slow or partial data of an unknown client gains no time: the first connection is disconnected
/// first.
#[tokio::test]
async fn a_stranger_s_time_begins_with_its_connection() {
    let (_listening, _, at) = listening(echo());
    let slow = TcpStream::connect(at).await.unwrap();
    // Most of the time passes before TLS begins.
    tokio::time::sleep(STRANGE_FOR * 2 / 3).await;
    let mut quick = websocket(at).await;
    let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
    let connector = TlsConnector::from(certificate::client().unwrap());
    let slow = connector.connect(name, slow).await.unwrap();
    let builder = ClientBuilder::new().uri("wss://hub.example.org/").unwrap();
    let mut slow = builder.connect_on(slow).await.unwrap().0;
    let ended_first = tokio::select! {
        _ = slow.next() => "slow",
        _ = quick.next() => "quick",
    };
    assert_eq!(ended_first, "slow");
}

/// The client's end needs a daemon's permissions for the device and the mark.
#[tokio::test]
async fn a_dialer_connects_again_and_the_relay_demultiplexes() {
    if !hawser_testing::require(hawser_linux::process::is_root(), "needs root") {
        return;
    }
    let hub = echo();
    let (listening, identity, at) = listening(hub);
    let relays = EventThread::start("hawser-tls").unwrap();
    let (news, mut heard) = mpsc::unbounded_channel();
    let plan = Plan {
        device: "lo".to_owned(),
        remote: at,
        host: "hub.example.org".to_owned(),
        proxy: None,
        hub: identity.hash(),
    };
    let mut dialer = Dialer::start(&relays, plan, 7, news).unwrap();
    let (data, control) = dialer.sockets.take().unwrap();
    let up = async |heard: &mut mpsc::UnboundedReceiver<(i32, TlsState)>| {
        loop {
            let news = tokio::time::timeout(TIMEOUT, heard.recv())
                .await
                .unwrap()
                .unwrap();
            if news == (7, TlsState::Up { is_hubs_key: true }) {
                return;
            }
        }
    };
    up(&mut heard).await;
    let back = |socket: &UdpSocket, datagram: &[u8]| {
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.send_to(datagram, dialer.relay).unwrap();
        let mut buffer = [0; 2_000];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from), (datagram, dialer.relay));
    };
    back(&data, &[0x05; 1_400]);
    back(&control, &[0xc5; 1_200]);
    // Datagrams of other programs on this machine are ignored.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(&[0xc6; 50], dialer.relay).unwrap();
    back(&control, &[0xc7; 50]);
    // The hub's process ends, and another one starts.
    drop(listening);
    let shown = PresentedCertificate::new(&identity, None).unwrap();
    let started = Instant::now();
    let _listening = loop {
        match Listening::start(at, hub, shown.clone()) {
            Ok(listening) => break listening,
            Err(error) => assert!(started.elapsed() < TIMEOUT, "{error:#}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    up(&mut heard).await;
    back(&data, &[0x06; 1_400]);
}
