//! Client and hub over QUIC on the loopback interface: who gets in, who does not, and what a restart changes.
#![allow(clippy::unwrap_used)]

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use hawser_node::control::client::{ConnectError, Established, Turn, connect};
use hawser_node::control::hub::{HubControl, HubSettings};
use hawser_node::control::quic_socket::SharedSocket;
use hawser_node::control::tls;
use hawser_node::dataplane::{Command, ControlDatagram, Orders};
use hawser_node::enrolment::{ClientStore, Pool};
use hawser_node::identity::{Identity, KeyHash};
use hawser_wire::control::{Cipher, CloseReason, Hello, Message, Refusal, VERSION};
use quinn_udp::{RecvMeta, UdpSocketState};
use tokio::sync::mpsc;

const DAY: Duration = Duration::from_secs(86_400);

fn pool() -> Pool {
    Pool {
        v4: ("100.96.0.0".parse().unwrap(), 16),
        v6: Some(("fd00::".parse().unwrap(), 64)),
    }
}

struct Hub {
    control: HubControl,
    _endpoint: quinn::Endpoint,
    address: SocketAddr,
    key: KeyHash,
    /// What the data plane was told.
    log: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    fn start(dir: &Path, port: u16) -> Self {
        let identity = Identity::load_or_create(&dir.join("hub.key")).unwrap();
        let socket = Arc::new(UdpSocket::bind(("127.0.0.1", port)).unwrap());
        let address = socket.local_addr().unwrap();
        let control = read_control(&socket);
        let log = Arc::new(Mutex::new(Vec::new()));
        let orders: Orders = {
            let log = log.clone();
            Arc::new(move |command| log.lock().unwrap().push(name(&command).to_owned()))
        };
        let store = ClientStore::open(&dir.join("clients"), pool()).unwrap();
        let settings = HubSettings {
            pool: pool(),
            dns: vec![],
            mtu: 1432,
            schedulers: vec![],
        };
        let hub = HubControl::new(store, settings, orders);
        let endpoint = quinn::Endpoint::new_with_abstract_socket(
            tls::hub_endpoint_config(&identity),
            Some(tls::server_config(&identity).unwrap()),
            Arc::new(SharedSocket::new(socket, control).unwrap()),
            Arc::new(quinn::TokioRuntime),
        )
        .unwrap();
        tokio::spawn({
            let (hub, endpoint) = (hub.clone(), endpoint.clone());
            async move { hub.serve(&endpoint).await }
        });
        Self {
            control: hub,
            _endpoint: endpoint,
            address,
            key: identity.hash(),
            log,
        }
    }

    fn saw(&self, order: &str) -> bool {
        self.log.lock().unwrap().iter().any(|seen| seen == order)
    }
}

