//! Receipts of the traffic that a neighbour has relayed for this device, or this device for a
//! neighbour, counted and signed by the taker's hub. Both store the same receipts, so neither must
//! trust the other.
//!
//! Each path that a neighbour relays is a run with one receipt, which later ones replace while the
//! path exists. They arrive once a second, and are written to a file every [`WRITE_EVERY`]; a
//! neighbour that returns receives the newest again, so a crash of its daemon leaves no gap.
//!
//! Bounds: the newest [`MAX_OF_ONE`] runs of one neighbour are stored; at most [`MAX_WAITING`] wait
//! for the file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use data_encoding::HEXLOWER;
use hawser_config::identity::{Code, KeyHash, has_signed};
use hawser_host::database::{Database, Format, StoreError, signed};
use hawser_host::usage::WRITE_EVERY;
use hawser_units::Instant;
use hawser_wire::receipt::Receipt;
use rusqlite::params;
use serde::{Deserialize, Serialize};

use crate::accounts::Side;
use crate::trust::Trust;

/// Receipts in a file.
#[derive(Debug)]
pub(crate) struct Receipts {
    /// Database of receipts; `None` if it cannot be opened.
    database: Option<Database>,
    /// Receipts by side, hub and run.
    waiting: BTreeMap<(Side, [u8; 32], u64), Receipt>,
    write_at: Instant,
}

/// Receipt for display and exchange. Keys, runs and signatures are hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed {
    /// `given` to the other device, or `taken` from it; empty if unknown.
    #[serde(default)]
    pub side: String,
    /// Name of the other device on this machine; empty if it is no longer known.
    #[serde(default)]
    pub name: String,
    /// Code of the device that took.
    pub taker: Code,
    /// Code of the device that gave.
    pub member: Code,
    /// Ed25519 public key of the signing hub.
    pub hub_key: String,
    /// Id of the run.
    pub run: String,
    /// Number of the receipt in the run.
    pub number: u64,
    /// Unit: seconds of Unix time.
    pub began_s: u64,
    /// Unit: seconds of Unix time.
    pub until_s: u64,
    /// Traffic from the taker to its hub. Units: bytes of UDP payload.
    pub up_bytes: u64,
    /// Traffic from the hub to the taker. Units: bytes of UDP payload.
    pub down_bytes: u64,
    /// Signature over all fields except side and name.
    pub signature: String,
}

impl Receipts {
    /// Continues the receipts in the directory, or in memory only if it cannot be written.
    pub(crate) fn open(dir: &Path) -> Self {
        let database = Database::open(&file(dir), &FORMAT);
        let failed = |error: &_| tracing::warn!(%error, "receipts are not stored");
        Self {
            database: database.inspect_err(failed).ok(),
            waiting: BTreeMap::new(),
            write_at: Instant::ZERO,
        }
    }

    /// Stores a receipt if it is signed and about these two devices. Returns whether it was.
    pub(crate) fn enter(&mut self, side: Side, own: Code, other: Code, receipt: &Receipt) -> bool {
        let named = (Code::from(receipt.taker), Code::from(receipt.member));
        let (taker, member) = match side {
            Side::Given => (other, own),
            Side::Taken => (own, other),
        };
        if named != (taker, member) || !is_good(receipt) {
            return false;
        }
        let key = (side, receipt.hub, receipt.run);
        match self.waiting.get(&key) {
            Some(earlier) if !receipt.follows(earlier) => {}
            _ => drop(self.waiting.insert(key, *receipt)),
        }
        if self.waiting.len() >= MAX_WAITING {
            self.write();
        }
        true
    }

    /// Writes due receipts to the disk. Must be called about once a second.
    pub(crate) fn keep(&mut self, now: Instant) {
        if now >= self.write_at && !self.waiting.is_empty() {
            self.write_at = now + WRITE_EVERY;
            self.write();
        }
    }

    /// Returns the newest receipts of a neighbour that has relayed traffic, to be sent to it.
    pub(crate) fn newest_of(&mut self, member: Code) -> Vec<Receipt> {
        self.write();
        let Some(database) = &self.database else {
            return Vec::new();
        };
        let newest = database.run(|connection| {
            let mut rows = connection.prepare_cached(NEWEST)?;
            let rows = rows.query_map(params![Side::Taken.name(), member.bytes(), REPEATED], receipt_of)?;
            rows.collect::<Result<Vec<_>, _>>()
        });
        let failed = |error: &_| tracing::warn!(%error, "cannot read receipts");
        let newest = newest.inspect_err(failed).unwrap_or_default();
        newest.into_iter().flatten().collect()
    }

