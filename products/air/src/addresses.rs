//! Link-layer addresses of the stations of one card that a driver can distinguish.
//!
//! A station needs a separate address for each network. Most drivers accept any address. Some
//! compare only a few bits of an address with the card's, so two stations whose other bits differ
//! either fail or make the card acknowledge frames of its neighbours. On such cards, addresses
//! differ in a [`mask`] of bits only, and the number of stations is limited by the addresses of the
//! mask.
//!
//! Source: Linux, `mt76x02_add_interface` (bits 1 to 4 of the first byte; bit 1 chooses one of
//! eight slots by bits 2 to 4) and `ath9k_calculate_summary_state` (the card answers to all
//! addresses that equal the first interface's in the bits that all interfaces have in common);
//! `ieee80211_verify_mac` for cards with an address mask. Read from source, not tried on cards.

use hawser_linux::wireless::cards::Card;

/// Link-layer address.
pub(super) type Address = [u8; 6];

/// Returns the bits in which stations of a card may differ from its address.
pub(super) fn mask(card: &Card) -> Address {
    let driver = card.driver.as_deref().unwrap_or_default();
    if card.address_mask != [0; 6] {
        card.address_mask
    } else if FIRST_BYTE.iter().any(|known| driver.starts_with(known)) {
        FIRST_BYTE_MASK
    } else {
        [0xff; 6]
    }
}

/// Returns the number of stations that a card can distinguish in addition to interfaces with these
/// addresses.
pub(super) fn room(card: &Card, used: &[Address]) -> usize {
    let mask = mask(card);
    if mask == [0xff; 6] {
        return usize::MAX;
    }
    // Hawser's stations have locally administered addresses.
    let free = bits([
        mask[0] & !(LOCAL | GROUP),
        mask[1],
        mask[2],
        mask[3],
        mask[4],
        mask[5],
    ]);
    let all = 1_usize << free.count_ones().min(MAX_BITS);
    let local = used.iter().filter(|one| is_local(**one)).count();
    all.saturating_sub(local)
}

/// Returns the address that a card assigns to a station which requests `wanted`; `None` if all
/// addresses that the card distinguishes are `used`. `base`: the address of another program's
/// interface that is up on the card, or else the card's own.
pub(super) fn choose(card: &Card, wanted: Address, base: Address, used: &[Address]) -> Option<Address> {
    let mask = bits(mask(card));
    let start = extract(bits(wanted), mask);
    let count = 1_u64 << mask.count_ones().min(MAX_BITS);
    (0..count)
        .map(|step| {
            let varied = deposit(start.wrapping_add(step), mask);
            let [.., a, b, c, d, e, f] = (bits(base) & !mask | varied).to_be_bytes();
            // The address is individual and, if the driver permits it, locally administered (IEEE
            // 802, 8.4).
            let local = if mask >> 41 & 1 == 1 { LOCAL } else { 0 };
            [(a | local) & !GROUP, b, c, d, e, f]
        })
        .find(|address| !used.contains(address))
}

/// Returns whether a card can assign exactly this address to a station next to other programs'
/// interfaces.
pub(super) fn fits(card: &Card, address: Address, base: Address, used: &[Address]) -> bool {
    let differs = bits(address) ^ bits(base);
    address[0] & GROUP == 0 && differs & !bits(mask(card)) == 0 && !used.contains(&address)
}

fn is_local(address: Address) -> bool {
    address[0] & LOCAL != 0
}

fn bits([a, b, c, d, e, f]: Address) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Gathers the bits of a value that are set in a mask, the lowest first.
fn extract(value: u64, mask: u64) -> u64 {
    let places = (0..48).filter(|place| mask >> place & 1 == 1);
    places
        .enumerate()
        .fold(0, |found, (at, place)| found | (value >> place & 1) << at)
}

/// Scatters a value over the bits of a mask.
fn deposit(value: u64, mask: u64) -> u64 {
    let places = (0..48).filter(|place| mask >> place & 1 == 1);
    places
        .enumerate()
        .fold(0, |found, (at, place)| found | (value >> at & 1) << place)
}

