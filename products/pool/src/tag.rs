//! Tag of a device for a day: devices that know its code find the device, and no other device can
//! recognise it on the next day.

use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use hawser_config::identity::Code;
use hawser_linux::clock::LocalTime;

/// Returns the tag of the device with that code.
pub(crate) fn tag(code: Code, day: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, code.bytes());
    let tag = hmac::sign(&key, format!("hawser pool v1 {day}").as_bytes());
    HEXLOWER.encode(&tag.as_ref()[..TAG_LEN])
}

/// Returns the day in the form that devices exchange.
pub(crate) fn day(time: LocalTime) -> String {
    format!("{:04}-{:02}-{:02}", time.year, time.month, time.day)
}

/// Length of a tag. Source: two of a thousand devices have the same tag of 128 bits by chance once
/// in 2^109 days. Units: bytes.
const TAG_LEN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_config::identity::KeyHash;

    #[test]
    fn a_tag_is_another_every_day_and_for_everybody() {
        let [one, other] = [1, 2].map(|byte| KeyHash([byte; 32]).code());
        assert_eq!(tag(one, "2026-11-23"), tag(one, "2026-11-23"));
        assert_ne!(tag(one, "2026-11-23"), tag(one, "2026-11-24"));
        assert_ne!(tag(one, "2026-11-23"), tag(other, "2026-11-23"));
        assert!(!tag(one, "2026-11-23").contains(&HEXLOWER.encode(one.bytes())[..8]));
    }
}
