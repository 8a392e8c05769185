//! The side that joins: finds the access point's box on each link, and keeps a session with it.

use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV6};
use std::time::Duration;

use anyhow::Context;
use hawser_linux::links::Link;
use hawser_linux::netlink::{Network, NextHop};
use hawser_proto::discovery::Heard;
use hawser_proto::session::{ClientAction, ClientSession, NetworkId, SessionConfig};
use hawser_units::{Instant, PathId};
use hawser_wire::control::{CloseReason, Hello, Message, Refusal, VERSION};
use hawser_wire::frame::Format;
use serde_json::json;
use tokio::sync::mpsc;

use super::links::Change;
use super::{Node, Sources, trust};
use crate::client::PLANE_ENDED;
use crate::client::networks::Networks;
use crate::client::reach::{Call, Line, News, Outcome, Reach};
use crate::control::client::{ConnectError, Established, Turn};
use crate::control::tls;
use crate::control_socket::Asked;
use crate::identity::{KeyHash, random};
use hawser_dataplane::{Event, PathState, Role, SessionId};

struct Joining {
    own: Node,
    /// The access point's box that is spoken to, and how.
    to: Option<(KeyHash, quinn::ClientConfig)>,
    machine: ClientSession,
    networks: Networks,
    /// The network of each link on which the other box was found.
    attached: BTreeMap<u32, NetworkId>,
    reach: Reach,
    line: Option<Line>,
    lines: u64,
    news: mpsc::UnboundedSender<(u64, News)>,
    incoming: mpsc::UnboundedReceiver<(u64, News)>,
    retry_at: Option<tokio::time::Instant>,
    notice: Option<String>,
}

pub(super) async fn run(own: Node, (mut plane, mut socket, mut signals): Sources) -> anyhow::Result<()> {
    let (news, incoming) = mpsc::unbounded_channel();
    let mut this = Joining {
        to: None,
        machine: ClientSession::new(SessionConfig::default()),
        networks: Networks::new(own.orders.clone()),
        attached: BTreeMap::new(),
        reach: Reach::new(),
        line: None,
        lines: 0,
        news,
        incoming,
        retry_at: None,
        notice: None,
        own,
    };
    loop {
        let deadline = this.deadline();
        tokio::select! {
            changes = this.own.links.next() => this.on_links(changes?),
            outcome = this.reach.next() => this.on_outcome(outcome),
            Some((line, news)) = this.incoming.recv() => this.on_news(line, news),
            event = plane.events.recv() => this.on_event(&event.context(PLANE_ENDED)?),
            Some(asked) = socket.requests.recv() => if this.on_asked(asked) { break },
            () = tokio::time::sleep_until(deadline) => this.on_deadline(),
            reload = signals.next() => if !reload { break },
        }
        this.carry_out();
    }
    if let Some(line) = this.line.take() {
        let _ = tokio::time::timeout(GOODBYE, line.close(CloseReason::Shutdown)).await;
    }
    Ok(())
}

impl Joining {
    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.own.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn deadline(&self) -> tokio::time::Instant {
        let machine = self.machine.poll_timeout().map(|(at, _)| {
            tokio::time::Instant::from_std(self.own.started + Duration::from_nanos(at.as_nanos()))
        });
        let far = tokio::time::Instant::now() + Duration::from_secs(60);
        let all = [machine, self.retry_at].into_iter().flatten();
        all.fold(far, std::cmp::Ord::min)
    }

    fn on_deadline(&mut self) {
        let now = self.now();
        self.machine.handle_timeout(now);
        if self.retry_at.is_some_and(|at| at <= tokio::time::Instant::now()) {
            self.seek(None);
        }
    }

