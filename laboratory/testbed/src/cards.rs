//! Simulated cards of a test kernel.

use hawser_netem::air::Address;
use hawser_netem::scenario::Scenario;

/// Returns the number of simulated cards that a scenario needs.
#[must_use]
pub fn cards_wanted(scenario: &Scenario) -> usize {
    2 * scenario
        .networks
        .iter()
        .filter(|network| network.wifi.is_some())
        .count()
}

/// Returns the hardware address that the kernel gives the simulated card of this number. Cards are
/// numbered: those of the access point and the station of each 802.11 network, then those of
/// clients or guests.
#[must_use]
pub fn card_address(number: usize) -> Address {
    let [high, low] = u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes();
    [0x42, 0, 0, high, low, 0]
}
