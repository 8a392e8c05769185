//! Joining side: finds the access point's box on each link, and maintains a session with it.

use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hawser_config::identity::KeyHash;
use hawser_control::client::driver::{Driver, Happened, Notice, Want, fresh_index};
use hawser_control::client::reach::Call;
use hawser_control::client::{ConnectError, Established, Turn};
use hawser_control::report::PLANE_ENDED;
use hawser_control::tls;
use hawser_dataplane::Event;
use hawser_host::control_socket::Asked;
use hawser_linux::links::Link;
use hawser_linux::netlink::{Network, NextHop};
use hawser_proto::discovery::Heard;
use hawser_proto::session::SessionConfig;
use hawser_units::NetworkId;
use hawser_wire::control::{CloseReason, Hello, Refusal, VERSION};
use hawser_wire::frame::Format;
use serde_json::json;

use super::clients::Clients;
use super::links::Change;
use super::{Node, Sources, trust};

struct Joining {
    own: Node,
    /// Selected box of the access point, and its TLS configuration.
    to: Option<(KeyHash, quinn::ClientConfig)>,
    driver: Driver,
    /// Network of each link on which the other box was found.
    attached: BTreeMap<u32, NetworkId>,
    notice: Option<String>,
    clients: Clients,
}

pub(super) async fn run(own: Node, (mut plane, mut socket, mut signals): Sources) -> anyhow::Result<()> {
    let mut this = Joining {
        to: None,
        driver: Driver::new(Arc::clone(&own.orders), SessionConfig::default()),
        attached: BTreeMap::new(),
        notice: None,
        clients: Clients::new(&own)?,
        own,
    };
    loop {
        let far = tokio::time::Instant::now() + Duration::from_secs(60);
        let deadline = this.driver.poll_timeout().unwrap_or(far);
        tokio::select! {
            changes = this.own.links.next() => this.on_links(changes?),
            happened = this.driver.next() => this.on_happened(happened),
            event = plane.events.recv() => this.on_event(&event.context(PLANE_ENDED)?),
            Some(asked) = socket.requests.recv() => if this.on_asked(asked) { break },
            () = tokio::time::sleep_until(deadline) => if this.driver.handle_timeout() {
                this.seek(None);
            },
            () = this.clients.due() => this.clients.sample_queue(&this.driver, &this.attached).await,
            reload = signals.next() => if !reload { break },
        }
        this.carry_out();
    }
    this.driver.end().await;
    Ok(())
}

impl Joining {
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

