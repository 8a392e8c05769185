//! State that a data plane passes to its successor: keys, addresses and machines of each session.
//!
//! Each thread has a part of it. The receiving thread ends first and passes its part on, so that
//! nothing arrives after its replay windows were written; the sending thread adds its own, and with
//! the whole the data plane ends.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use hawser_linux::stream_sockets::Listener;
use hawser_proto::checkpoint::{BadCheckpoint, HubPaths, Receiving, Sending};
use hawser_proto::egress::Egress;
use hawser_proto::ingress::Ingress;
use hawser_proto::path;
use hawser_units::{Duration, Instant, PathId, Rate};
use hawser_wire::control::Cipher;
use hawser_wire::preference::{Preference, Priority};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use super::overhead::path_config;
use super::streams::checkpoint as streams;
use hawser_proto::stream::{Config, Reserve};
use hawser_proto::tunnel::Role;

pub use super::streams::checkpoint::{Parcel, ParcelLen};

/// Session of a hub or of a client; a client's session has neither paths nor keys, because it
/// reconnects.
#[derive(Serialize, Deserialize)]
pub struct SessionCheckpoint {
    /// Number of the session.
    pub session: u64,
    /// The sending half.
    pub sending: SendingHalf,
    /// The receiving half.
    pub receiving: ReceivingHalf,
}

impl SessionCheckpoint {
    /// Checks whether the machines accept the checkpoint, because a thread that detects an error
    /// later would leave half a session.
    ///
    /// # Errors
    /// If it has impossible numbers or unknown names.
    pub fn check(&self) -> Result<(), BadCheckpoint> {
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut egress = Egress::<u32>::restore(&self.sending.machine, 1, now)?;
        for path in &self.sending.machine.paths {
            let lane = self.sending.lane(path.id).ok_or(BadCheckpoint::Impossible)?;
            egress.restore_path(lane.config(), path, lane.remote.is_some(), now)?;
        }
        let mut ingress = Ingress::<u32>::restore(&self.receiving.machine, now)?;
        if let Some(streams) = &self.receiving.machine.streams {
            ingress.restore_streams(Config::default(), Reserve::unbounded(), streams, now)?;
            self.receiving.streams.check(streams)?;
        }
        self.sending.streams.check(&self.sending.machine.streams)
    }

    /// Removes and returns the sockets and bytes, those of the sending half first.
    pub fn take_parcel(&mut self) -> Parcel {
        let mut parcel = std::mem::take(&mut self.sending.streams.parcel);
        let other = std::mem::take(&mut self.receiving.streams.parcel);
        parcel.sockets.extend(other.sockets);
        parcel.bytes.extend(other.bytes);
        parcel
    }

    /// Restores the result of [`Self::take_parcel`] from the front of several sessions' parcels.
    pub fn put_parcel(&mut self, all: &mut Parcel) {
        let halves = [
            (self.sending.streams.len, &mut self.sending.streams.parcel),
            (self.receiving.streams.len, &mut self.receiving.streams.parcel),
        ];
        for (len, parcel) in halves {
            let sockets = len.sockets.min(all.sockets.len());
            let bytes = len.bytes.min(all.bytes.len());
            parcel.sockets = all.sockets.drain(..sockets).collect();
            parcel.bytes = all.bytes.drain(..bytes).collect();
        }
    }

    /// Removes and returns the listener of a client.
    pub fn take_listener(&mut self) -> Option<Arc<Listener>> {
        self.sending.streams.near.as_mut()?.listener.take()
    }

    /// Restores the result of [`Self::take_listener`].
    pub fn put_listener(&mut self, listener: Arc<Listener>) {
        if let Some(near) = &mut self.sending.streams.near {
            near.listener = Some(listener);
        }
    }

    /// Drops the streams, because their sockets are missing. The peer is notified when it sends
    /// data of them.
    pub fn drop_streams(&mut self) {
        self.sending.machine.streams.all.clear();
        self.sending.streams = streams::SendingStreams::default();
        self.receiving.machine.streams = None;
        self.receiving.streams = streams::ReceivingStreams::default();
    }

    /// Returns whether it has streams.
    #[must_use]
    pub fn has_streams(&self) -> bool {
        !self.sending.streams.all.is_empty() || !self.receiving.streams.all.is_empty()
    }

    /// Removes paths and keys, since a client creates new ones.
    pub fn drop_paths(&mut self) {
        (self.sending.key, self.sending.next_key, self.sending.heard_epoch) = (None, None, None);
        (self.receiving.newest_used, self.receiving.keys) = (None, Vec::new());
        self.sending.lanes.clear();
        self.sending.machine.paths.clear();
        self.receiving.paths.clear();
        self.receiving.machine.paths.clear();
    }

    /// Returns whether it has the same paths as the control side: ids and both indexes.
    #[must_use]
    pub fn is_of(&self, paths: &HubPaths) -> bool {
        let own = |id: u16| {
            let lane = self.sending.lane(id)?;
            let source = self.receiving.paths.iter().find(|source| source.path == id)?;
            Some((id, source.index, lane.peer_index))
        };
        let count = paths.open.len();
        let counts = [
            self.sending.lanes.len(),
            self.sending.machine.paths.len(),
            self.receiving.paths.len(),
            self.receiving.machine.paths.len(),
        ];
        counts == [count; 4] && paths.open.iter().all(|path| own(path.0) == Some(*path))
    }
}

