//! Check of the host and the origin of requests to the page.
//!
//! Another site's page can send requests to this one through a name that resolves to it (DNS
//! rebinding), or from a browser that is signed in. The first is refused by `Host`, the second by
//! `Origin` and `Sec-Fetch-Site`.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// The name by which phones find the page.
pub(super) const NAME: &str = "hawser.local";

/// Names of this gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sites {
    names: BTreeSet<String>,
}

/// Header fields of a request that state its destination and origin.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origins<'a> {
    /// `Host`.
    pub(super) host: Option<&'a str>,
    /// `Origin`.
    pub(super) origin: Option<&'a str>,
    /// `Sec-Fetch-Site`.
    pub(super) site: Option<&'a str>,
}

/// Reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request is for another host.
    Host,
    /// Another page sent it.
    Origin,
}

impl Sites {
    /// Creates the list with the machine's name, in addition to the name for phones.
    pub(super) fn new(machine: &str) -> Self {
        let machine = machine.to_ascii_lowercase();
        let mut names = BTreeSet::from([NAME.to_owned()]);
        if !machine.is_empty() {
            let short = machine.split('.').next().unwrap_or_default();
            names.extend([machine.clone(), short.to_owned(), format!("{short}.local")]);
        }
        names.remove("localhost");
        Self { names }
    }

    /// Returns all names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Checks a request that was received at `own`, an address of this gateway. A change needs an
    /// `Origin`, which browsers add; a request without a change may lack one.
    ///
    /// # Errors
    /// The request is for another host, or from another page.
    pub(super) fn check(&self, asked: Origins<'_>, own: IpAddr, is_change: bool) -> Result<(), Refusal> {
        let host = asked.host.unwrap_or_default().to_ascii_lowercase();
        if !self.is_ours(&host, own) {
            return Err(Refusal::Host);
        }
        let is_near = matches!(asked.site, None | Some("same-origin" | "none"));
        let is_from_us = match asked.origin {
            Some(origin) => {
                let from = origin.strip_prefix("https://").map(str::to_ascii_lowercase);
                from.is_some_and(|from| without_port(&from) == without_port(&host))
            }
            None => !is_change,
        };
        // A link on another site may open the page, since this changes nothing.
        let is_shown = !is_change && asked.origin.is_none();
        if is_from_us && (is_near || is_shown) {
            Ok(())
        } else {
            Err(Refusal::Origin)
        }
    }

    fn is_ours(&self, host: &str, own: IpAddr) -> bool {
        let name = without_port(host);
        let address: Result<IpAddr, _> = name.trim_start_matches('[').trim_end_matches(']').parse();
        match address {
            Ok(address) => own == address,
            Err(_) => self.names.contains(name.trim_end_matches('.')),
        }
    }
}

/// Removes the HTTPS port from a host; any other port stays, so the host does not match.
fn without_port(host: &str) -> &str {
    host.strip_suffix(":443").unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn own() -> IpAddr {
        [192, 168, 50, 1].into()
    }

    fn asked<'a>(host: &'a str, origin: Option<&'a str>, site: Option<&'a str>) -> Origins<'a> {
        Origins {
            host: Some(host),
            origin,
            site,
        }
    }

    #[test]
    fn answers_to_its_names_and_the_address_where_it_is_reached() {
        let sites = Sites::new("Van.example.org");
        for host in [
            "hawser.local",
            "HAWSER.local:443",
            "hawser.local.",
            "van",
            "van.local",
            "van.example.org",
            "192.168.50.1",
            "192.168.50.1:443",
        ] {
            assert_eq!(
                sites.check(asked(host, None, None), own(), false),
                Ok(()),
                "{host}"
            );
        }
        for host in [
            "",
            "example.org",
            "hawser.local.example.org",
            "192.168.50.2",
            "[fd00::1]",
            "hawser.local:8443",
            "localhost",
            "127.0.0.1",
            "hawser.local@example.org",
        ] {
            let refused = sites.check(asked(host, None, None), own(), false);
            assert_eq!(refused, Err(Refusal::Host), "{host}");
        }
        assert_eq!(sites.check(Origins::default(), own(), false), Err(Refusal::Host));
        let v6: IpAddr = "fd00:50::1".parse().unwrap();
        assert_eq!(sites.check(asked("[fd00:50::1]", None, None), v6, false), Ok(()));
        let local = Sites::new("localhost");
        assert!(local.check(asked("localhost", None, None), own(), false).is_err());
    }

    /// Rows: `Origin`, `Sec-Fetch-Site`, whether the request may read, whether it may change
    /// something.
    #[test]
    fn changes_come_from_its_own_page_alone() {
        let sites = Sites::new("van");
        let table = [
            (None, None, true, false),
            (None, Some("none"), true, false),
            (None, Some("cross-site"), true, false),
            (Some("https://hawser.local"), None, true, true),
            (Some("https://hawser.local"), Some("same-origin"), true, true),
            (Some("https://hawser.local:443"), Some("same-origin"), true, true),
            (Some("https://hawser.local"), Some("cross-site"), false, false),
            (Some("http://hawser.local"), None, false, false),
            (Some("https://van.local"), None, false, false),
            (Some("https://example.org"), None, false, false),
            (Some("https://hawser.local.example.org"), None, false, false),
            (Some("null"), None, false, false),
            (Some(""), None, false, false),
        ];
        for (origin, site, shows, changes) in table {
            let asked = asked("hawser.local", origin, site);
            let seen = [false, true].map(|is_change| sites.check(asked, own(), is_change).is_ok());
            assert_eq!(seen, [shows, changes], "{origin:?} {site:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_of_a_stranger_passes_by_chance(host in ".{0,60}", origin in ".{0,60}") {
            let sites = Sites::new("van");
            let asked = asked(&host, Some(&origin), None);
            if sites.check(asked, own(), true).is_ok() {
                prop_assert!(origin.starts_with("https://"));
            }
        }
    }
}
