//! Side of the access point: waits for the other box and accepts it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use hawser_config::LimitsConfig;
use hawser_control::enrolment::POLL_INTERVAL;
use hawser_control::hub::{HubControl, HubSettings, PATH_MTU};
use hawser_control::peers;
use hawser_control::quic_socket::{Ports, SharedSocket};
use hawser_control::report::PLANE_ENDED;
use hawser_control::tls;
use hawser_dataplane::{Event, SocketId};
use hawser_host::control_socket::Asked;
use hawser_linux::links::{Link, open_port};
use hawser_linux::udp::DataSocket;
use hawser_proto::path::control::Control;
use hawser_wire::frame::Format;
use serde_json::json;

use super::links::Change;
use super::{Node, PORT, Sources};

struct AccessPoint {
    own: Node,
    control: HubControl,
    ports: Ports,
    /// Name of each link that has a socket, by its index.
    sockets: BTreeMap<u32, String>,
}

pub(super) async fn run(own: Node, (mut plane, mut socket, mut signals): Sources) -> anyhow::Result<()> {
    let (_, nothing) = tokio::sync::mpsc::channel(1);
    let datagrams = std::mem::replace(&mut plane.control, nothing);
    let ports = Ports::default();
    let endpoint = quinn::Endpoint::new_with_abstract_socket(
        tls::hub_endpoint_config(&own.identity),
        Some(tls::server_config(&own.identity)?),
        Arc::new(SharedSocket::new(ports.clone(), datagrams)),
        Arc::new(quinn::TokioRuntime),
    )?;
    let settings = HubSettings {
        pool: peers::NO_ADDRESSES,
        dns: Vec::new(),
        mtu: PATH_MTU,
        schedulers: Vec::new(),
        controller: Control::default(),
        layer_rules: Vec::new(),
        format: Format::Ethernet,
        path_mtu: own.largest_mtu,
        session_timeout: ABSENCE,
        limits: LimitsConfig::default(),
        pairs: hawser_dataplane::Pairs::ONE,
    };
    let control = HubControl::new(own.store.clone(), settings, Arc::clone(&own.orders));
    let serving = hawser_linux::tasks::spawn({
        let (control, endpoint) = (control.clone(), endpoint.clone());
        async move { control.serve(&endpoint).await }
    });
    let mut this = AccessPoint {
        own,
        control,
        ports,
        sockets: BTreeMap::new(),
    };
    let mut look = tokio::time::interval(POLL_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            changes = this.own.links.next() => this.on_links(changes?),
            event = plane.events.recv() => if let Event::RekeyWanted { session } = event.context(PLANE_ENDED)? {
                this.control.rekey(session);
            },
            Some(asked) = socket.requests.recv() => if this.on_asked(asked) { break },
            _ = look.tick() => {
                this.control.hold_against_store();
                this.control.sweep(Instant::now());
            }
            reload = signals.next() => if !reload { break },
        }
    }
    this.control.shut_down();
    let _ = tokio::time::timeout(GOODBYE, endpoint.wait_idle()).await;
    serving.abort();
    Ok(())
}

impl AccessPoint {
    fn on_links(&mut self, changes: Vec<Change>) {
        // A device that is down keeps its socket, which works again when the device is up.
        for change in changes {
            if let Change::Up(link) = change
                && let Err(error) = self.open(&link)
            {
                tracing::warn!(link = link.name, error = format!("{error:#}"), "link not usable");
            }
        }
    }

    fn open(&mut self, link: &Link) -> anyhow::Result<()> {
        self.close_others(link);
        if self.sockets.contains_key(&link.index) {
            return Ok(());
        }
        let socket = open_port(&link.name, PORT).with_context(|| format!("cannot listen on UDP {PORT}"))?;
        let socket = Arc::new(socket);
        self.ports.add(link.index, Arc::clone(&socket))?;
        let socket = Arc::new(DataSocket::new(socket)?);
        let id = SocketId(link.index);
        (self.own.orders)(hawser_dataplane::Change::AddSocket { id, socket, pair: 0 }.into());
        self.sockets.insert(link.index, link.name.clone());
        Ok(())
    }

    /// Closes the sockets of removed devices with that name.
    fn close_others(&mut self, link: &Link) {
        let (ports, orders) = (&self.ports, &self.own.orders);
        self.sockets.retain(|index, name| {
            let stays = *name != link.name || *index == link.index;
            if !stays {
                ports.remove(*index);
                let id = SocketId(*index);
                orders(hawser_dataplane::Change::RemoveSocket { id }.into());
            }
            stays
        });
    }

    /// Returns whether this was the last request.
    fn on_asked(&self, asked: Asked) -> bool {
        self.own.on_asked(asked, || {
            let clients = self.control.clients();
            let joined = clients.iter().find(|client| client.connected);
            let mut counters = BTreeMap::new();
            counters.extend(self.control.counters());
            json!({
                "side": "ap",
                "peer": joined.map(|client| client.name.clone()),
                "counters": counters,
            })
        })
    }
}

/// Time without the other box after which its session ends. Source: the longest restart of a box,
/// whose bridge relearns all addresses within seconds.
const ABSENCE: std::time::Duration = std::time::Duration::from_secs(300);
/// Maximum time for the goodbye to the other box. Source: our choice, several round trips of a busy
/// radio; a longer one delays the end of the box.
const GOODBYE: std::time::Duration = std::time::Duration::from_secs(1);
