//! `hawser hub limit`.

use anyhow::bail;
use hawser_config::{Size, Speed};
use hawser_control::enrolment::{LimitChange, Own};
use hawser_hub as hub;
use serde_json::json;

use crate::amounts::{cap_of, quota_of, speed};
use crate::directories::Directories;
use crate::guests::print;

/// Sets the limits of a client: a cap, and a monthly quota.
///
/// A cap applies to each direction. A quota is for both directions of a calendar month together,
/// counted like `hawser hub usage`; when it is used up, the client is slowed (to 256 kbit/s by
/// default) or stopped, as set by [limits] in hub.toml, until the month ends or the quota is
/// raised. The client's `hawser status` shows the reason.
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
    /// Returns to the defaults of hub.toml.
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
    let change = LimitChange::new(
        change(args.cap, args.no_cap, args.default),
        change(args.quota, args.no_quota, args.default),
    );
    if change == LimitChange::default() {
        bail!("no limit is given: add --cap 20mbit, --quota 100GB, --no-cap, --no-quota or --default");
    }
    let standing = json!(hub::limit(&args.directories.dir, &args.name, change)?);
    let (name, cap, quota) = (&args.name, cap_of(&standing), quota_of(&standing));
    print(
        args.json,
        || json!({ "version": 1, "client": name, "limits": standing }),
        &format!("{name}: cap {cap}, quota {quota}"),
    )
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
    use super::*;

    #[test]
    fn what_is_not_named_stays() {
        assert_eq!(change(Some(1), false, false), Some(Own::At(1)));
        assert_eq!(change::<u8>(None, true, false), Some(Own::Unlimited));
        assert_eq!(change::<u8>(None, false, true), Some(Own::AsDefault));
        assert_eq!(change::<u8>(None, false, false), None);
    }
}
