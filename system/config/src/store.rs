//! Configuration of the store of clients.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Deserializer;
use tokio_postgres::config::{Host, SslMode};
use zeroize::Zeroizing;

use crate::Span;

/// `[store]` of `hub.toml`: PostgreSQL database for the clients of several hubs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "StoreTable")]
pub struct StoreConfig {
    /// Address of the database.
    pub url: StoreUrl,
    /// Issuer of the server's certificate, a file of PEM.
    pub ca: Option<PathBuf>,
    /// Time for which a hub serves known clients while the database does not answer, including
    /// clients that were revoked at another hub in the meantime.
    pub stale: Span,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoreTable {
    url: StoreUrl,
    ca: Option<PathBuf>,
    #[serde(default = "default_stale")]
    stale: Span,
}

/// Returns the default of `stale`: restarts and fail-overs of a database take seconds to minutes,
/// and a client that was revoked at another hub is served no longer than this.
fn default_stale() -> Span {
    Span(Duration::from_secs(15 * 60))
}

/// Shortest `stale`. Source: two attempts at a database that does not answer take 5 s each
/// (`TIMEOUT` of the store), and a fail-over takes longer.
const SHORTEST_STALE: Duration = Duration::from_secs(30);

impl StoreConfig {
    /// Creates a store with this URL, and optionally the issuer of its certificate.
    ///
    /// # Errors
    /// If the connection would not be protected, so that traffic between hub and database could be
    /// read and changed.
    pub fn new(url: StoreUrl, ca: Option<PathBuf>) -> Result<Self, String> {
        let config = url.config();
        let is_near = config.get_hosts().iter().all(|host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => {
                name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
            }
        });
        if ca.is_none() && !is_near && config.get_ssl_mode() != SslMode::Disable {
            return Err(
                "the database is on another machine: give the file of the authority that signed its certificate \
                 (ca = \"...\"), or add ?sslmode=disable to the URL if the network between them is trusted"
                    .to_owned(),
            );
        }
        let stale = default_stale();
        Ok(Self { url, ca, stale })
    }
}

impl TryFrom<StoreTable> for StoreConfig {
    type Error = String;

    fn try_from(table: StoreTable) -> Result<Self, String> {
        let stale = table.stale;
        if stale.0 < SHORTEST_STALE {
            return Err(
                "stale is too short: expected at least 30s, because a query of the database may take 5 s"
                    .to_owned(),
            );
        }
        Ok(Self {
            stale,
            ..Self::new(table.url, table.ca)?
        })
    }
}

/// URL `postgresql://USER:PASSWORD@HOST/DATABASE`, as in libpq; several hosts are tried in turn.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(Zeroizing<String>);

impl StoreUrl {
    /// Returns the parsed connection parameters.
    #[must_use]
    pub fn config(&self) -> tokio_postgres::Config {
        self.0.parse().expect("it was parsed before")
    }

    /// Returns whether the URL contains a password.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.config().get_password().is_some()
    }

    /// Returns the URL as in the file, including the password.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl FromStr for StoreUrl {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let scheme = ["postgresql://", "postgres://"];
        let config: tokio_postgres::Config = text.parse().map_err(drop)?;
        let is_url = scheme.iter().any(|scheme| text.starts_with(scheme));
        if is_url && !config.get_hosts().is_empty() && config.get_user().is_some() {
            Ok(Self(Zeroizing::new(text.to_owned())))
        } else {
            Err(())
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreUrl").field(&self.config()).finish()
    }
}

from_text!(
    StoreUrl,
    "a database, such as \"postgresql://hawser:PASSWORD@db.example.org/hawser\""
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_checked_and_its_password_is_not_shown() {
        for wrong in [
            "",
            "mysql://a@b/c",
            "postgresql:///hawser",
            "postgresql://db/hawser",
            "host=db user=a",
        ] {
            assert_eq!(wrong.parse::<StoreUrl>(), Err(()), "{wrong}");
        }
        let url: StoreUrl = "postgresql://hawser:secret@db.example.org,db2.example.org/hawser"
            .parse()
            .unwrap();
        assert!(!format!("{url:?}").contains("secret"));
        assert_eq!(url.config().get_hosts().len(), 2);
    }

    #[test]
    fn says_how_long_clients_are_served_without_it() {
        let read = |text: &str| {
            let text = format!("url = \"postgresql://a@localhost/h\"\n{text}");
            toml::from_str::<StoreConfig>(&text)
        };
        assert_eq!(read("").unwrap().stale.0, Duration::from_secs(900));
        assert_eq!(
            read("stale = \"1h\"").unwrap().stale.0,
            Duration::from_secs(3_600)
        );
        let error = read("stale = \"5s\"").unwrap_err().to_string();
        assert!(error.contains("at least 30s"), "{error}");
    }

    #[test]
    fn a_database_elsewhere_is_not_asked_in_the_clear_unless_that_is_said() {
        let store =
            |url: &str, ca: Option<&str>| StoreConfig::new(url.parse().unwrap(), ca.map(PathBuf::from));
        assert!(
            store("postgresql://a@db.example.org/h", None)
                .unwrap_err()
                .contains("ca =")
        );
        for (url, ca) in [
            ("postgresql://a@db.example.org/h", Some("/ca.pem")),
            ("postgresql://a@db.example.org/h?sslmode=disable", None),
            ("postgresql://a@127.0.0.1/h", None),
            ("postgresql://a@%2Frun%2Fpostgresql/h", None),
        ] {
            assert!(store(url, ca).is_ok(), "{url}");
        }
    }
}
