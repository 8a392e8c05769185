//! Tables of nftables: installation, elements of their sets, and removal.

use std::net::IpAddr;

use super::observe::print_table;
use super::program::run;
use super::{System, SystemError};
use crate::desired::{Object, Wanted};
use crate::direct::{Elements, half};
use crate::journal::Entry;

impl System {
    /// Installs a table of the `inet` family; `body` is the text between its braces. An existing
    /// table of that name is replaced atomically.
    ///
    /// # Errors
    /// `nft` is missing or fails; the table is unchanged.
    pub fn nft_table(&mut self, table: &str, body: &str) -> Result<(), SystemError> {
        self.enter(Entry::NftTable {
            table: table.to_owned(),
        })?;
        // Prevents the reconciler from repairing the table meanwhile.
        let mut ledger = self.ledger();
        replace_table(table, body)?;
        let wanted = Wanted::Table {
            body: body.to_owned(),
            printed: print_table(table).unwrap_or_default(),
        };
        ledger.desired.want(Object::Table(table.to_owned()), wanted);
        Ok(())
    }

    /// Records a table in the journal that [`nft_table`](Self::nft_table) may install later.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn expect_nft_table(&mut self, table: &str) -> Result<(), SystemError> {
        self.enter(Entry::NftTable {
            table: table.to_owned(),
        })
    }

    /// Removes addresses from sets of a table and adds others with a lifetime; existing ones get
    /// the new lifetime. `removed` need not exist.
    ///
    /// # Errors
    /// `nft` fails, or the set does not exist.
    pub fn change_elements(
        &self,
        table: &str,
        removed: &[(String, IpAddr)],
        added: &Elements,
    ) -> Result<(), SystemError> {
        let line = |what: &str, set: &str, address: IpAddr, time: &str| {
            let set = half(set, address.is_ipv6());
            format!("{what} element inet {table} {set} {{ {address}{time} }}\n")
        };
        // Removing a missing element fails, so add it first.
        let without = |set: &str, address| line("add", set, address, "") + &line("delete", set, address, "");
        let mut script: String = removed
            .iter()
            .map(|(set, address)| without(set, *address))
            .collect();
        for (set, found) in added {
            for (address, lasts) in found {
                // An existing element keeps its lifetime unless it is removed first.
                script += &without(set, *address);
                let time = format!(" timeout {}s", lasts.as_secs().max(1));
                script += &line("add", set, *address, &time);
            }
        }
        nft(&script)
    }

    /// Removes a table that [`nft_table`](Self::nft_table) installed.
    ///
    /// # Errors
    /// `nft` refuses.
    pub fn drop_nft_table(&mut self, table: &str) -> Result<(), SystemError> {
        let entry = Entry::NftTable {
            table: table.to_owned(),
        };
        self.forget(&Object::Table(table.to_owned()));
        if !self.has_entered(&entry) {
            return Ok(());
        }
        drop_table(table)?;
        self.strike(&entry)
    }
}

/// Replaces a table atomically.
pub(crate) fn replace_table(table: &str, body: &str) -> Result<(), SystemError> {
    nft(&format!(
        "table inet {table} {{}}\ndelete table inet {table}\ntable inet {table} {{\n{body}\n}}\n"
    ))
}

/// Deletes a table of the `inet` family, if it exists.
pub fn drop_nft_table(table: &str) {
    if let Err(error) = drop_table(table) {
        tracing::debug!(%error, table, "a table is not deleted");
    }
}

/// Deletes a table, if it exists.
pub(super) fn drop_table(table: &str) -> Result<(), SystemError> {
    nft(&format!("table inet {table} {{}}\ndelete table inet {table}\n"))
}

fn nft(script: &str) -> Result<(), SystemError> {
    run("nft", &["-f", "-"], script).map(drop)
}
