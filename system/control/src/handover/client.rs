//! Transfer of a client's interface and session to its successor, at a planned restart by a service
//! manager; flows and streams continue.
//!
//! Paths, keys and the control connection are new: the successor asks the hub to continue the
//! session. After a crash or a permanent end the manager has no state.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, bail};
use hawser_dataplane::checkpoint::{Parcel, SessionCheckpoint};
use hawser_linux::parcel;
use hawser_linux::service;
use hawser_linux::stream_sockets::{Connection, Listener};
use hawser_linux::tun::Tun;
use hawser_proto::checkpoint::ClientPaths;
use hawser_wire::control::{Cipher, Welcome};
use serde::{Deserialize, Serialize};

use super::streams::MAX_BYTES;
use super::{INTERFACE, SESSIONS, STREAMS, STREAMS_END, read_text, write_text};

/// Version of the format, which changes with every change that an older version must not read.
/// Source: the first version.
const VERSION: u32 = 1;

/// Session of a client.
#[derive(Serialize, Deserialize)]
pub struct ClientCheckpoint {
    version: u32,
    /// Key of its hub, as text.
    pub hub: String,
    /// The control side's part.
    pub paths: ClientPaths,
    /// Addresses and resolvers that the hub has assigned.
    assigned: Assigned,
    /// The data plane's part.
    pub plane: SessionCheckpoint,
    /// Set if the first descriptor in the parcel is a listener.
    has_listener: bool,
}

#[derive(Serialize, Deserialize)]
struct Assigned {
    inner_v4: (Ipv4Addr, u8),
    inner_v6: Option<(Ipv6Addr, u8)>,
    dns: Vec<IpAddr>,
    hub_mtu: u16,
}

impl ClientCheckpoint {
    /// Creates the checkpoint of a session with a hub.
    #[must_use]
    pub fn new(hub: String, paths: ClientPaths, welcome: &Welcome, mut plane: SessionCheckpoint) -> Self {
        plane.drop_paths();
        Self {
            version: VERSION,
            hub,
            paths,
            assigned: Assigned {
                inner_v4: welcome.inner_v4,
                inner_v6: welcome.inner_v6,
                dns: welcome.dns.clone(),
                hub_mtu: welcome.hub_mtu,
            },
            plane,
            has_listener: false,
        }
    }

    /// Returns the hub's assignment; cipher and epoch are placeholders.
    #[must_use]
    pub fn welcome(&self) -> Welcome {
        Welcome {
            session: self.paths.session,
            epoch: 0,
            inner_v4: self.assigned.inner_v4,
            inner_v6: self.assigned.inner_v6,
            dns: self.assigned.dns.clone(),
            hub_mtu: self.assigned.hub_mtu,
            cipher: Cipher::Aes256Gcm,
        }
    }
}

/// Interface and session of the previous process.
#[derive(Default)]
pub struct InheritedClient {
    /// The inner interface.
    pub tun: Option<Tun>,
    /// Session; only if the interface exists too.
    pub session: Option<Box<ClientCheckpoint>>,
}

impl InheritedClient {
    /// Takes the state from the service manager, as far as it matches the interface.
    #[must_use]
    pub fn take((interface, mtu): (&str, u16)) -> Self {
        if !service::is_managed() {
            return Self::default();
        }
        let kept = service::take_inherited().unwrap_or_else(|error| {
            tracing::warn!(%error, "nothing is taken over from the previous process");
            Vec::new()
        });
        let (mut tun, mut session, mut streams) = (None, None, None);
        for kept in kept {
            match kept.name.as_str() {
                INTERFACE => tun = Some(Tun::adopt(kept.descriptor, interface, mtu, 1)),
                SESSIONS => session = Some(read(kept.descriptor)),
                STREAMS => streams = Some(kept.descriptor),
                _ => {}
            }
        }
        // Descriptors at the manager would never be closed, and are valid for one successor.
        let mut names = [INTERFACE, SESSIONS, STREAMS, STREAMS_END].into_iter();
        let is_forgotten = names.try_for_each(service::forget);
        let is_settled = match &tun {
            Some(_) => is_forgotten.and_then(|()| service::settle()),
            None => is_forgotten,
        };
        let (Some(tun), Some(session)) = (tun, session) else {
            return Self::default();
        };
        let taken = is_settled.map_err(Into::into).and_then(|()| {
            let (tun, mut session) = (tun?, session?);
            put_streams(&mut session, streams);
            Ok(Self {
                tun: Some(tun),
                session: Some(Box::new(session)),
            })
        });
        taken.unwrap_or_else(|error: anyhow::Error| {
            let error = format!("{error:#}");
            tracing::info!(error, "not taken over from the previous process");
            Self::default()
        })
    }
}

fn read(descriptor: std::os::fd::OwnedFd) -> anyhow::Result<ClientCheckpoint> {
    let session: ClientCheckpoint = read_text(descriptor)?;
    if session.version != VERSION {
        bail!(
            "it has version {}, and this program needs version {VERSION}",
            session.version
        );
    }
    Ok(session)
}

/// Restores the sockets and bytes of the session's streams. If they are missing, the streams are
/// dropped.
fn put_streams(session: &mut ClientCheckpoint, packed: Option<std::os::fd::OwnedFd>) {
    let unpacked = packed.map(|packed| parcel::unpack(packed, MAX_BYTES)).transpose();
    let put = unpacked.map_err(anyhow::Error::from).and_then(|unpacked| {
        let (bytes, mut descriptors) = unpacked.unwrap_or_default();
        if session.has_listener && !descriptors.is_empty() {
            let listener = Listener::adopt(descriptors.remove(0))?;
            session.plane.put_listener(Arc::new(listener));
        }
        let sockets = descriptors.into_iter().map(Connection::adopt);
        let sockets = sockets.map(|socket| socket.map(Arc::new));
        let mut all = Parcel {
            sockets: sockets.collect::<Result<_, _>>()?,
            bytes,
        };
        session.plane.put_parcel(&mut all);
        session.plane.check().context("damaged")
    });
    if let Err(error) = put {
        let error = format!("{error:#}");
        tracing::info!(error, "streams are not taken over");
        session.plane.drop_streams();
    }
}

/// Passes the interface and the session to the service manager. On return, the process may end.
///
/// # Errors
/// There is no service manager, or it does not accept them.
pub fn hand_over_client(tun: &Tun, mut session: ClientCheckpoint) -> anyhow::Result<()> {
    let listener = session.plane.take_listener();
    session.has_listener = listener.is_some();
    let parcel = session.plane.take_parcel();
    let sockets = parcel.sockets.iter().map(|socket| socket.as_fd());
    let descriptors: Vec<_> = listener.iter().map(|one| one.as_fd()).chain(sockets).collect();
    let (packed, end) = parcel::pack(&parcel.bytes, &descriptors)
        .context("the kernel cannot store the sockets of streams")?;
    let file = write_text(c"hawser session", &session)?;
    let kept = [
        (INTERFACE, tun.as_fd()),
        (SESSIONS, file.as_fd()),
        (STREAMS, packed.as_fd()),
        (STREAMS_END, end.as_fd()),
    ];
    for (name, descriptor) in kept {
        service::keep(name, descriptor)
            .with_context(|| format!("the service manager does not accept the {name}"))?;
    }
    service::settle().context("the service manager does not answer")
}
