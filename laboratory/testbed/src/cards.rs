//! The simulated cards of a test kernel.

use hawser_netem::air::Address;
use hawser_netem::scenario::Scenario;

/// How many simulated cards a scenario needs.
#[must_use]
pub fn cards_wanted(scenario: &Scenario) -> usize {
    2 * scenario
        .networks
        .iter()
        .filter(|network| network.wifi.is_some())
        .count()
}

/// What the kernel calls the simulated card of that number. Cards are numbered through: the access
/// point's and the station's of each network on the air, then those of clients or guests.
#[must_use]
pub fn card_address(number: usize) -> Address {
    let [high, low] = u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes();
    [0x42, 0, 0, high, low, 0]
}
