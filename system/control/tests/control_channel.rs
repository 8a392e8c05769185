//! Client and hub over QUIC on the loopback interface: accepted and rejected clients, and the
//! effect of a restart.
#![allow(clippy::unwrap_used)]

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use hawser_config::Pool;
use hawser_config::identity::{Identity, KeyHash};
use hawser_control::client::{ConnectError, Established, Turn, connect};
use hawser_control::enrolment::{ClientStore, LimitChange, Own, SharedStore};
use hawser_control::hub::{HubControl, HubSettings};
use hawser_control::quic_socket::{Ports, SharedSocket};
use hawser_control::tls;
use hawser_dataplane::{Change, Command, ControlDatagram, Orders};
use hawser_proto::path::control::Control;
use hawser_units::{Bytes, Rate};
use hawser_wire::control::{Cipher, CloseReason, Hello, KeyExpiry, Limit, Message, Refusal, VERSION};
use hawser_wire::frame::Format;
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
    /// Orders to the data plane.
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
            controller: Control::default(),
            layer_rules: vec![],
            format: Format::Ip,
            path_mtu: 1500,
            session_timeout: Duration::from_secs(300),
            limits: hawser_config::LimitsConfig::default(),
            pairs: hawser_dataplane::Pairs::ONE,
        };
        let hub = HubControl::new(SharedStore::new(store), settings, orders);
        let endpoint = quinn::Endpoint::new_with_abstract_socket(
            tls::hub_endpoint_config(&identity),
            Some(tls::server_config(&identity).unwrap()),
            Arc::new(SharedSocket::new(Ports::of(socket).unwrap(), control)),
            Arc::new(quinn::TokioRuntime),
        )
        .unwrap();
        hawser_linux::tasks::spawn({
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

/// Stands in for the data plane, and reads QUIC datagrams from the socket.
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
        Command::Change(change) => match change {
            Change::AddSession { .. } => "add session",
            Change::RemoveSession { .. } => "remove session",
            Change::InstallKeys { .. } => "install keys",
            Change::OpenPath { .. } => "open path",
            Change::ClosePath { .. } => "close path",
            Change::SetScheduler { .. } => "set scheduler",
            Change::SetController { .. } => "set controller",
            Change::SetLayerRules { .. } => "set layer rules",
            Change::SetDeadlines { .. } => "set deadlines",
            Change::SetDeclared { .. } => "set declared",
            Change::SetCap { .. } => "set cap",
            Change::SetAirtime { .. } => "set airtime",
            Change::SetPause { .. } => "set pause",
            Change::SetPreference { .. } => "set preference",
            Change::SetLimit { .. } => "set limit",
            Change::SetClientPolicy(_) => "set client policy",
            Change::SetOtherClients(_) => "set other clients",
            Change::SetForms(_) => "set forms",
            Change::SetSubnets { .. } => "set subnets",
            Change::BeginWith { .. }
            | Change::GoOnWith { .. }
            | Change::SetDestinations { .. }
            | Change::Assign { .. }
            | Change::AddSocket { .. }
            | Change::RemoveSocket { .. }
            | Change::RebindPath { .. }
            | Change::RestoreSession { .. } => "other",
        },
        Command::HandOver(_) | Command::Snapshot(_) | Command::Stop => "other",
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
        format: Format::Ip,
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
        Err(error) => error.refusal().unwrap_or_else(|| panic!("{error}")),
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

    // A hub transfers packets, and rejects clients that use frames.
    let frames = Hello {
        format: Format::Ethernet,
        ..hello(None, None)
    };
    let refused = up(&hub, hub.key, &who, frames).await.err();
    assert!(
        matches!(refused, Some(ConnectError::Refused(Refusal::Format))),
        "{refused:?}"
    );

    // A second connection continues the session with new keys; the path remains. This client has a
    // CPU without AES.
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
    hub.control.revoke("alice", None).await.unwrap();
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

/// A key expires during a session, is renewed, and expires before a session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_expires_ends_its_session_until_it_is_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    let mut alice = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    let mut store = ClientStore::open(&dir.path().join("clients"), pool()).unwrap();
    let mut expire = |expiry| {
        let change = LimitChange {
            expiry: Some(expiry),
            ..LimitChange::default()
        };
        store.set_limits("alice", change).unwrap();
        hub.control.hold_against_store();
        expiry
    };
    let now = || {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let soon = KeyExpiry(now() + 2);
    for expiry in [Some(KeyExpiry(now() + 1_000)), None, Some(soon)] {
        let told = Message::KeyExpires(expire(expiry));
        assert_eq!(alice.stream.next().await.unwrap(), told);
    }
    assert!(!hub.saw("remove session"));
    while !hub.saw("remove session") {
        tokio::time::sleep(Duration::from_millis(50)).await;
        hub.control.hold_against_store();
    }
    assert!(now() >= soon.0, "it has ended before its time");
    assert_eq!(close_of(&mut alice.stream).await, CloseReason::Expired);
    for hello in [hello(None, None), hello(Some(token), Some(alice.welcome.session))] {
        let refused = up(&hub, hub.key, &who, hello).await.err().unwrap();
        assert_eq!(refused.refusal(), Some(Refusal::ExpiredKey));
        let said = format!("key expired on {soon}; ask the hub's administrator");
        assert_eq!(refused.to_string(), said);
    }
    assert_eq!(hub.control.clients()[0].state, "key expired");
    let later = expire(Some(KeyExpiry(now() + 1_000)));
    let mut again = up(&hub, hub.key, &who, hello(None, None)).await.unwrap();
    assert_eq!(again.welcome.inner_v4, alice.welcome.inner_v4);
    assert_eq!(again.stream.next().await.unwrap(), Message::KeyExpires(later));
    assert_eq!(hub.control.clients()[0].state, "enrolled");
    expire(Some(KeyExpiry(1)));
    assert_eq!(close_of(&mut again.stream).await, CloseReason::Expired);
    let counters = hub.control.counters();
    let refused = counters.iter().find(|(what, _)| *what == "refused_expired_key");
    assert_eq!(refused.map(|(_, count)| *count), Some(2));
}

async fn close_of(stream: &mut hawser_control::stream::ControlStream) -> CloseReason {
    loop {
        let next = tokio::time::timeout(Duration::from_secs(10), stream.next()).await;
        if let Message::Close(reason) = next.unwrap().unwrap() {
            return reason;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_when_its_enrolment_does_whoever_ended_that() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    for way in ["a file removed by hand", "another process", "damage"] {
        let who = Identity::generate().unwrap();
        let token = invite(dir.path(), "alice", DAY);
        let mut alice = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
        hub.control.hold_against_store();
        assert!(!hub.saw("remove session"), "before {way}");
        let path = dir.path().join("clients/alice.toml");
        match way {
            "another process" => ClientStore::open(&dir.path().join("clients"), pool())
                .unwrap()
                .revoke("alice")
                .unwrap(),
            "damage" => {
                std::fs::remove_file(&path).unwrap();
                std::fs::write(&path, "key = 7").unwrap();
            }
            _ => std::fs::remove_file(&path).unwrap(),
        }
        hub.control.hold_against_store();
        assert!(hub.saw("remove session"), "{way}");
        assert_eq!(close_of(&mut alice.stream).await, CloseReason::Revoked, "{way}");
        assert_eq!(refusal(&hub, &who, hello(None, None)).await, Refusal::NotEnrolled);
        hub.log.lock().unwrap().clear();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_enrolled_under_another_name_loses_the_old_names_session() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let (alice, bob) = (invite(dir.path(), "alice", DAY), invite(dir.path(), "bob", DAY));
    let mut first = up(&hub, hub.key, &who, hello(Some(alice), None)).await.unwrap();
    let second = up(&hub, hub.key, &who, hello(Some(bob), Some(first.welcome.session)))
        .await
        .unwrap();
    assert_ne!(second.welcome.session, first.welcome.session);
    assert!(hub.saw("remove session"));
    assert_eq!(close_of(&mut first.stream).await, CloseReason::Replaced);
    let names: Vec<_> = hub
        .control
        .clients()
        .into_iter()
        .map(|client| client.name)
        .collect();
    assert_eq!(names, ["bob"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_goodbye_ends_the_session_and_a_move_to_another_connection_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    let first = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    let resuming = hello(None, Some(first.welcome.session));
    let second = up(&hub, hub.key, &who, resuming).await.unwrap();
    first
        .stream
        .finish(&Message::Close(CloseReason::Superseded))
        .await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!hub.saw("remove session"));
    second.stream.finish(&Message::Close(CloseReason::Shutdown)).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(1);
    while !hub.saw("remove session") {
        assert!(tokio::time::Instant::now() < deadline, "the session goes on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(hub.control.clients()[0].session, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_without_a_word_is_waited_for_and_then_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    let gone = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    gone.connection.close(7_u8.into(), b"");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while hub.control.clients()[0].connected {
        assert!(tokio::time::Instant::now() < deadline, "still connected");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let now = std::time::Instant::now();
    hub.control.sweep(now + Duration::from_secs(290));
    assert!(!hub.saw("remove session"));
    hub.control.sweep(now + Duration::from_secs(310));
    assert!(hub.saw("remove session"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_messages_is_cut_off_and_a_new_connection_does_not_help() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let (who, other) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let (token, others) = (invite(dir.path(), "alice", DAY), invite(dir.path(), "bob", DAY));
    let mut alice = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    let mut bob = up(&hub, hub.key, &other, hello(Some(others), None))
        .await
        .unwrap();
    let mut answered = 0;
    let reason = loop {
        let mut said = Ok(());
        for number in 0..64 {
            said = said.and(alice.stream.send(&Message::Ping(number)).await);
        }
        let heard = loop {
            match alice.stream.next().await {
                Ok(Message::Pong(number)) => {
                    answered += 1;
                    if number == 63 {
                        break None;
                    }
                }
                Ok(Message::Close(reason)) => break Some(reason),
                other => panic!("{other:?}"),
            }
        };
        if let Some(reason) = heard {
            break reason;
        }
        assert!(answered < 10_000, "nobody minds");
    };
    assert_eq!(reason, CloseReason::Flood);
    assert!(answered >= 900, "an honest burst passes: {answered}");
    assert!(hub.control.counters().contains(&("closed_flood", 1)));
    assert_eq!(refusal(&hub, &who, hello(None, None)).await, Refusal::Flapping);
    bob.stream.send(&Message::Ping(5)).await.unwrap();
    assert_eq!(bob.stream.next().await.unwrap(), Message::Pong(5));
}

/// A thousand silent handshakes are from one address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_handshakes_of_one_address_keep_nobody_else_out() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let (stranger, who) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let endpoint = |address: &str| {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        let config = tls::client_endpoint_config();
        quinn::Endpoint::new(config, None, socket, Arc::new(quinn::TokioRuntime)).unwrap()
    };
    let crowd = endpoint("127.0.0.1");
    let mut silent = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let config = tls::client_config(&stranger, hub.key).unwrap();
        let connecting = crowd.connect_with(config, hub.address, tls::SERVER_NAME).unwrap();
        silent.spawn(async move { tokio::time::timeout(Duration::from_secs(2), connecting).await });
    }
    let mut held = Vec::new();
    while let Some(connection) = silent.join_next().await {
        held.extend(connection.unwrap().ok().and_then(Result::ok));
    }
    // A rejected connection remains at this end until the hub's close frame has arrived.
    let count_open = || held.iter().filter(|held| held.close_reason().is_none()).count();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(3);
    while count_open() > 32 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The limit of one key is smaller.
    assert!((1..=32).contains(&count_open()), "{} of 300", count_open());
    let token = invite(dir.path(), "alice", DAY);
    let config = tls::client_config(&who, hub.key).unwrap();
    let quiet = endpoint("127.0.0.2");
    let welcome = connect(
        &quiet,
        config,
        hub.address,
        hello(Some(token), None),
        &Turn::default(),
    )
    .await;
    assert!(welcome.is_ok(), "{:?}", welcome.err());
    let counters = hub.control.counters();
    let count = |what| counters.iter().find(|(name, _)| *name == what).unwrap().1;
    assert!(count("handshakes_asked_for_proof") > 0, "{counters:?}");
}

/// The handshake reveals neither the server's name nor the protocol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_handshake_names_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    let alice = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    let shown = alice.connection.handshake_data().unwrap();
    let shown = shown.downcast::<quinn::crypto::rustls::HandshakeData>().unwrap();
    assert_eq!(shown.protocol.as_deref(), Some(&b"h3"[..]));
    assert_eq!(shown.server_name, None);
    assert!(
        tls::SERVER_NAME.parse::<std::net::IpAddr>().is_ok(),
        "an address is not sent"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_told_its_limits_whenever_they_change_and_so_is_the_data_plane() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    let mut first = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    hub.control.hold_against_store();
    assert!(!hub.saw("set limit") && !hub.control.has_quotas());
    // Another process changes the store.
    let mut store = ClientStore::open(&dir.path().join("clients"), pool()).unwrap();
    let mut limit = |cap, quota| {
        let change = LimitChange {
            cap: Some(cap),
            quota: Some(quota),
            ..LimitChange::default()
        };
        store.set_limits("alice", change).unwrap();
        hub.control.hold_against_store();
    };
    let (cap, quota) = (Rate::from_mbps(8), Bytes(1_000));
    limit(Own::At(cap), Own::At(quota));
    assert_eq!(
        first.stream.next().await.unwrap(),
        Message::Limit(Limit::Cap(cap))
    );
    assert!(hub.saw("set limit") && hub.control.has_quotas());
    hub.control.set_used([("alice".to_owned(), quota)].into());
    let rate = Rate::from_bps(256_000);
    let slowed = Message::Limit(Limit::Slowed { rate, quota });
    assert_eq!(first.stream.next().await.unwrap(), slowed);
    let shown = hub.control.clients()[0].limits;
    assert_eq!((shown.state, shown.left_bytes), ("slowed", Some(0)));
    // A returning client is notified again.
    let resuming = hello(None, Some(first.welcome.session));
    let mut second = up(&hub, hub.key, &who, resuming).await.unwrap();
    assert_eq!(second.stream.next().await.unwrap(), slowed);
    limit(Own::Unlimited, Own::Unlimited);
    let lifted = Message::Limit(Limit::Unlimited);
    assert_eq!(second.stream.next().await.unwrap(), lifted);
    assert!(!hub.control.has_quotas());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_hears_which_subnets_lead_to_it_also_when_they_go_while_it_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(dir.path(), 0);
    let who = Identity::generate().unwrap();
    let token = invite(dir.path(), "alice", DAY);
    let mut first = up(&hub, hub.key, &who, hello(Some(token), None)).await.unwrap();
    assert!(!hub.saw("set subnets"));
    let mut store = ClientStore::open(&dir.path().join("clients"), pool()).unwrap();
    let subnet = "192.168.7.0/24 *".parse().unwrap();
    let mut set = |is_on| {
        store.set_subnet("alice", &subnet, is_on).unwrap();
        hub.control.hold_against_store();
    };
    set(true);
    let told = Message::Subnets(vec![subnet.net]);
    assert_eq!(first.stream.next().await.unwrap(), told);
    assert!(hub.saw("set subnets"));
    let resuming = hello(None, Some(first.welcome.session));
    let mut second = up(&hub, hub.key, &who, resuming.clone()).await.unwrap();
    assert_eq!(second.stream.next().await.unwrap(), told);
    drop(second);
    set(false);
    let mut third = up(&hub, hub.key, &who, resuming).await.unwrap();
    assert_eq!(third.stream.next().await.unwrap(), Message::Subnets(vec![]));
}
