//! Detection of captive portals: by the network's own announcement (`api.rs`, RFC 8908), and
//! without one, by the content of a known page (`page.rs`). Both are requested over that network
//! alone (`fetch.rs`).

mod api;
pub(crate) mod fetch;
mod found;
mod page;

use hawser_config::Page;
use hawser_steer::portal::Outcome;

use crate::dns::NetworkAccess;

pub use api::{advertised, read};
pub use found::{Found, Left};
pub use page::judge;

/// Inputs of a check.
#[derive(Clone, Debug)]
pub struct PortalCheckInputs {
    /// The network.
    pub access: NetworkAccess,
    /// The page by which portals are found.
    pub page: Page,
    /// Address of the network's captive portal API (RFC 8910 section 2).
    pub api: Option<String>,
}

/// Checks once. An answer of the network's API takes precedence; the page is then not requested.
pub async fn check_portal(look: &PortalCheckInputs) -> Found {
    let told = match &look.api {
        Some(address) => api::ask(&look.access, address).await,
        None => None,
    };
    match told {
        Some(found) if found.outcome == Outcome::Page || found.login.is_some() => found,
        // A network whose API does not name the login page redirects requests of a page to it.
        told => {
            let (outcome, login) = page::request(&look.access, &look.page).await;
            Found {
                outcome: told.map_or(outcome, |found| found.outcome),
                login,
                left: Left::default(),
            }
        }
    }
}
