//! Data plane of a hub at its start: sockets, queues, and the sessions of the previous process,
//! whose packets are transferred while the rest of the hub starts.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use anyhow::Context;
use hawser_config::HubConfig;
use hawser_config::identity::random;
use hawser_control::enrolment::SharedStore;
use hawser_control::handover::{self, Inherited};
use hawser_control::hub::{HUB_SOCKET, HubControl, HubSettings, PATH_MTU};
use hawser_dataplane::{Change, DataPlane, DataPlaneConfig, Pairs, StreamUse, Trial};
use hawser_linux::stream_sockets::raise_file_limit;
use hawser_linux::tun::Tun;
use hawser_linux::udp::DataSocket;
use hawser_proto::client_filter::Policy as ClientPolicy;
use hawser_units::is_private;
use hawser_wire::frame::Format;

use super::Spread;
use super::preparation::masks;

/// Data plane of a hub with the sessions of the previous process, whose packets it transfers while
/// the rest of the hub starts.
pub(super) struct Carrying {
    pub(super) plane: DataPlane,
    pub(super) control: HubControl,
    pub(super) store: SharedStore,
    pub(super) socket: Arc<UdpSocket>,
    /// Sessions of the previous process that continue.
    pub(super) restored: usize,
    pub(super) lost: usize,
}

impl Carrying {
    pub(super) fn start(
        (config, policy): (&HubConfig, Arc<ClientPolicy>),
        spread: &Spread,
        store: SharedStore,
        queues: Vec<Tun>,
        inherited: Inherited,
    ) -> anyhow::Result<Self> {
        let sockets = spread.sockets(config.listen_address(), inherited.sockets)?;
        let sockets: Vec<_> = sockets.into_iter().map(Arc::new).collect();
        handover::keep_open(&queues, &sockets);
        let seed = u64::from_be_bytes(random());
        raise_file_limit();
        let mut sessions = inherited.sessions.iter();
        let has_streams = sessions.any(|saved| saved.plane.has_streams());
        let plane = hawser_dataplane::start(DataPlaneConfig {
            queues,
            pairs: spread.pairs(),
            format: Format::Ip,
            client_policy: Some(policy),
            streams: stream_use(config, has_streams),
            trial: Trial::default(),
            seed,
        })?;
        let control = HubControl::new(
            store.clone(),
            settings(config, spread.pairs()),
            plane.orders.clone(),
        );
        let all = inherited.sessions.len();
        let restored = inherited.sessions.into_iter().map(|saved| control.restore(saved));
        let restored = restored.filter(|is_restored| *is_restored).count();
        // This follows the restored sessions, because packets that were queued in the socket in the
        // meantime must find their session.
        for (pair, socket) in (0..).zip(&sockets) {
            let socket = DataSocket::new(socket.clone()).context("the hub's socket cannot be used")?;
            (plane.orders)(
                Change::AddSocket {
                    id: HUB_SOCKET,
                    socket: Arc::new(socket),
                    pair,
                }
                .into(),
            );
        }
        Ok(Self {
            plane,
            control,
            store,
            // Packets other than data packets arrive at the first socket, and their answers leave
            // on it.
            socket: sockets[0].clone(),
            restored,
            lost: all - restored,
        })
    }
}

/// Returns the use of streams: none if clients do not appear under the hub's address, which is the
/// source of the connections that the hub opens. Streams of the previous process continue in any
/// case (`has_streams`).
fn stream_use(config: &HubConfig, has_streams: bool) -> Option<StreamUse> {
    let has_nat_addresses = !config.nat_addresses.0.is_empty();
    let max_per_client = config.streams.max_per_client(has_nat_addresses);
    let pool6 = config.pool6.iter().map(|net| IpAddr::from(net.0));
    let mut pools = std::iter::once(IpAddr::from(config.pool.0)).chain(pool6);
    let is_translated = pools.all(|pool| masks(config.nat, is_private(pool)));
    let max_per_client = if is_translated { max_per_client } else { 0 };
    (max_per_client > 0 || has_streams).then_some(StreamUse::Hub {
        max_per_client,
        connects: config.streams.connects(),
        memory: config.streams.memory.0,
    })
}

pub(super) fn settings(config: &HubConfig, pairs: Pairs) -> HubSettings {
    HubSettings {
        pool: config.pools(),
        dns: config.dns.clone(),
        mtu: config.mtu.0,
        schedulers: config.schedulers.selected(),
        controller: config.controller.0,
        layer_rules: config.layer_rules(),
        format: Format::Ip,
        path_mtu: PATH_MTU,
        session_timeout: config.session_timeout.0,
        limits: config.limits.clone(),
        pairs,
    }
}
