//! What is on a machine's disk before a daemon starts: its configuration, its key, invitations.
//!
//! Every number has a unit, every key is known, and an error names the file, the line and the
//! remedy, before anything is touched.
//!
//! - `client.toml`, of clients and of direct mode, is [`ClientConfig`] (`client.rs`); its tables
//!   are in `direct.rs` (rules, direct mode), `when.rs` (conditions), `gateway.rs`, `layers.rs`,
//!   `pool.rs` (neighbours), `preference.rs` (for what a network is used), `radio.rs` and `tls.rs`.
//!   What of it combines with what is in `combinations.rs`.
//! - `hub.toml` is [`HubConfig`] (`hub.rs`); its tables are in `limits.rs` (what clients may use),
//!   `reach.rs`, `store.rs` (database) and `tls.rs`.
//! - `share.toml`, of a device that gives to neighbours, is [`ShareConfig`] (`pool.rs`). Members
//!   without Hawser are in `gre.rs`, for `hub.toml` and for `client.toml`.
//! - A key, and the code that people compare, are in [`identity`]; what a hub's owner sends to a
//!   new client is in [`invitation`].
//!
//! `values.rs` has the values that several keys share (rates, sizes, times, patterns), `files.rs`
//! reads files, [`atomic_file`] writes them whole. A newcomer who adds a key starts in `client.rs`
//! or `hub.rs`; a test of it goes to `tests.rs`.
#![forbid(unsafe_code)]

#[macro_use]
mod values;
mod address_pool;
pub mod atomic_file;
mod check;
mod client;
mod combinations;
mod direct;
mod files;
mod gateway;
mod gre;
mod hub;
pub mod identity;
pub mod import;
pub mod invitation;
mod layers;
mod limits;
mod one_or_more;
mod otlp;
mod pool;
pub mod ports;
mod preference;
mod radio;
mod reach;
mod reload;
mod store;
mod streams;
mod tls;
mod tunnel;
mod when;

pub use address_pool::Pool;
pub use check::{CheckConfig, CheckTarget, Host};
pub use client::{ClientConfig, NetworkConfig};
pub use direct::{
    Dataplane, DirectConfig, Moves, MultipathPart, NetworkChoice, Page, PortalCheck, RuleConfig, Spread, Via,
};
pub use files::{ConfigError, check_hub_secrecy, check_secrecy, load, load_or_default, parse};
pub use gateway::{Forward, PortForwardConfig};
pub use gre::{GreMember, HubGreConfig};
pub use hub::HubConfig;
pub use layers::LayerConfig;
pub use limits::{LimitsConfig, SlowTo, WhenUsed};
pub use otlp::{Collector, OtlpConfig};
pub use pool::{PoolConfig, ShareConfig, TimeOfDay};
pub use preference::{EachWay, Uses, When};
pub use radio::{AccessPoints, Password, RadioConfig, WifiNetwork};
pub use reach::{AllowConfig, AllowTo, AnyNet, ClientNames, HubService, Inbound, Protocol, ReachConfig};
pub use reload::{differing, log_reload};
pub use store::{StoreConfig, StoreUrl};
pub use streams::{StreamsConfig, TcpMode};
pub use tls::{AcmeConfig, HostName, HubTlsConfig, Login, Proxy, ProxyKind, TlsConfig, TlsListen, TlsUse};
pub use tunnel::{DEFAULT_MTU, Schedulers};
pub use values::{
    Day, Deadline, DeviceAddress, DhcpMode, DnsMode, Endpoint, HubUse, InterfaceName, LogFilter, Mtu, Nat,
    NatAddresses, Net4, Net6, Pattern, QuotaAction, SchedulerName, Share, Size, Span, Speed, ThreadPairs,
    WhenEnded, WhenStopped, WithoutHub,
};

#[cfg(test)]
mod tests;
