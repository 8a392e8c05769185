//! Station interfaces that Hawser creates on Wi-Fi cards.

use super::{System, SystemError, index_of};
use crate::journal::Entry;
use crate::wireless::cards::{Wireless, WirelessError};

impl System {
    /// Creates a station interface with an address on a card; it is down, and is removed when
    /// changes are undone.
    ///
    /// # Errors
    /// The name is taken, the card supports no further interface, or the journal cannot be written.
    pub async fn add_station(
        &mut self,
        wireless: &Wireless,
        card: u32,
        interface: &str,
        address: [u8; 6],
    ) -> Result<(), SystemError> {
        let added = wireless.add_station(card, interface, address);
        self.note_interface(interface, added).await
    }

    /// Creates a monitor interface that acknowledges frames to its address, and brings it up; it is
    /// removed when changes are undone.
    ///
    /// # Errors
    /// As [`add_station`](Self::add_station).
    pub async fn add_monitor(
        &mut self,
        wireless: &Wireless,
        card: u32,
        interface: &str,
        address: [u8; 6],
    ) -> Result<u32, SystemError> {
        let added = wireless.add_monitor(card, interface, address);
        self.note_interface(interface, added).await?;
        self.link_up(interface).await?;
        self.index(interface)
    }

    /// Records an interface in the journal, then creates it.
    async fn note_interface(
        &mut self,
        interface: &str,
        make: impl Future<Output = Result<(), WirelessError>>,
    ) -> Result<(), SystemError> {
        if index_of(interface).is_some() {
            return Err(SystemError::NotOurs(interface.to_owned()));
        }
        let entry = Entry::Station {
            interface: interface.to_owned(),
        };
        self.enter(entry.clone())?;
        let made = make.await;
        if made.is_err() {
            self.strike(&entry)?;
        }
        Ok(made?)
    }

    /// Removes a station interface created by this value.
    ///
    /// # Errors
    /// The kernel refuses, or the journal cannot be written.
    pub async fn remove_station(&mut self, interface: &str) -> Result<(), SystemError> {
        remove(interface).await?;
        self.strike(&Entry::Station {
            interface: interface.to_owned(),
        })
    }

    /// Removes the station interfaces left by a crash.
    pub async fn undo_left_stations(&mut self) {
        self.undo_of_left(|entry| matches!(entry, Entry::Station { .. }))
            .await;
    }
}

/// Removes a station interface, which may have been removed with its card.
pub(super) async fn remove(interface: &str) -> Result<(), SystemError> {
    let Some(index) = index_of(interface) else {
        return Ok(());
    };
    match Wireless::open()?.remove(index).await {
        Err(error) if error.code() == Some(libc::ENODEV) => Ok(()),
        other => Ok(other?),
    }
}

impl From<WirelessError> for SystemError {
    fn from(error: WirelessError) -> Self {
        Self::Wireless(error)
    }
}
