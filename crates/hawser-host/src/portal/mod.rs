//! Whether a captive portal stands before a network: what the network itself says (`api.rs`, RFC
//! 8908), and where it says nothing, what is in the place of a known page (`page.rs`). Both are
//! asked for over that network alone (`fetch.rs`).

mod api;
mod fetch;
mod page;

use hawser_config::Page;
use hawser_steer::portal::Outcome;

use crate::dns::Place;

pub use api::{Left, Told, advertised, read};
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

/// What a look has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether a portal is there.
    pub outcome: Outcome,
    /// Where to log in, or where to make the login last longer.
    pub login: Option<String>,
    /// What is left of the login.
    pub left: Left,
}

/// Looks once. The network's own word counts before the page, of which nothing is asked then.
pub async fn look_for_portal(look: &Look) -> Found {
    let told = match &look.api {
        Some(address) => api::ask(&look.place, address).await,
        None => None,
    };
    match told {
        Some(Told {
            is_captive: false,
            login,
            left,
        }) => Found {
            outcome: Outcome::Page,
            login,
            left,
        },
        Some(Told {
            login: Some(login), ..
        }) => Found {
            outcome: Outcome::Other,
            login: Some(login),
            left: Left::default(),
        },
        // A network that does not say where to log in sends those there who ask for a page.
        told => {
            let (outcome, login) = page::look(&look.place, &look.page).await;
            Found {
                outcome: told.map_or(outcome, |_| Outcome::Other),
                login,
                left: Left::default(),
            }
        }
    }
}
