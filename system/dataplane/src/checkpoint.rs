//! What of a data plane goes to its successor: the keys, addresses and machines of each session.
//!
//! Both threads have a part of it. The receiving one ends first and passes its part on, so that
//! nothing arrives after its replay windows were written; the sending one adds its own, and with
//! the whole the data plane ends.

use std::net::{IpAddr, SocketAddr};

use data_encoding::HEXLOWER;
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
use hawser_proto::tunnel::Role;

/// One session of a hub.
#[derive(Serialize, Deserialize)]
pub struct SessionCheckpoint {
    /// Its number.
    pub session: u64,
    /// The sending half.
    pub sending: SendingHalf,
    /// The receiving half.
    pub receiving: ReceivingHalf,
}

impl SessionCheckpoint {
    /// Whether the machines take it: what a thread finds out later would leave half a session.
    ///
    /// # Errors
    /// Its numbers are impossible, or it names something unknown.
    pub fn check(&self) -> Result<(), BadCheckpoint> {
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut egress = Egress::<u32>::restore(&self.sending.machine, 1, now)?;
        for path in &self.sending.machine.paths {
            let lane = self.sending.lane(path.id).ok_or(BadCheckpoint::Impossible)?;
            egress.restore_path(lane.config(), path, lane.remote.is_some(), now)?;
        }
        Ingress::<u32>::restore(&self.receiving.machine, now).map(drop)
    }

    /// Whether it has the same paths as the control side: ids and both indexes.
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
    /// What is known of a path beside its machine.
    #[must_use]
    pub fn lane(&self, path: u16) -> Option<&LaneCheckpoint> {
        self.lanes.iter().find(|lane| lane.path == path)
    }
}

impl LaneCheckpoint {
    /// What the path's machine starts with.
    #[must_use]
    pub fn config(&self) -> path::Config {
        let cap = self.cap_bps.map(Rate::from_bps);
        path_config(PathId(self.path), Role::Hub, self.mtu, cap, self.remote.as_ref())
    }

    /// For what the path is used.
    #[must_use]
    pub fn preference(&self) -> Preference {
        let known = self.preference.and_then(|(code, takes_bulk)| {
            let priority = Priority::of_code(code)?;
            Some(Preference { priority, takes_bulk })
        });
        known.unwrap_or_default()
    }
}

/// The sending half of a session.
#[derive(Serialize, Deserialize)]
pub struct SendingHalf {
    /// The key in use, if there is one.
    pub key: Option<KeyCheckpoint>,
    /// The key that the client has not used yet.
    pub next_key: Option<KeyCheckpoint>,
    /// The newest epoch that the client has used.
    pub heard_epoch: Option<u8>,
    /// Where the datagrams of each path go.
    pub lanes: Vec<LaneCheckpoint>,
    /// The machine.
    pub machine: Sending,
}

/// The receiving half of a session.
#[derive(Serialize, Deserialize)]
pub struct ReceivingHalf {
    /// The keys that open packets; the newest last.
    pub keys: Vec<KeyCheckpoint>,
    /// The newest epoch that the client has used.
    pub newest_used: Option<u8>,
    /// What arriving packets of each path carry, and where they come from.
    pub paths: Vec<SourceCheckpoint>,
    /// The machine.
    pub machine: Receiving,
}

/// One path, as the receiving thread knows it beside its machine.
#[derive(Serialize, Deserialize)]
pub struct SourceCheckpoint {
    /// Its id.
    pub path: u16,
    /// The index that arriving packets carry.
    pub index: u32,
    /// Where the newest packet came from: by which socket, from which address, to which address of
    /// ours.
    pub newest: Option<(u32, SocketAddr, Option<IpAddr>)>,
}

/// One path, as the sending thread knows it beside its machine.
#[derive(Serialize, Deserialize)]
pub struct LaneCheckpoint {
    /// Its id.
    pub path: u16,
    /// Its name, for status and logs.
    pub name: String,
    /// The client's address, once it is known.
    pub remote: Option<SocketAddr>,
    /// The address of ours that the client speaks to.
    pub local: Option<IpAddr>,
    /// The index that departing packets carry.
    pub peer_index: u32,
    /// What a path may carry until it was probed, bytes of outer IP packet.
    pub mtu: u16,
    /// The cap of what is sent on it, bit/s.
    pub cap_bps: Option<u64>,
    /// For what it is used: the code of a [`Priority`], and whether transfers may use it. Older
    /// versions do not know it, nor is it said where a path is used for all.
    #[serde(default)]
    pub preference: Option<(u8, bool)>,
}

/// One direction's key of an epoch.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeyCheckpoint {
    /// The epoch.
    pub epoch: u8,
    /// What it is for.
    #[serde(serialize_with = "write_cipher", deserialize_with = "read_cipher")]
    pub cipher: Cipher,
    /// 32 bytes of key, then 12 of IV.
    #[serde(serialize_with = "write_key", deserialize_with = "read_key")]
    pub material: Zeroizing<[u8; 44]>,
    /// For how much longer it opens packets, milliseconds; `None` while it is the newest.
    pub expires_in_ms: Option<u64>,
}

fn write_key<S: Serializer>(material: &Zeroizing<[u8; 44]>, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&Zeroizing::new(HEXLOWER.encode(&**material)))
}

fn read_key<'de, D: Deserializer<'de>>(input: D) -> Result<Zeroizing<[u8; 44]>, D::Error> {
    let text = Zeroizing::new(String::deserialize(input)?);
    let bytes = HEXLOWER.decode(text.as_bytes()).map(Zeroizing::new).ok();
    let material = bytes.and_then(|bytes| <[u8; 44]>::try_from(bytes.as_slice()).ok());
    // The text is no part of the message: it is a secret.
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