impl SendingHalf {
    /// Returns the state of a path, except that of its state machine.
    #[must_use]
    pub fn lane(&self, path: u16) -> Option<&LaneCheckpoint> {
        self.lanes.iter().find(|lane| lane.path == path)
    }
}

impl LaneCheckpoint {
    /// Returns the initial configuration of the path's machine.
    #[must_use]
    pub fn config(&self) -> path::Config {
        let cap = self.cap_bps.map(Rate::from_bps);
        path_config(PathId(self.path), Role::Hub, self.mtu, cap, self.remote.as_ref())
    }

    /// Returns the preference of the path.
    #[must_use]
    pub fn preference(&self) -> Preference {
        let known = self.preference.and_then(|(code, takes_bulk)| {
            let priority = Priority::of_code(code)?;
            Some(Preference { priority, takes_bulk })
        });
        known.unwrap_or_default()
    }
}

/// Sending half of a session.
#[derive(Serialize, Deserialize)]
pub struct SendingHalf {
    /// Key in use, if there is one.
    pub key: Option<KeyCheckpoint>,
    /// Key that the client has not used yet.
    pub next_key: Option<KeyCheckpoint>,
    /// The newest epoch that the client has used.
    pub heard_epoch: Option<u8>,
    /// Destinations of the datagrams of each path.
    pub lanes: Vec<LaneCheckpoint>,
    /// The machine.
    pub machine: Sending,
    /// Sockets of streams. Older versions do not know them.
    #[serde(default)]
    pub streams: streams::SendingStreams,
}

/// Receiving half of a session.
#[derive(Serialize, Deserialize)]
pub struct ReceivingHalf {
    /// Keys that decrypt packets; the newest last.
    pub keys: Vec<KeyCheckpoint>,
    /// The newest epoch that the client has used.
    pub newest_used: Option<u8>,
    /// Receiver index and origin of the arriving packets of each path.
    pub paths: Vec<SourceCheckpoint>,
    /// The machine.
    pub machine: Receiving,
    /// Bytes of streams. Older versions do not know them.
    #[serde(default)]
    pub streams: streams::ReceivingStreams,
}

/// State of a path in the receiving thread, in addition to its machine.
#[derive(Serialize, Deserialize)]
pub struct SourceCheckpoint {
    /// Id of the path.
    pub path: u16,
    /// Receiver index in arriving packets.
    pub index: u32,
    /// Origin of the newest packet: the socket, the peer's address, and our address.
    pub newest: Option<(u32, SocketAddr, Option<IpAddr>)>,
}

/// State of a path in the sending thread, in addition to its machine.
#[derive(Serialize, Deserialize)]
pub struct LaneCheckpoint {
    /// Id of the path.
    pub path: u16,
    /// Name of the path, for status and logs.
    pub name: String,
    /// Address of the client, once it is known.
    pub remote: Option<SocketAddr>,
    /// Local address that the client uses.
    pub local: Option<IpAddr>,
    /// Receiver index in departing packets.
    pub peer_index: u32,
    /// Packet size of a path until it is probed, bytes of outer IP packet.
    pub mtu: u16,
    /// Cap of the sending rate, bit/s.
    pub cap_bps: Option<u64>,
    /// Preference of the path: the code of a [`Priority`], and whether transfers may use it. Absent
    /// in older versions, and for a path without restrictions.
    #[serde(default)]
    pub preference: Option<(u8, bool)>,
}

/// Key of an epoch for one direction.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeyCheckpoint {
    /// The epoch.
    pub epoch: u8,
    /// Cipher of the key.
    #[serde(serialize_with = "write_cipher", deserialize_with = "read_cipher")]
    pub cipher: Cipher,
    /// 32 bytes of key, then 12 of IV.
    #[serde(serialize_with = "write_key", deserialize_with = "read_key")]
    pub material: Zeroizing<[u8; 44]>,
    /// Remaining time for which it decrypts packets, milliseconds; `None` while it is the newest.
    pub expires_in_ms: Option<u64>,
}

fn write_key<S: Serializer>(material: &Zeroizing<[u8; 44]>, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&Zeroizing::new(HEXLOWER.encode(&**material)))
}

fn read_key<'de, D: Deserializer<'de>>(input: D) -> Result<Zeroizing<[u8; 44]>, D::Error> {
    let text = Zeroizing::new(String::deserialize(input)?);
    let bytes = HEXLOWER.decode(text.as_bytes()).map(Zeroizing::new).ok();
    let material = bytes.and_then(|bytes| <[u8; 44]>::try_from(bytes.as_slice()).ok());
    // The error must not contain the text, which is a secret.
    let material =
        material.ok_or_else(|| serde::de::Error::custom("a key is not 44 bytes in hexadecimal"))?;
    Ok(Zeroizing::new(material))
}

const CIPHERS: [(Cipher, &str); 2] = [
    (Cipher::Aes256Gcm, "aes-256-gcm"),
    (Cipher::ChaCha20Poly1305, "chacha20-poly1305"),
];

fn write_cipher<S: Serializer>(cipher: &Cipher, out: S) -> Result<S::Ok, S::Error> {
    let (_, name) = CIPHERS
        .iter()
        .find(|(known, _)| known == cipher)
        .expect("all are listed");
    out.serialize_str(name)
}

fn read_cipher<'de, D: Deserializer<'de>>(input: D) -> Result<Cipher, D::Error> {
    let name = String::deserialize(input)?;
    let known = CIPHERS.iter().find(|(_, known)| *known == name);
    known
        .map(|(cipher, _)| *cipher)
        .ok_or_else(|| serde::de::Error::custom("an unknown cipher"))
}