    fn write(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let Some(database) = self.database.as_mut().filter(|_| !waiting.is_empty()) else {
            return;
        };
        let written = database.change(|transaction| {
            let mut of = BTreeSet::new();
            for ((side, hub, run), receipt) in &waiting {
                let other = match side {
                    Side::Given => receipt.taker,
                    Side::Taken => receipt.member,
                };
                of.insert((side, other));
                let mut bytes = Vec::new();
                receipt.emit(&mut bytes);
                transaction.prepare_cached(PUT)?.execute(params![
                    side.name(),
                    hub,
                    i64::from_be_bytes(run.to_be_bytes()),
                    other,
                    signed(receipt.number),
                    signed(receipt.up_bytes),
                    signed(receipt.down_bytes),
                    signed(receipt.until_s),
                    bytes,
                ])?;
            }
            for (side, other) in of {
                let forget = params![side.name(), other, MAX_OF_ONE];
                transaction.prepare_cached(FORGET)?.execute(forget)?;
            }
            Ok(())
        });
        if let Err(error) = written {
            tracing::warn!(%error, "cannot write receipts");
            // They are retained for the next attempt, up to the maximum number.
            if waiting.len() < MAX_WAITING {
                self.waiting = waiting;
            }
        }
    }
}

impl Drop for Receipts {
    fn drop(&mut self) {
        self.write();
    }
}

/// Returns the receipts in the directory, the oldest first.
///
/// # Errors
/// If the file exists and cannot be read.
pub fn receipts(dir: &Path, trust: &Trust) -> Result<Vec<Signed>, StoreError> {
    let Some(database) = Database::open_to_read(&file(dir), &FORMAT)? else {
        return Ok(Vec::new());
    };
    let rows = database.run(|connection| {
        let mut rows = connection.prepare("SELECT side, receipt FROM receipts ORDER BY until, run")?;
        let rows = rows.query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?))
        })?;
        rows.collect::<Result<Vec<_>, _>>()
    })?;
    let shown = rows.into_iter().filter_map(|(side, bytes)| {
        let receipt = Receipt::from_bytes(&bytes).ok()?;
        Some(Signed::of(side, &receipt, trust))
    });
    Ok(shown.collect())
}

impl Signed {
    fn of(side: String, receipt: &Receipt, trust: &Trust) -> Self {
        let mut shown = Self {
            side,
            name: String::new(),
            taker: receipt.taker.into(),
            member: receipt.member.into(),
            hub_key: HEXLOWER.encode(&receipt.hub),
            run: format!("{:016x}", receipt.run),
            number: receipt.number,
            began_s: receipt.began_s,
            until_s: receipt.until_s,
            up_bytes: receipt.up_bytes,
            down_bytes: receipt.down_bytes,
            signature: HEXLOWER.encode(&receipt.signature),
        };
        let known = if shown.side == Side::Given.name() {
            &trust.takers
        } else {
            &trust.members
        };
        if let Some(known) = known.iter().find(|known| known.code == shown.other()) {
            shown.name.clone_from(&known.name);
        }
        shown
    }

    /// Returns the code of the other device.
    #[must_use]
    pub fn other(&self) -> Code {
        if self.side == Side::Given.name() {
            self.taker
        } else {
            self.member
        }
    }

    /// Returns whether the hub's signature is valid.
    ///
    /// # Errors
    /// If a key, a run or a signature is malformed.
    pub fn is_good(&self) -> anyhow::Result<bool> {
        let receipt = Receipt {
            hub: bytes("hub_key", &self.hub_key)?,
            taker: *self.taker.bytes(),
            member: *self.member.bytes(),
            run: u64::from_be_bytes(bytes("run", &self.run)?),
            number: self.number,
            began_s: self.began_s,
            until_s: self.until_s,
            up_bytes: self.up_bytes,
            down_bytes: self.down_bytes,
            signature: bytes("signature", &self.signature)?,
        };
        Ok(is_good(&receipt))
    }

    /// Returns the name of the signing hub.
    ///
    /// # Errors
    /// If the key is malformed.
    pub fn hub(&self) -> anyhow::Result<KeyHash> {
        Ok(KeyHash::of_ed25519(&bytes("hub_key", &self.hub_key)?))
    }
}

