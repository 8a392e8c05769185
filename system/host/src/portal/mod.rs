//! Whether a captive portal stands before a network: what the network itself says (`api.rs`, RFC
//! 8908), and where it says nothing, what is in the place of a known page (`page.rs`). Both are
//! asked for over that network alone (`fetch.rs`).

mod api;
pub(crate) mod fetch;
mod found;
mod page;

use hawser_config::Page;
use hawser_steer::portal::Outcome;

use crate::dns::Place;

pub use api::{advertised, read};
pub use found::{Found, Left};
pub use page::judge;

/// What a look goes by.
#[derive(Clone, Debug)]
pub struct Look {
    /// The network.
    pub place: Place,
    /// The page by which portals are found.
    pub page: Page,
    /// What the network gives as the address of its captive portal API (RFC 8910 section 2).
    pub api: Option<String>,
}

/// Looks once. The network's own word counts before the page, of which nothing is asked then.
pub async fn look_for_portal(look: &Look) -> Found {
    let told = match &look.api {
        Some(address) => api::ask(&look.place, address).await,
        None => None,
    };
    match told {
        Some(found) if found.outcome == Outcome::Page || found.login.is_some() => found,
        // A network that does not say where to log in sends those there who ask for a page.
        told => {
            let (outcome, login) = page::look(&look.place, &look.page).await;
            Found {
                outcome: told.map_or(outcome, |found| found.outcome),
                login,
                left: Left::default(),
            }
        }
    }
}
