//! Files of a machine before a daemon starts: its configuration, its key, invitations.
//!
//! Every number has a unit, every key is known, and an error names the file, the line and the
//! remedy, before any change of the system.
//!
//! - `client.toml`, of clients and of direct mode, is [`ClientConfig`] (`client.rs`); its tables
//!   are in `dashboard.rs` (the page for a LAN), `device.rs` (devices that settings follow),
//!   `direct.rs` (rules, direct mode), `when.rs` (conditions), `gateway.rs`, `layers.rs`, `pool.rs`
//!   (neighbours), `preference.rs` (use of networks), `radio.rs` and `tls.rs`. The permitted combinations are in `combinations.rs`.
//! - `hub.toml` is [`HubConfig`] (`hub.rs`); its tables are in `limits.rs` (what clients may use),
//!   `reach.rs`, `store.rs` (database), `tls.rs` and `wireguard.rs`.
//! - `share.toml`, of a device that gives to neighbours, is [`ShareConfig`] (`pool.rs`). Members
//!   without Hawser are in `gre.rs`, for `hub.toml` and for `client.toml`.
//! - [`edit`] changes single settings of `client.toml` and preserves the rest of its text.
//! - A key, and the code that users compare, are in [`identity`]; the text that a hub's owner sends
//!   to a new client is in [`invitation`].
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
mod dashboard;
mod device;
mod direct;
pub mod edit;
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
mod secrecy;
mod store;
mod streams;
mod tls;
mod tunnel;
mod when;
mod wireguard;

pub use address_pool::Pool;
pub use check::{CheckConfig, CheckTarget, Host};
pub use client::{ClientConfig, NetworkConfig};
pub use dashboard::{DashboardConfig, DashboardListen, LanDeviceConfig, LanDevices};
pub use device::{DeviceConfig, DevicePath, Followed, Imei, PresentDevice, Section, Ssid};
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
pub use preference::{EachDirection, Uses, When};
pub use radio::{AccessPoints, Password, RadioConfig, WifiNetwork};
pub use reach::{AllowConfig, AllowTo, AnyNet, ClientNames, HubService, Inbound, Protocol, ReachConfig};
pub use reload::{differing, log_reload};
pub use store::{StoreConfig, StoreUrl};
pub use streams::{StreamsConfig, TcpMode};
pub use tls::{AcmeConfig, HostName, HubTlsConfig, Login, Proxy, ProxyKind, TlsConfig, TlsListen, TlsUse};
pub use tunnel::{DEFAULT_MTU, Schedulers};
pub use values::{
    ControllerName, Day, Deadline, DeviceAddress, DhcpMode, DnsMode, Endpoint, HubUse, InterfaceName,
    LogFilter, Mtu, Nat, NatAddresses, Net4, Net6, Pattern, QuotaAction, RoamingUse, SchedulerName,
    SessionTimeout, Share, Size, Span, Speed, ThreadPairs, WhenEnded, WhenStopped, WithoutHub,
};
pub use wireguard::{HubWireGuardConfig, WireGuardKey};

#[cfg(test)]
mod tests;
