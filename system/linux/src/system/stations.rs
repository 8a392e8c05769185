//! Station interfaces that Hawser makes on Wi-Fi cards.

use super::{System, SystemError, index_of};
use crate::journal::Entry;
use crate::wireless::cards::{Wireless, WirelessError};

impl System {
    /// Makes a station interface of that address on a card; it is down, and goes with all that is
    /// undone.
    ///
    /// # Errors
    /// The name is taken, the card has no room, or the journal cannot be written.
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

    /// Makes a monitor interface that acknowledges what comes to its address, and brings it up; it
    /// goes with all that is undone.
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

    /// Enters an interface in the journal, then makes it.
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

    /// Removes a station interface that this has made.
    ///
    /// # Errors
    /// The kernel refuses, or the journal cannot be written.
    pub async fn remove_station(&mut self, interface: &str) -> Result<(), SystemError> {
        remove(interface).await?;
        self.strike(&Entry::Station {
            interface: interface.to_owned(),
        })
    }

    /// Removes the station interfaces that a crash left.
    pub async fn undo_left_stations(&mut self) {
        self.undo_of_left(|entry| matches!(entry, Entry::Station { .. }))
            .await;
    }
}

/// Removes a station interface, which may be gone with its card.
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