/// Returns receipts as comma-separated values with a header line (RFC 4180). No field contains a
/// comma or a quote.
#[must_use]
pub fn receipts_to_csv(receipts: &[Signed]) -> String {
    let mut text = String::from(
        "side,name,taker,member,hub_key,run,number,began_s,until_s,up_bytes,down_bytes,signature\n",
    );
    for receipt in receipts {
        let Signed {
            side,
            name,
            taker,
            member,
            hub_key,
            run,
            number,
            began_s,
            until_s,
            up_bytes,
            down_bytes,
            signature,
        } = receipt;
        text += &format!("{side},{name},{taker},{member},{hub_key},{run},{number},{began_s},{until_s},");
        text += &format!("{up_bytes},{down_bytes},{signature}\n");
    }
    text
}

fn is_good(receipt: &Receipt) -> bool {
    has_signed(&receipt.hub, &receipt.signed(), &receipt.signature)
}

fn bytes<const N: usize>(field: &str, text: &str) -> anyhow::Result<[u8; N]> {
    let bytes = HEXLOWER
        .decode(text.as_bytes())
        .with_context(|| format!("{field} is not hexadecimal"))?;
    let all = bytes.try_into();
    all.map_err(|_| anyhow!("{field} does not have {} digits", 2 * N))
}

fn receipt_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<Receipt>> {
    Ok(Receipt::from_bytes(&row.get::<_, Vec<u8>>(0)?).ok())
}

fn file(dir: &Path) -> PathBuf {
    dir.join("receipts.sqlite")
}

const FORMAT: Format = Format {
    version: 1,
    schema: "CREATE TABLE receipts (side TEXT NOT NULL, hub BLOB NOT NULL, run INTEGER NOT NULL,
             other BLOB NOT NULL, number INTEGER NOT NULL, up INTEGER NOT NULL, down INTEGER NOT NULL,
             until INTEGER NOT NULL, receipt BLOB NOT NULL, PRIMARY KEY (side, hub, run)) WITHOUT ROWID;
             CREATE INDEX by_other ON receipts (side, other, until);",
};
/// Replaces the receipt of a run by a later one, according to [`Receipt::follows`].
const PUT: &str = "INSERT INTO receipts VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT DO UPDATE SET number = excluded.number, up = excluded.up, down = excluded.down,
     until = excluded.until, receipt = excluded.receipt
     WHERE excluded.other = other AND excluded.number > number
     AND excluded.up >= up AND excluded.down >= down";
const FORGET: &str = "DELETE FROM receipts WHERE (side, hub, run) IN
     (SELECT side, hub, run FROM receipts WHERE side = ?1 AND other = ?2
      ORDER BY until DESC LIMIT -1 OFFSET ?3)";
const NEWEST: &str =
    "SELECT receipt FROM receipts WHERE side = ?1 AND other = ?2 ORDER BY until DESC LIMIT ?3";