    /// Selects a trusted box, and keeps the present one while it is available.
    fn choose(&mut self) {
        let Ok(store) = self.own.store.refreshed() else {
            return;
        };
        let is_trusted = |key: KeyHash| trust::is_trusted(&store, key);
        let present = self.to.as_ref().map(|(key, _)| *key);
        let heard: Vec<KeyHash> = self.own.links.heard().map(|heard| KeyHash(heard.key)).collect();
        let keeps = present
            .is_some_and(|key| is_trusted(key) && (self.driver.line.is_some() || heard.contains(&key)));
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
                "a box that is not trusted answers: if it shows the code {0}, run `hawser repeat trust {0}`",
                key.code()
            )),
            (None, false) => Some(
                "no box answers on any link: check that `hawser repeat ap` is running on the other box"
                    .to_owned(),
            ),
            (_, true) => self.notice.take(),
        };
    }

    /// Ends the session with the other box.
    fn leave(&mut self) {
        if let Some(line) = self.driver.line.take() {
            drop(line.close(CloseReason::Shutdown));
        }
        self.driver.machine.handle_session_over();
        self.carry_out();
        for link in std::mem::take(&mut self.attached).into_values() {
            self.driver.machine.handle_network_removed(link);
            self.driver.networks.detach(link);
        }
        self.driver.reach.stop();
        self.to = None;
    }

    fn attach(&mut self, link: &Link, remote: SocketAddr) -> anyhow::Result<()> {
        if let Some(id) = self.attached.get(&link.index) {
            if self
                .driver
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
        let Some(id) = self.driver.networks.attach(network, &[remote], None)? else {
            return Ok(());
        };
        tracing::info!(link = link.name, neighbour = %remote, "the other box is connected");
        self.attached.insert(link.index, id);
        self.driver.machine.handle_network_added(id, fresh_index());
        if self.driver.line.is_none() && !self.driver.reach.join(&self.driver.networks, id) {
            self.seek(None);
        }
        Ok(())
    }

    fn detach(&mut self, link: u32) {
        let Some(id) = self.attached.remove(&link) else {
            return;
        };
        self.driver.machine.handle_network_removed(id);
        self.carry_out();
        self.driver.networks.detach(id);
        if self.driver.is_line_over(id) {
            self.lose_line("its link was removed");
        }
    }

    fn seek(&mut self, last: Option<NetworkId>) {
        self.driver.retry_at = None;
        let Some((key, config)) = &self.to else { return };
        let hello = Hello {
            version: VERSION,
            enrol_token: None,
            resume: self.driver.machine.session(),
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
        self.driver.reach.start(&self.driver.networks, last, vec![call]);
    }

    fn on_happened(&mut self, happened: Happened) {
        match happened {
            Happened::Heard => {}
            Happened::Lost(why) => self.lose_line(&why),
            Happened::Outcome((_, network, Ok(established))) => self.on_reached(network, established),
            Happened::Outcome((_, _, Err(error))) => self.on_attempt_failed(&error),
        }
    }

    fn on_attempt_failed(&mut self, error: &ConnectError) {
        let own = self.own.identity.hash().code();
        self.notice = Some(match error {
            ConnectError::Refused(Refusal::NotEnrolled) => {
                format!("the other box does not trust this one: run `hawser repeat trust {own}` there")
            }
            ConnectError::Refused(Refusal::Busy) => {
                "the other box is already connected to a third box".to_owned()
            }
            ConnectError::HubKey(remote) => format!("the box at {remote} has another key than it announced"),
            ConnectError::NoAnswer(remote) => {
                format!("no answer from the box at {remote}: check that its firewall admits UDP")
            }
            ConnectError::Refused(_) | ConnectError::KeyExpired(_) | ConnectError::Failed(..) => {
                error.to_string()
            }
        });
        if !self.driver.reach.is_busy() && self.driver.line.is_none() {
            let pause = self.driver.reach.pause();
            tracing::warn!(
                notice = self.notice,
                retry_in_s = pause.as_secs_f64(),
                "not joined"
            );
            self.driver.retry_at = Some(tokio::time::Instant::now() + pause);
        }
    }

    fn on_reached(&mut self, network: NetworkId, established: Established) {
        let Some(connected) = self.driver.handle_established(network, established) else {
            return;
        };
        if let Some((key, _)) = &self.to
            && let Err(error) = self.own.store.lock().meet(&key.code().to_string(), *key)
        {
            tracing::warn!(error = format!("{error:#}"), "cannot store the other box's key");
        }
        self.notice = None;
        self.clients.handle_reached();
        self.carry_out();
        let welcome = self.driver.install(connected);
        tracing::info!(session = welcome.session, epoch = welcome.epoch, "joined");
    }

    fn lose_line(&mut self, why: &str) {
        if let Some(network) = self.driver.lose_line(why) {
            self.seek(Some(network));
        }
    }

    fn on_event(&mut self, event: &Event) {
        match self.driver.handle_event(event) {
            Some(Notice::Rekey) => self.rekey(),
            Some(Notice::Path(..) | Notice::Policed(_) | Notice::Alive(_)) | None => {}
        }
    }

    fn rekey(&mut self) {
        if self.driver.may_rekey() {
            self.seek(None);
        }
    }

    fn on_closed(&mut self, reason: CloseReason) {
        let Some(line) = self.driver.line.take() else {
            return;
        };
        tracing::warn!(%reason, "the other box ended the connection");
        line.abandon();
        if matches!(reason, CloseReason::Revoked | CloseReason::Expired) {
            self.driver.machine.handle_session_over();
        } else {
            self.driver.machine.handle_control_down();
        }
        self.seek(None);
    }

    /// Executes the machine's outputs.
    fn carry_out(&mut self) {
        while let Some(want) = self.driver.poll(|_| None) {
            match want {
                Want::Begun(_)
                | Want::Opened(..)
                | Want::Leave
                | Want::OtherHubs
                | Want::Subnets
                | Want::Receipt(_) => {}
                Want::Silent => self.lose_line("no answer from the other box"),
                Want::Rekey => self.rekey(),
                Want::Renew => {
                    self.driver.machine.handle_session_over();
                    self.seek(None);
                }
                Want::Closed(reason) => self.on_closed(reason),
            }
        }
    }

    /// Returns whether this was the last request.
    fn on_asked(&self, asked: Asked) -> bool {
        self.own.on_asked(asked, || {
            json!({
                "side": "join",
                "peer": self.to.as_ref().map(|(key, _)| key.code().to_string()),
                "session": self.driver.machine.session(),
                "control": self.driver.line.is_some(),
                "notice": self.notice,
                "clients": self.clients.report(),
            })
        })
    }
}
