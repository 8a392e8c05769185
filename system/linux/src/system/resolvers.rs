//! Resolvers for all names, through systemd-resolved or resolvconf.

use std::net::IpAddr;

use super::program::run;
use super::{System, SystemError, observe};
use crate::desired::{Object, Wanted};
use crate::journal::Entry;

impl System {
    /// Sets the resolvers for all names, through systemd-resolved or resolvconf.
    ///
    /// # Errors
    /// Neither program is available or succeeds.
    pub fn resolvers(&mut self, interface: &str, addresses: &[IpAddr]) -> Result<(), SystemError> {
        self.enter(Entry::Resolvers {
            interface: interface.to_owned(),
        })?;
        self.set_resolvers(interface, addresses)
    }

    /// Sets the resolvers of an interface again, if they are still desired.
    pub(super) fn restore_resolvers(&self, interface: &str) -> Result<(), SystemError> {
        let object = Object::Resolvers(interface.to_owned());
        let wanted = self.ledger().desired.value(&object).cloned();
        match wanted {
            Some(Wanted::Resolvers { addresses, .. }) => self.set_resolvers(interface, &addresses),
            _ => Ok(()),
        }
    }

    fn set_resolvers(&self, interface: &str, resolvers: &[IpAddr]) -> Result<(), SystemError> {
        let addresses: Vec<_> = resolvers.iter().map(ToString::to_string).collect();
        let mut dns = vec!["dns", interface];
        dns.extend(addresses.iter().map(String::as_str));
        let by_resolved =
            run("resolvectl", &dns, "").and_then(|_| run("resolvectl", &["domain", interface, "~."], ""));
        let set = by_resolved.or_else(|_| {
            let lines: String = addresses.iter().map(|a| format!("nameserver {a}\n")).collect();
            run("resolvconf", &["-a", interface, "-m", "0", "-x"], &lines)
        });
        set?;
        let recorded = observe::recorded_resolvers(interface, self.index(interface)?);
        let wanted = Wanted::Resolvers {
            addresses: resolvers.to_vec(),
            recorded: recorded.unwrap_or_default(),
        };
        self.want(Object::Resolvers(interface.to_owned()), wanted);
        Ok(())
    }
}