    fn on_links(&mut self, changes: Vec<Change>) {
        for change in changes {
            if let Change::Down(link) = change {
                self.detach(link.index);
            }
        }
        self.choose();
        let Some((key, _)) = self.to else { return };
        let up: Vec<Link> = self.own.links.up().cloned().collect();
        let heard: Vec<Heard> = self.own.links.heard().copied().collect();
        for link in up {
            let by_link = heard
                .iter()
                .find(|heard| heard.link == link.index && heard.key == key.0);
            let Some(heard) = by_link else { continue };
            let remote = SocketAddrV6::new(heard.address, heard.port, 0, link.index).into();
            if let Err(error) = self.attach(&link, remote) {
                tracing::warn!(link = link.name, error = format!("{error:#}"), "link not usable");
            }
        }
    }

    /// Chooses to whom to speak: who is trusted, and the same as before while it is there.
    fn choose(&mut self) {
        let Ok(store) = self.own.store.refreshed() else {
            return;
        };
        let is_trusted = |key: KeyHash| trust::is_trusted(&store, key);
        let present = self.to.as_ref().map(|(key, _)| *key);
        let heard: Vec<KeyHash> = self.own.links.heard().map(|heard| KeyHash(heard.key)).collect();
        let keeps =
            present.is_some_and(|key| is_trusted(key) && (self.line.is_some() || heard.contains(&key)));
        if keeps {
            return;
        }
        let (trusted, strangers): (Vec<_>, Vec<_>) = heard.into_iter().partition(|key| is_trusted(*key));
        let is_lost = present.is_some_and(|key| !is_trusted(key));
        drop(store);
        let next = trusted.first().copied();
        if is_lost || (next.is_some() && next != present) {
            self.leave();
            self.to = next.and_then(|key| {
                let config = tls::client_config(&self.own.identity, key);
                let config = config.inspect_err(|error| tracing::error!(%error, "no TLS"));
                Some((key, config.ok()?))
            });
        }
        self.notice = match (strangers.first(), self.to.is_some()) {
            (Some(key), false) => Some(format!(
                "a box answers that is not trusted here: if it shows the code {0}, `hawser repeat trust {0}`",
                key.code()
            )),
            (None, false) => {
                Some("no box answers on any link: does `hawser repeat ap` run there?".to_owned())
            }
            (_, true) => self.notice.take(),
        };
    }

    /// Ends what there is with the other box.
    fn leave(&mut self) {
        if let Some(line) = self.line.take() {
            drop(line.close(CloseReason::Shutdown));
        }
        self.machine.handle_session_over();
        self.carry_out();
        for link in std::mem::take(&mut self.attached).into_values() {
            self.machine.handle_network_removed(link);
            self.networks.detach(link);
        }
        self.reach.stop();
        self.to = None;
    }

    fn attach(&mut self, link: &Link, remote: SocketAddr) -> anyhow::Result<()> {
        if let Some(id) = self.attached.get(&link.index) {
            if self
                .networks
                .attached
                .get(id)
                .is_some_and(|known| known.remote == remote)
            {
                return Ok(());
            }
            self.detach(link.index);
        }
        let network = Network {
            name: link.name.clone(),
            index: link.index,
            mtu: link.mtu,
            addresses: vec![(link.address.into(), 64)],
            v4: None,
            v6: Some(NextHop::Device),
        };
        let Some(id) = self.networks.attach(network, &[remote])? else {
            return Ok(());
        };
        tracing::info!(link = link.name, neighbour = %remote, "the other box is here");
        self.attached.insert(link.index, id);
        self.machine.handle_network_added(id, fresh_index());
        if self.line.is_none() && !self.reach.join(&self.networks, id) {
            self.seek(None);
        }
        Ok(())
    }

    fn detach(&mut self, link: u32) {
        let Some(id) = self.attached.remove(&link) else {
            return;
        };
        self.machine.handle_network_removed(id);
        self.carry_out();
        self.networks.detach(id);
        if self.line.as_ref().is_some_and(|line| line.network == id) {
            self.lose_line("its link is gone");
        }
    }