/// Does what the data plane does for the control channel: takes QUIC datagrams off the socket.
fn read_control(socket: &Arc<UdpSocket>) -> mpsc::Receiver<ControlDatagram> {
    let (sender, receiver) = mpsc::channel(1024);
    let socket = Arc::downgrade(socket);
    std::thread::spawn(move || {
        let state = UdpSocketState::new((&*socket.upgrade().unwrap()).into()).unwrap();
        let mut buffer = [0; 65_536];
        while let Some(socket) = socket.upgrade() {
            let mut meta = [RecvMeta::default()];
            match state.recv((&*socket).into(), &mut [IoSliceMut::new(&mut buffer)], &mut meta) {
                Ok(_) => {
                    for bytes in buffer[..meta[0].len].chunks(meta[0].stride) {
                        let (from, bytes) = (meta[0].addr, bytes.to_vec());
                        let _ = sender.try_send(ControlDatagram {
                            from,
                            to: None,
                            ecn: 0,
                            bytes,
                        });
                    }
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    });
    receiver
}

fn name(command: &Command) -> &'static str {
    match command {
        Command::AddSession { .. } => "add session",
        Command::RemoveSession { .. } => "remove session",
        Command::InstallKeys { .. } => "install keys",
        Command::OpenPath { .. } => "open path",
        Command::ClosePath { .. } => "close path",
        Command::SetScheduler { .. } => "set scheduler",
        Command::SetCap { .. } => "set cap",
        Command::AddSocket { .. }
        | Command::RemoveSocket { .. }
        | Command::RebindPath { .. }
        | Command::Snapshot(_)
        | Command::Stop => "other",
    }
}

fn invite(dir: &Path, who: &str, lifetime: Duration) -> [u8; 16] {
    let mut store = ClientStore::open(&dir.join("clients"), pool()).unwrap();
    store.invite(who, lifetime, SystemTime::now()).unwrap().0
}

fn hello(token: Option<[u8; 16]>, resume: Option<u64>) -> Hello {
    Hello {
        version: VERSION,
        enrol_token: token,
        resume,
        prefers: Cipher::Aes256Gcm,
        name_hint: "test".to_owned(),
    }
}

async fn up(hub: &Hub, key: KeyHash, who: &Identity, hello: Hello) -> Result<Established, ConnectError> {
    attempt(hub, key, who, hello, &Turn::default()).await
}

async fn attempt(
    hub: &Hub,
    key: KeyHash,
    who: &Identity,
    hello: Hello,
    turn: &Turn,
) -> Result<Established, ConnectError> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let endpoint = quinn::Endpoint::new(
        tls::client_endpoint_config(),
        None,
        socket,
        Arc::new(quinn::TokioRuntime),
    )
    .unwrap();
    connect(
        &endpoint,
        tls::client_config(who, key).unwrap(),
        hub.address,
        hello,
        turn,
    )
    .await
}

async fn refusal(hub: &Hub, who: &Identity, hello: Hello) -> Refusal {
    match up(hub, hub.key, who, hello).await {
        Err(ConnectError::Refused(refusal)) => refusal,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("let in"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_enrols_opens_a_path_and_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    let mut first = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    assert_eq!(first.welcome.inner_v4, ("100.96.0.2".parse().unwrap(), 16));
    assert_eq!(first.welcome.epoch, 0);
    assert_ne!(first.keys.send, first.keys.receive);
    first
        .stream
        .send(&Message::PathOpen {
            path: 0,
            receive_index: 7,
        })
        .await
        .unwrap();
    let Message::PathOpened {
        path: 0,
        receive_index,
    } = first.stream.next().await.unwrap()
    else {
        panic!("no answer");
    };
    assert_ne!(receive_index, 7);
    assert!(hub.saw("open path") && hub.saw("install keys"));

    // A second connection carries the session on with new keys; the path stays. This one runs on a CPU without AES.
    let resuming = Hello {
        prefers: Cipher::ChaCha20Poly1305,
        ..hello(None, Some(first.welcome.session))
    };
    let mut second = up(&hub, hub.key, &who, resuming).await.unwrap();
    assert_eq!(second.welcome.cipher, Cipher::ChaCha20Poly1305);
    assert_eq!(second.keys.cipher, Cipher::ChaCha20Poly1305);
    assert_eq!(second.welcome.session, first.welcome.session);
    assert_eq!(second.welcome.epoch, 1);
    assert_ne!(second.keys.send, first.keys.send);
    second
        .stream
        .send(&Message::PathOpen {
            path: 0,
            receive_index: 7,
        })
        .await
        .unwrap();
    assert_eq!(
        second.stream.next().await.unwrap(),
        Message::PathOpened {
            path: 0,
            receive_index
        }
    );
    assert!(!hub.saw("remove session"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_attempts_at_once_only_one_is_let_in() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    drop(up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap());

    let turn = Turn::default();
    let attempt = || Box::pin(attempt(&hub, hub.key, &who, hello(None, None), &turn));
    let (mut one, mut other) = (attempt(), attempt());
    let (welcome, second) = tokio::select! {
        result = &mut one => (result, other),
        result = &mut other => (result, one),
    };
    let mut welcome = welcome.unwrap();
    let heard = async {
        tokio::select! {
            _ = second => "a second welcome",
            _ = welcome.stream.next() => "a word from the hub",
        }
    };
    let heard = tokio::time::timeout(Duration::from_millis(500), heard).await;
    assert!(heard.is_err(), "{heard:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_stay_out() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let (alice, mallory) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let token = invite(dir.path(), "alice", DAY);
    up(&hub, hub.key, &alice, hello(Some(token), None)).await.unwrap();

    assert_eq!(
        refusal(&hub, &mallory, hello(None, None)).await,
        Refusal::NotEnrolled
    );
    assert_eq!(
        refusal(&hub, &mallory, hello(Some([0; 16]), None)).await,
        Refusal::UnknownToken
    );
    assert_eq!(
        refusal(&hub, &mallory, hello(Some(token), None)).await,
        Refusal::UsedToken
    );
    let stale = invite(dir.path(), "bob", Duration::ZERO);
    assert_eq!(
        refusal(&hub, &mallory, hello(Some(stale), None)).await,
        Refusal::ExpiredToken
    );
    let other = Hello {
        version: 99,
        ..hello(None, None)
    };
    assert_eq!(refusal(&hub, &alice, other).await, Refusal::Version);

    let wrong = up(&hub, KeyHash([1; 32]), &alice, hello(None, None)).await;
    assert!(matches!(wrong, Err(ConnectError::HubKey(_))), "{:?}", wrong.err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocation_ends_a_session_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    let mut alice = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    hub.control.revoke("alice").unwrap();
    assert!(hub.saw("remove session"));
    assert_eq!(
        alice.stream.next().await.unwrap(),
        Message::Close(CloseReason::Revoked)
    );
    assert_eq!(refusal(&hub, &who, hello(None, None)).await, Refusal::NotEnrolled);
    assert_eq!(
        refusal(&hub, &who, hello(Some(token), None)).await,
        Refusal::UnknownToken
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_of_two_machines_with_one_identity_wins() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    let mut held = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    for _ in 0..5 {
        let next = up(&hub, hub.key, &who, hello(None, None)).await.unwrap();
        assert_eq!(
            held.stream.next().await.unwrap(),
            Message::Close(CloseReason::Replaced)
        );
        assert_eq!(next.welcome.inner_v4, held.welcome.inner_v4);
        held = next;
    }
    assert_eq!(refusal(&hub, &who, hello(None, None)).await, Refusal::Flapping);
    assert_eq!(hub.control.clients()[0].replaced, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_peer_is_shown_the_door() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    let mut alice = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    alice
        .stream
        .send(&Message::PathOpened {
            path: 1,
            receive_index: 1,
        })
        .await
        .unwrap();
    assert_eq!(
        alice.stream.next().await.unwrap(),
        Message::Close(CloseReason::Protocol)
    );
}