/// Maximum number of stored runs of one neighbour, at most 1.5 MiB. Source: a path each hour for
/// half a year, rounded down to a power of two.
const MAX_OF_ONE: i64 = 4_096;
/// Maximum number of runs that wait for the disk. Source: our choice; a larger one loses more
/// receipts in a crash, a smaller one writes more often.
const MAX_WAITING: usize = 256;
/// Number of runs whose receipts are repeated, more than the concurrent paths through one
/// neighbour. Source: our choice; a repeated receipt has no effect, so more only cost a few hundred
/// bytes each at the beginning.
const REPEATED: i64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_config::identity::{Identity, Signer};

    fn ends() -> (Code, Code) {
        let code = |text: &str| text.parse().expect("a code");
        (code("aaaa-bbbb-cccc-dddd"), code("eeee-ffff-gggg-hhhh"))
    }

    fn receipt(signer: &Signer, run: u64, number: u64, up_bytes: u64) -> Receipt {
        let (taker, member) = ends();
        let mut receipt = Receipt {
            hub: signer.public(),
            taker: *taker.bytes(),
            member: *member.bytes(),
            run,
            number,
            began_s: 1_000,
            until_s: 1_000 + run,
            up_bytes,
            down_bytes: 7,
            signature: [0; 64],
        };
        receipt.signature = signer.sign(&receipt.signed());
        receipt
    }

    #[test]
    fn the_newest_of_each_run_is_kept_and_nothing_that_nobody_signed() {
        let dir = tempfile::tempdir().expect("a directory");
        let signer = Identity::generate().unwrap().signer().unwrap();
        let (alice, bob) = ends();
        let shown = || {
            let all = receipts(dir.path(), &Trust::default()).expect("readable");
            let shown = all.iter().map(|one| (one.run.clone(), one.number, one.up_bytes));
            (shown.collect::<Vec<_>>(), all)
        };
        assert_eq!(shown().0, []);
        let mut kept = Receipts::open(dir.path());
        let mut enter = |receipt: &Receipt| kept.enter(Side::Given, bob, alice, receipt);
        assert!(enter(&receipt(&signer, 1, 1, 10)));
        assert!(enter(&receipt(&signer, 1, 3, 30)));
        assert!(enter(&receipt(&signer, 1, 2, 20)), "late, and of no account");
        let mut forged = receipt(&signer, 1, 4, 40);
        forged.up_bytes = 400;
        assert!(!enter(&forged));
        drop(kept);
        let run = |run: u64| format!("{run:016x}");
        assert_eq!(shown().0, [(run(1), 3, 30)]);
        let mut kept = Receipts::open(dir.path());
        let of_others = receipt(&signer, 2, 1, 1);
        assert!(!kept.enter(Side::Given, alice, bob, &of_others), "not this one's");
        assert!(kept.enter(Side::Given, bob, alice, &receipt(&signer, 1, 2, 20)));
        assert!(kept.enter(Side::Given, bob, alice, &receipt(&signer, 1, 5, 29)));
        assert!(kept.enter(Side::Given, bob, alice, &receipt(&signer, 2, 1, 1)));
        drop(kept);
        let (lines, all) = shown();
        assert_eq!(
            lines,
            [(run(1), 3, 30), (run(2), 1, 1)],
            "what was carried stays so"
        );
        assert!(
            all.iter()
                .all(|one| one.is_good().unwrap() && one.other() == alice)
        );
        let text = serde_json::to_string(&all[0]).unwrap();
        let mut read: Signed = serde_json::from_str(&text).unwrap();
        assert_eq!(read, all[0]);
        read.until_s += 1;
        assert!(!read.is_good().unwrap());
        read.signature.pop();
        assert!(read.is_good().is_err());
        let csv = receipts_to_csv(&all);
        assert_eq!(csv.lines().count(), 3);
        assert!(csv.contains(&format!("given,,{alice},{bob},")), "{csv}");
    }

    #[test]
    fn what_cannot_be_written_is_written_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let signer = Identity::generate().unwrap().signer().unwrap();
        let (alice, bob) = ends();
        let mut kept = Receipts::open(dir.path());
        let other = rusqlite::Connection::open(file(dir.path())).unwrap();
        let rename = |from: &str, to: &str| {
            let rename = format!("ALTER TABLE {from} RENAME TO {to}");
            other.execute_batch(&rename).unwrap();
        };
        rename("receipts", "elsewhere");
        assert!(kept.enter(Side::Taken, alice, bob, &receipt(&signer, 1, 1, 1)));
        kept.keep(Instant::ZERO);
        assert_eq!(kept.waiting.len(), 1);
        rename("elsewhere", "receipts");
        kept.keep(Instant::ZERO + WRITE_EVERY);
        assert_eq!(kept.waiting.len(), 0);
        assert_eq!(receipts(dir.path(), &Trust::default()).unwrap().len(), 1);
    }

    #[test]
    fn what_one_neighbour_makes_is_bounded_and_the_newest_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let signer = Identity::generate().unwrap().signer().unwrap();
        let (alice, bob) = ends();
        let mut kept = Receipts::open(dir.path());
        let most = u64::try_from(MAX_OF_ONE).unwrap();
        for run in 0..most + 300 {
            assert!(kept.enter(Side::Taken, alice, bob, &receipt(&signer, run, 1, 1)));
            assert!(kept.waiting.len() < MAX_WAITING);
        }
        let newest = kept.newest_of(bob);
        let expected: Vec<_> = (most + 300 - 16..most + 300).rev().collect();
        let runs: Vec<_> = newest.iter().map(|receipt| receipt.run).collect();
        assert_eq!(runs, expected);
        let all = receipts(dir.path(), &Trust::default()).unwrap();
        assert_eq!(all.len() as u64, most);
        assert_eq!(all[0].run, format!("{:016x}", 300));
    }
}