    fn seek(&mut self, last: Option<NetworkId>) {
        self.retry_at = None;
        let Some((key, config)) = &self.to else { return };
        let hello = Hello {
            version: VERSION,
            enrol_token: None,
            resume: self.machine.session(),
            prefers: hawser_dataplane::preferred_cipher(),
            format: Format::Ethernet,
            name_hint: hawser_linux::process::host_name(),
        };
        let call = Call {
            hub: *key,
            config: config.clone(),
            hello,
            addresses: None,
            turn: Turn::default(),
        };
        self.reach.start(&self.networks, last, vec![call]);
    }

    fn on_outcome(&mut self, (_, network, outcome): Outcome) {
        match outcome {
            Ok(established) => self.on_reached(network, established),
            Err(error) => self.on_attempt_failed(&error),
        }
    }

    fn on_attempt_failed(&mut self, error: &ConnectError) {
        let own = self.own.identity.hash().code();
        self.notice = Some(match error {
            ConnectError::Refused(Refusal::NotEnrolled) => {
                format!("the other box does not trust this one: there, `hawser repeat trust {own}`")
            }
            ConnectError::Refused(Refusal::Busy) => "another box is joined to it already".to_owned(),
            ConnectError::HubKey(remote) => format!("the box at {remote} has another key than it says"),
            ConnectError::NoAnswer(remote) => {
                format!("no answer from the box at {remote}: does a firewall keep UDP out?")
            }
            ConnectError::Refused(_) | ConnectError::Failed(..) => error.to_string(),
        });
        if !self.reach.is_busy() && self.line.is_none() {
            let pause = self.reach.pause();
            tracing::warn!(
                notice = self.notice,
                retry_in_s = pause.as_secs_f64(),
                "not joined"
            );
            self.retry_at = Some(tokio::time::Instant::now() + pause);
        }
    }

    fn on_reached(&mut self, network: NetworkId, established: Established) {
        let Established {
            connection,
            stream,
            welcome,
            keys,
        } = established;
        self.reach.stop();
        if !self.networks.attached.contains_key(&network) {
            connection.close(0_u8.into(), b"");
            return;
        }
        if let Some((key, _)) = &self.to
            && let Err(error) = self.own.store.lock().meet(&key.code().to_string(), *key)
        {
            tracing::warn!(
                error = format!("{error:#}"),
                "cannot remember the other box's key"
            );
        }
        (self.retry_at, self.notice) = (None, None);
        self.lines += 1;
        let line = Line::serve(self.lines, network, connection, stream, self.news.clone());
        if let Some(old) = self.line.replace(line) {
            old.close(CloseReason::Superseded);
        }
        let now = self.now();
        self.machine.handle_control_up(welcome.session, now, fresh_index);
        self.carry_out();
        let session = SessionId(welcome.session);
        let epoch = welcome.epoch;
        (self.own.orders)(hawser_dataplane::Change::InstallKeys { session, epoch, keys }.into());
        tracing::info!(session = welcome.session, epoch, "joined");
    }

    fn on_news(&mut self, line: u64, news: News) {
        if self.line.as_ref().is_none_or(|present| present.number != line) {
            return;
        }
        match news {
            News::Message(message) => {
                if let Err(violation) = self.machine.handle_message(&message) {
                    tracing::warn!(%violation, "the other box broke the protocol");
                    self.lose_line("protocol violation");
                }
            }
            News::Lost(why) => self.lose_line(&why),
        }
    }

    fn lose_line(&mut self, why: &str) {
        let Some(line) = self.line.take() else { return };
        tracing::info!(why, "control connection lost; frames flow on");
        let network = line.network;
        line.abandon();
        self.machine.handle_control_down();
        self.seek(Some(network));
    }