// Source: IEEE 802-2014 section 8.4: bits of the first byte.
const GROUP: u8 = 1;
const LOCAL: u8 = 2;
/// Drivers, by the beginnings of their names, that distinguish addresses by their first byte, or
/// that answer to more addresses the more bits differ.
const FIRST_BYTE: [&str; 4] = ["mt76x0", "mt76x2", "ath9k", "ath5k"];
/// Source: `mt76x02_add_interface`, bits 1 to 4.
const FIRST_BYTE_MASK: Address = [0x1e, 0, 0, 0, 0, 0];
/// Bound of a search for a free address: no card has 256 stations of Hawser. Source: our choice,
/// 256 addresses; more only lengthen the search on a card that has none left.
const MAX_BITS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Address = [0x00, 0x0c, 0x43, 0x26, 0x60, 0x10];

    fn card(driver: &str) -> Card {
        Card {
            driver: Some(driver.to_owned()),
            address: OWN,
            ..Card::default()
        }
    }

    #[test]
    fn stations_of_drivers_with_few_addresses_differ_in_their_first_byte_only() {
        for driver in ["mt76x2u", "mt76x0e", "ath9k", "ath9k_htc"] {
            let card = card(driver);
            let mut used = vec![OWN];
            for number in 0..8_u8 {
                assert_eq!(room(&card, &used), 8 - usize::from(number), "{driver}");
                let wanted = [number.wrapping_mul(37), 1, 2, 3, 4, number];
                let address = choose(&card, wanted, OWN, &used).expect("eight fit");
                assert_eq!(address[1..], OWN[1..], "{driver}");
                assert_eq!((address[0] ^ OWN[0]) & !0x1e, 0, "{driver}: {address:x?}");
                assert_eq!(address[0] & 3, 2, "local, of one device");
                assert!(!used.contains(&address));
                used.push(address);
            }
            assert_eq!(choose(&card, [9; 6], OWN, &used), None);
            assert_eq!(room(&card, &used), 0);
        }
    }

    #[test]
    fn other_drivers_take_any_address_once() {
        let card = card("iwlwifi");
        let wanted = [0x5d, 1, 2, 3, 4, 5];
        let first = choose(&card, wanted, OWN, &[OWN]).expect("one fits");
        assert_eq!(first, [0x5e, 1, 2, 3, 4, 5]);
        let second = choose(&card, wanted, OWN, &[OWN, first]).expect("another fits");
        assert_ne!(first, second);
        assert_eq!(room(&card, &[OWN; 20]), usize::MAX);
    }

    #[test]
    fn the_mask_that_a_driver_declares_is_kept() {
        let card = Card {
            address_mask: [0, 0, 0, 0, 0, 3],
            ..card("b43")
        };
        let address = choose(&card, [0xff; 6], OWN, &[OWN]).expect("one fits");
        assert_eq!((&address[..5], address[5] & !3), (&OWN[..5], 0x10));
        assert!(!fits(&card, [2, 0, 0, 0, 0, 1], OWN, &[]));
    }

    #[test]
    fn an_address_of_a_profile_fits_or_not() {
        let cloned = [0x02, 1, 2, 3, 4, 5];
        assert!(fits(&card("iwlwifi"), cloned, OWN, &[OWN]));
        assert!(!fits(&card("iwlwifi"), cloned, OWN, &[OWN, cloned]));
        assert!(!fits(&card("mt76x2u"), cloned, OWN, &[OWN]));
        let near = [0x0a, 0x0c, 0x43, 0x26, 0x60, 0x10];
        assert!(fits(&card("mt76x2u"), near, OWN, &[OWN]));
    }

    proptest::proptest! {
        #[test]
        fn what_is_chosen_fits(wanted: Address, base: Address, mask: Address, used in proptest::collection::vec(proptest::prelude::any::<Address>(), 0..5)) {
            let base = [base[0] & !1, base[1], base[2], base[3], base[4], base[5]];
            let card = Card { address_mask: [mask[0] & !1, mask[1], mask[2], mask[3], mask[4], mask[5]], ..card("") };
            if let Some(address) = choose(&card, wanted, base, &used) {
                proptest::prop_assert!(fits(&card, address, base, &used));
            }
        }
    }
}
