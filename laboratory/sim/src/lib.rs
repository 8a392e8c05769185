//! Discrete-event simulation in virtual time around the machines of level 1: the daemon's own code,
//! without a kernel.
//!
//! A [`Network`] holds nodes and the links between them; each link is the lab's emulated link. A
//! [`Node`] handles packets and timers: a [`Router`], a [`host::Host`] with applications, or a type
//! of your own. All random numbers come from one seed by named streams, and events with equal times
//! happen in the order in which they were set, so every repetition of a run is identical.
//!
//! Scope: wired links, the shared 802.11 medium ([`radio`]), static routing, TCP, multipath TCP,
//! datagrams. Limitations: no ARP, no fragmentation; a packet is a value without bytes.
//!
//! # Usage
//! Two hosts, one link in each direction, one transfer:
//! ```
//! use hawser_netem::{Capacity, LinkConfig};
//! use hawser_sim::app::{TcpSink, TcpSource};
//! use hawser_sim::host::{End, Host, Route, join};
//! use hawser_sim::tcp::Config;
//! use hawser_sim::{FlowId, Network};
//! use hawser_units::{Duration, Instant, Rate};
//!
//! let mut network = Network::new(1);
//! let (client, server) = (network.add(Host::default()), network.add(Host::default()));
//! let (near, far) = (network.address(client), network.address(server));
//! let link = LinkConfig {
//!     capacity: Capacity::Rate(Rate::from_mbps(10)),
//!     delay: Duration::from_millis(20),
//!     ..LinkConfig::default()
//! };
//! let up = network.connect("up", client, server, link.clone());
//! let down = network.connect("down", server, client, link);
//! let config = Config::linux();
//! let (_, sink) = join(
//!     &mut network,
//!     FlowId(1),
//!     End {
//!         host: server,
//!         application: Box::new(TcpSource::new(config, None, Instant::ZERO)),
//!         routes: &[Route { link: down, local: far, remote: near }],
//!     },
//!     End {
//!         host: client,
//!         application: Box::new(TcpSink::new(config, None, Instant::ZERO)),
//!         routes: &[Route { link: up, local: near, remote: far }],
//!     },
//! );
//! let end = Instant::ZERO + Duration::from_secs(5);
//! network.run(end);
//! let client: &Host = network.node(client).unwrap();
//! let rate = client.application::<TcpSink>(sink).unwrap().meter().rate(Instant::ZERO, end);
//! assert!(rate > 8.5e6);
//! ```
//!
//! # Your own node
//! A node receives packets and timers, and acts through the [`Context`]. This one stripes received
//! packets over several links, as a proxy does:
//! ```
//! use hawser_sim::{Context, LinkId, Network, Node, Packet};
//! use hawser_units::Duration;
//!
//! struct RoundRobin { links: Vec<LinkId>, next: usize, probes: u32 }
//!
//! impl Node for RoundRobin {
//!     fn handle_start(&mut self, context: &mut Context<'_>) {
//!         context.after(Duration::from_millis(100), 0);
//!     }
//!     fn handle_packet(&mut self, packet: Packet, _from: LinkId, context: &mut Context<'_>) {
//!         context.send(self.links[self.next % self.links.len()], packet);
//!         self.next += 1;
//!     }
//!     fn handle_timer(&mut self, tag: u32, context: &mut Context<'_>) {
//!         self.probes += 1;
//!         context.after(Duration::from_millis(100), tag);
//!     }
//! }
//!
//! let mut network = Network::new(1);
//! let proxy = network.add(RoundRobin { links: Vec::new(), next: 0, probes: 0 });
//! network.run(hawser_units::Instant::from_nanos(1_000_000_000));
//! assert_eq!(network.node::<RoundRobin>(proxy).unwrap().probes, 10);
//! ```
//! Links are created after the nodes at their ends, which receive the links' ids by
//! [`Network::node_mut`]. A link changes by [`Network::change_at`], or by [`Context::change`] if a
//! node decides; [`Node::handle_link`] notifies the nodes at both ends. A LAN is
//! [`Network::connect_shared`]: any member sends on it, and the owner of the destination address
//! receives.
#![forbid(unsafe_code)]

pub mod app;
pub mod bench;
pub mod engine;
pub mod fleet;
pub mod host;
pub mod mptcp;
pub mod network;
pub mod packet;
pub mod pcapng;
pub mod radio;
mod router;
pub mod run;
mod streams;
pub mod tcp;

pub use network::{Context, LinkId, Network, Node, NodeId};
pub use packet::{Address, FlowId, Packet};
pub use router::Router;
pub use streams::Streams;