    fn on_event(&mut self, event: &Event) {
        let now = self.now();
        match *event {
            Event::Path { session, path, state } if self.machine.session() == Some(session.0) => {
                let network = self.machine.network(path.0);
                if let Some(attached) = network.and_then(|id| self.networks.attached.get_mut(&id)) {
                    attached.state = Some(state);
                }
                let is_line = self.line.as_ref().map(|line| line.network) == network;
                if is_line && matches!(state, PathState::Suspect | PathState::Dead) {
                    self.machine.handle_doubt(now);
                }
            }
            Event::Alive {
                session,
                alive: false,
            } if self.machine.session() == Some(session.0) => self.machine.handle_doubt(now),
            Event::RekeyWanted { session } if self.machine.session() == Some(session.0) => self.rekey(),
            Event::Path { .. } | Event::Alive { .. } | Event::RekeyWanted { .. } => {}
        }
    }

    fn rekey(&mut self) {
        if !self.reach.is_busy() && self.line.is_some() {
            self.seek(None);
        }
    }

    fn on_closed(&mut self, reason: CloseReason) {
        let Some(line) = self.line.take() else { return };
        tracing::warn!(%reason, "the other box ended the connection");
        line.abandon();
        if reason == CloseReason::Revoked {
            self.machine.handle_session_over();
        } else {
            self.machine.handle_control_down();
        }
        self.seek(None);
    }

    /// Carries out what the machine wants.
    fn carry_out(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            self.act(action);
        }
        while let Some(message) = self.machine.poll_transmit() {
            self.tell(message);
        }
    }

    fn tell(&self, message: Message) {
        if let Some(line) = &self.line {
            line.send(message);
        }
    }

    fn act(&mut self, action: ClientAction) {
        match action {
            ClientAction::Start { session } => self.order(hawser_dataplane::Change::AddSession {
                session: SessionId(session),
                role: Role::Client,
                inner: Vec::new(),
            }),
            ClientAction::End { session } => {
                let session = SessionId(session);
                self.order(hawser_dataplane::Change::RemoveSession { session });
                let attached = self.networks.attached.values_mut();
                attached.for_each(|attached| attached.state = None);
            }
            ClientAction::OpenPath {
                network,
                path,
                local_index,
                peer_index,
            } => self.open_path(network, path, (local_index, peer_index)),
            ClientAction::ClosePath { network, path } => {
                if let Some(session) = self.machine.session().map(SessionId) {
                    let path = PathId(path);
                    self.order(hawser_dataplane::Change::ClosePath { session, path });
                }
                if let Some(attached) = self.networks.attached.get_mut(&network) {
                    attached.state = None;
                }
            }
            ClientAction::Reconnect => self.lose_line("no answer from the other box"),
            ClientAction::Rekey => self.rekey(),
            ClientAction::Renew => {
                self.machine.handle_session_over();
                self.seek(None);
            }
            ClientAction::Closed(reason) => self.on_closed(reason),
        }
    }

    fn open_path(&self, network: NetworkId, path: u16, (local_index, peer_index): (u32, u32)) {
        let (Some(session), Some(attached)) = (self.machine.session(), self.networks.attached.get(&network))
        else {
            return;
        };
        self.order(hawser_dataplane::Change::OpenPath {
            session: SessionId(session),
            path: PathId(path),
            socket: attached.socket,
            remote: Some(attached.remote),
            peer_index,
            local_index,
            name: attached.path_name(),
            mtu: u16::try_from(attached.network.mtu).unwrap_or(u16::MAX),
            cap: None,
        });
    }

    fn order(&self, change: hawser_dataplane::Change) {
        (self.own.orders)(change.into());
    }

    /// Whether this was the last request.
    fn on_asked(&self, asked: Asked) -> bool {
        self.own.on_asked(asked, || {
            json!({
                "side": "join",
                "peer": self.to.as_ref().map(|(key, _)| key.code().to_string()),
                "session": self.machine.session(),
                "control": self.line.is_some(),
                "notice": self.notice,
            })
        })
    }
}

fn fresh_index() -> u32 {
    u32::from_be_bytes(random())
}

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);
