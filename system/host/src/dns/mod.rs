//! Resolvers: which ones a network has (`servers.rs`), questions to them over that network alone
//! (`lookup.rs`), one question and its answer (`exchange.rs`), the check of an answer
//! (`answer.rs`), and a server for programs (`server.rs`).

pub mod answer;
pub mod exchange;
mod lookup;
pub mod server;
mod servers;

pub use lookup::NetworkAccess;
pub use servers::{NameServers, Servers, below, watch};
