//! Resolvers: which ones a network has (`servers.rs`), questions to them over that network alone
//! (`lookup.rs`), and what is taken of an answer (`answer.rs`).

pub mod answer;
mod lookup;
mod servers;

pub use lookup::{Place, read_framed, write_framed};
pub use servers::{NameServers, Servers, below, watch};
