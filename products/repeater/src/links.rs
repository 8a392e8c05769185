//! Links of a box: usable links, and boxes that were found on them by hellos.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Instant as Clock;

use anyhow::Context;
use hawser_config::identity::KeyHash;
use hawser_linux::links::{Interfaces, Link, open_group};
use hawser_linux::netlink::{Device, Watch};
use hawser_proto::discovery::{Discovery, Heard, Side, Transmit};
use hawser_units::Instant;
use hawser_wire::link_hello::{HELLO_LEN, LinkHello};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{HELLO_PORT, Options};

/// Change of a link.
pub(super) enum Change {
    /// Usable link.
    Up(Link),
    /// Unusable link.
    Down(Link),
}

/// Usable links.
pub(super) struct Links {
    names: Vec<String>,
    neighbours: BTreeMap<String, Ipv6Addr>,
    up: BTreeMap<u32, Used>,
    discovery: Discovery,
    tell: mpsc::Sender<Hello>,
    hellos: mpsc::Receiver<Hello>,
    interfaces: Interfaces,
    watch: Watch<Device>,
    look_at: tokio::time::Instant,
    started: Clock,
}

/// Hello, with its link and its sender.
type Hello = (u32, Ipv6Addr, LinkHello);

struct Used {
    link: Link,
    socket: Arc<UdpSocket>,
    reading: JoinHandle<()>,
}

impl Drop for Used {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Links {
    /// Creates the state without usable links. Must be called within a tokio runtime.
    pub(super) fn new(
        options: &Options,
        side: Side,
        own: KeyHash,
        interfaces: Interfaces,
    ) -> anyhow::Result<Self> {
        let (tell, hellos) = mpsc::channel(HELLOS);
        Ok(Self {
            names: options.links.clone(),
            neighbours: options.neighbours.clone(),
            up: BTreeMap::new(),
            discovery: Discovery::new(side, own.0),
            tell,
            hellos,
            interfaces,
            watch: Watch::devices().context("cannot watch the links")?,
            look_at: tokio::time::Instant::now(),
            started: Clock::now(),
        })
    }

    /// Returns the names of all links, usable or not.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the usable links.
    pub(super) fn up(&self) -> impl Iterator<Item = &Link> {
        self.up.values().map(|used| &used.link)
    }

    /// Yields the boxes from which hellos were received, by link.
    pub(super) fn heard(&self) -> impl Iterator<Item = &Heard> {
        self.discovery.heard()
    }

    /// Waits for changes and returns them. Cancel safe.
    pub(super) async fn next(&mut self) -> anyhow::Result<Vec<Change>> {
        let due = self.discovery.poll_timeout().map_or(self.look_at, |due| {
            let due = self.started + std::time::Duration::from_nanos(due.as_nanos());
            self.look_at.min(tokio::time::Instant::from_std(due))
        });
        let mut looks = false;
        tokio::select! {
            hello = self.hellos.recv() => if let Some((link, from, hello)) = hello {
                let now = self.now();
                self.discovery.handle_hello(link, from, &hello, now);
            },
            devices = self.watch.next() => {
                devices?;
                looks = true;
            }
            () = tokio::time::sleep_until(due) => looks = self.look_at <= tokio::time::Instant::now(),
        }
        let changes = if looks { self.update().await? } else { Vec::new() };
        let now = self.now();
        self.discovery.handle_timeout(now);
        while let Some(transmit) = self.discovery.poll_transmit(now) {
            self.send(&transmit);
        }
        Ok(changes)
    }

    /// Reads the state of the links; cancellation changes nothing.
    async fn update(&mut self) -> anyhow::Result<Vec<Change>> {
        let found = self
            .interfaces
            .usable(&self.names)
            .await
            .context("cannot list the links")?;
        self.look_at = tokio::time::Instant::now() + POLL_INTERVAL;
        let gone: Vec<u32> = self
            .up
            .iter()
            .filter(|(_, used)| !found.contains(&used.link))
            .map(|(index, _)| *index)
            .collect();
        let mut changes = Vec::new();
        for index in gone {
            self.discovery.handle_link_down(index);
            if let Some(used) = self.up.remove(&index) {
                tracing::info!(link = used.link.name, "link down");
                changes.push(Change::Down(used.link.clone()));
            }
        }
        for link in found {
            if self.up.contains_key(&link.index) {
                continue;
            }
            match self.take(&link) {
                Ok(used) => {
                    tracing::info!(link = link.name, address = %link.address, "link up");
                    self.up.insert(link.index, used);
                    let whom = self.neighbours.get(&link.name).copied();
                    let now = self.now();
                    self.discovery.handle_link_up(link.index, whom, now);
                    changes.push(Change::Up(link));
                }
                Err(error) => tracing::warn!(link = link.name, %error, "link not usable"),
            }
        }
        Ok(changes)
    }

    fn take(&self, link: &Link) -> std::io::Result<Used> {
        let socket = Arc::new(UdpSocket::from_std(open_group(link, GROUP, HELLO_PORT)?)?);
        let (tell, index, heard) = (self.tell.clone(), link.index, Arc::clone(&socket));
        let reading = hawser_linux::tasks::spawn(async move {
            let mut bytes = [0; HELLO_LEN + 1];
            loop {
                match heard.recv_from(&mut bytes).await {
                    Ok((len, SocketAddr::V6(from))) => {
                        if let Some(hello) = LinkHello::parse(&bytes[..len]) {
                            // If there are too many hellos, some are lost; they are repeated.
                            let _ = tell.try_send((index, *from.ip(), hello));
                        }
                    }
                    Ok(_) => {}
                    // The device may be down temporarily.
                    Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
                }
            }
        });
        Ok(Used {
            link: link.clone(),
            socket,
            reading,
        })
    }

    fn send(&self, transmit: &Transmit) {
        let Some(used) = self.up.get(&transmit.link) else {
            return;
        };
        let to = transmit.to.unwrap_or(GROUP);
        let to = SocketAddrV6::new(to, HELLO_PORT, 0, transmit.link);
        if let Err(error) = used.socket.try_send_to(&transmit.hello.emit(), to.into()) {
            tracing::debug!(link = used.link.name, %error, "hello not sent");
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }
}

/// Multicast group of all boxes of a link: of link scope, assigned by no registry (RFC 4291 section
/// 2.7), with the number of the port's letters.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0, super::PORT);
/// Poll interval: the kernel does not report on devices' sockets when addresses become ready.
/// Source: our choice; a longer one uses a link later after its start.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);
/// Capacity of the queue of hellos. Source: our choice; a box has a few links, which say hello once
/// a second (`ASK` of `core/proto/src/discovery.rs`).
const HELLOS: usize = 64;
