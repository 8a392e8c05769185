//! `hawser hub limit`.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use hawser_config::{Size, Span, Speed};
use hawser_control::enrolment::{LimitChange, Own};
use hawser_hub as hub;
use hawser_wire::control::KeyExpiry;
use serde_json::json;

use crate::amounts::{cap_of, quota_of, speed};
use crate::directories::Directories;
use crate::guests::print;

/// Sets the limits of a client: a cap, a monthly quota, and the expiry of its key.
///
/// A cap applies to each direction. A quota is for both directions of a calendar month together,
/// counted like `hawser hub usage`; when it is used up, the client is slowed (to 256 kbit/s by
/// default) or stopped, as set by [limits] in hub.toml, until the month ends or the quota is
/// raised. The client's `hawser status` shows the reason.
///
/// When the key expires, the hub ends the client's session and refuses new ones, as after a
/// revocation; but the client stays enrolled, and connects again after another --expires or
/// --no-expiry. The hub and the client warn 7 days before. The hub's clock decides.
///
/// A running hub applies the change within a second, at any hub of a fleet. Values that are not
/// given stay unchanged; [limits] in hub.toml contains the defaults for all clients.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// The client's name.
    name: String,
    /// Maximum rate in each direction, such as 20mbit.
    #[arg(long, value_name = "RATE", value_parser = speed)]
    cap: Option<Speed>,
    /// Removes the cap, also the default of hub.toml.
    #[arg(long, conflicts_with = "cap")]
    no_cap: bool,
    /// Maximum bytes in a month, both directions together, such as 100GB.
    #[arg(long, value_name = "AMOUNT", value_parser = size)]
    quota: Option<Size>,
    /// Removes the quota, also the default of hub.toml.
    #[arg(long, conflicts_with = "quota")]
    no_quota: bool,
    /// Time from now until the client's key expires, such as 90d, or the day (UTC) at whose
    /// beginning it expires, such as 2027-03-01.
    #[arg(long, value_name = "TIME|DATE")]
    expires: Option<String>,
    /// The client's key does not expire.
    #[arg(long)]
    no_expiry: bool,
    /// Returns to the defaults of hub.toml, which has none for the expiry.
    #[arg(long, conflicts_with_all = ["cap", "no_cap", "quota", "no_quota"])]
    default: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

fn size(text: &str) -> Result<Size, String> {
    text.parse()
        .map_err(|()| "an amount with its unit (MB, GB, TB), such as 100GB".to_owned())
}

pub(crate) fn run(args: &LimitArgs) -> anyhow::Result<()> {
    if args.expires.is_some() && args.no_expiry {
        bail!("--expires and --no-expiry contradict each other: give one of them");
    }
    let expiry = args
        .expires
        .as_deref()
        .map(|text| expiry_of(text, SystemTime::now()));
    let expiry = expiry.transpose()?;
    let change = LimitChange {
        expiry: (expiry.is_some() || args.no_expiry).then_some(expiry),
        ..LimitChange::new(
            change(args.cap, args.no_cap, args.default),
            change(args.quota, args.no_quota, args.default),
        )
    };
    if change == LimitChange::default() {
        bail!(
            "no limit is given: add --cap 20mbit, --quota 100GB, --expires 90d, --no-cap, --no-quota, \
             --no-expiry or --default"
        );
    }
    let (standing, expiry) = hub::limit(&args.directories.dir, &args.name, change)?;
    let standing = json!(standing);
    let (name, cap, quota) = (&args.name, cap_of(&standing), quota_of(&standing));
    let until = expiry.map_or(String::new(), |expiry| format!(", key expires {expiry}"));
    print(
        args.json,
        || {
            json!({
                "version": 1,
                "client": name,
                "limits": standing,
                "key_expires_unix_s": expiry.map(|expiry| expiry.0),
            })
        },
        &format!("{name}: cap {cap}, quota {quota}{until}"),
    )
}

/// Parses the expiry of a key: a time from `now`, or a day after `now`.
pub(crate) fn expiry_of(text: &str, now: SystemTime) -> anyhow::Result<KeyExpiry> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    if let Ok(Span(span)) = text.parse() {
        return Ok(KeyExpiry((now + span).as_secs().max(now.as_secs() + 1)));
    }
    match text.parse::<KeyExpiry>() {
        Ok(expiry) if expiry.0 > now.as_secs() => Ok(expiry),
        Ok(_) => bail!("{text} is in the past: `hawser hub revoke` ends the access of a client now"),
        Err(()) => bail!(
            "{text:?} is no time and no day: expected a time from now with its unit, such as 90d, or a day, \
             such as 2027-03-01"
        ),
    }
}

fn change<T>(limit: Option<T>, is_none: bool, is_default: bool) -> Option<Own<T>> {
    match limit {
        Some(limit) => Some(Own::At(limit)),
        None if is_none => Some(Own::Unlimited),
        None => is_default.then_some(Own::AsDefault),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_expiry_is_a_time_from_now_or_a_later_day() {
        // 2027-01-15 08:00 UTC.
        let now = UNIX_EPOCH + Duration::from_millis(1_800_000_000_500);
        let read = |text: &str| expiry_of(text, now).map_err(|error| error.to_string());
        assert_eq!(read("90d"), Ok(KeyExpiry(1_800_000_000 + 90 * 86_400)));
        assert_eq!(read("1ms"), Ok(KeyExpiry(1_800_000_001)));
        assert_eq!(read("2027-03-01"), Ok(KeyExpiry(1_803_859_200)));
        for (text, said) in [
            ("2027-01-15", "is in the past"),
            ("2020-01-01", "is in the past"),
            ("2027-02-30", "no day"),
            ("90", "no time"),
            ("-5d", "no time"),
            ("", "no time"),
            ("tomorrow", "no time"),
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.contains(said) && error.lines().count() == 1,
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn what_is_not_named_stays() {
        assert_eq!(change(Some(1), false, false), Some(Own::At(1)));
        assert_eq!(change::<u8>(None, true, false), Some(Own::Unlimited));
        assert_eq!(change::<u8>(None, false, true), Some(Own::AsDefault));
        assert_eq!(change::<u8>(None, false, false), None);
    }
}
