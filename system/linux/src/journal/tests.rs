use super::*;

fn rule() -> Entry {
    Entry::Rule {
        rule: Rule::Near,
        ipv6: true,
    }
}

fn sysctl() -> Entry {
    Entry::Sysctl {
        key: "net/x".into(),
        old: "0".into(),
        new: "1".into(),
    }
}

fn bridge() -> Entry {
    Entry::Bridge { name: "b".into() }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("undo.json");
    (directory, path)
}

#[test]
fn survives_a_crash_and_ends_empty() {
    let (_directory, path) = place();
    let mut journal = Journal::open(&path).unwrap();
    journal.enter(rule()).unwrap();
    journal.enter(sysctl()).unwrap();
    journal.enter(rule()).unwrap();
    drop(journal);
    let mut journal = Journal::open(&path).unwrap();
    assert_eq!(journal.entries(), [rule(), sysctl()]);
    journal.strike(&sysctl()).unwrap();
    journal.strike(&rule()).unwrap();
    assert!(!path.exists());
}

#[test]
fn the_first_format_is_read() {
    let (_directory, path) = place();
    let first = r#"[
  { "kind": "rule", "rule": "near", "ipv6": true },
  { "kind": "sysctl", "key": "net/x", "old": "0", "new": "1" }
]"#;
    fs::write(&path, first).unwrap();
    let mut journal = Journal::open(&path).unwrap();
    assert_eq!(journal.entries(), [rule(), sysctl()]);
    journal.enter(bridge()).unwrap();
    let journal = Journal::open(&path).unwrap();
    assert_eq!(journal.entries(), [rule(), sysctl(), bridge()]);
}

#[test]
fn what_this_version_does_not_know_stays() {
    let (_directory, path) = place();
    let strange = [
        r#"{"kind":"rule","rule":"near","ipv6":true,"more":"of a newer version"}"#,
        r#"{"kind":"satellite","number":7}"#,
        r#"{"kind":"sysc"#,
    ];
    let text = format!(
        "{{\"journal\":9,\"boot\":null}}\n{}\n{{\"kind\":\"bridge\",\"name\":\"b\"}}\n{}\n{}",
        strange[0], strange[1], strange[2]
    );
    fs::write(&path, text).unwrap();
    let mut journal = Journal::open(&path).unwrap();
    assert_eq!(journal.entries(), [bridge()]);
    assert_eq!(journal.unknown(), 3);
    journal.enter(sysctl()).unwrap();
    journal.strike(&bridge()).unwrap();
    journal.strike(&sysctl()).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let kept: Vec<_> = text.lines().skip(1).collect();
    assert_eq!(kept, strange);
}

#[test]
fn bytes_that_are_no_text_stay_too() {
    let (_directory, path) = place();
    fs::write(&path, b"\xff\xfe[{\n\0").unwrap();
    let mut journal = Journal::open(&path).unwrap();
    assert_eq!(journal.unknown(), 2);
    journal.enter(rule()).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.windows(4).any(|found| found == b"\xff\xfe[{"));
}

/// Tests a file truncated at any position: the complete lines are read, and no entry on the disk is
/// lost.
#[test]
fn of_a_torn_file_every_whole_line_is_read() {
    let (_directory, path) = place();
    let all = [rule(), sysctl(), bridge()];
    let mut journal = Journal::open(&path).unwrap();
    for entry in &all {
        journal.enter(entry.clone()).unwrap();
    }
    let whole = fs::read(&path).unwrap();
    for length in 0..=whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let journal = Journal::open(&path).unwrap();
        let ends = whole[..length].iter().filter(|byte| **byte == b'\n').count();
        assert!(
            journal.entries().len() >= ends.saturating_sub(1),
            "cut at {length}"
        );
        assert!(all.starts_with(journal.entries()), "cut at {length}");
        assert!(journal.unknown() <= 1, "cut at {length}");
    }
}

#[test]
fn processes_of_another_boot_are_forgotten() {
    let (_directory, path) = place();
    let process = Entry::Process {
        process: Process::of(std::process::id()).unwrap(),
    };
    let mut journal = Journal::open_in(&path, Some("one".into())).unwrap();
    for entry in [rule(), process, bridge()] {
        journal.enter(entry).unwrap();
    }
    let same = Journal::open_in(&path, Some("one".into())).unwrap();
    assert_eq!(same.entries().len(), 3);
    let other = Journal::open_in(&path, Some("two".into())).unwrap();
    assert_eq!(other.entries(), [rule(), bridge()]);
}

#[test]
fn a_refused_entry_is_not_entered_and_what_was_there_stays() {
    let (directory, path) = place();
    let mut journal = Journal::open(&path).unwrap();
    journal.enter(rule()).unwrap();
    // The temporary file cannot be written.
    fs::create_dir(directory.path().join("undo.new")).unwrap();
    assert!(journal.enter(sysctl()).is_err());
    assert_eq!(journal.entries(), [rule()]);
    assert_eq!(Journal::open(&path).unwrap().entries(), [rule()]);
}

#[test]
fn a_journal_that_cannot_be_read_is_not_taken_for_an_empty_one() {
    let (_directory, path) = place();
    fs::create_dir(&path).unwrap();
    assert!(Journal::open(&path).is_err());
}

#[test]
fn who_does_not_know_its_boot_forgets_nothing() {
    let (_directory, path) = place();
    let process = Entry::Process {
        process: Process::of(std::process::id()).unwrap(),
    };
    let mut journal = Journal::open_in(&path, None).unwrap();
    journal.enter(process).unwrap();
    let known = Journal::open_in(&path, Some("one".into())).unwrap();
    assert_eq!(known.entries().len(), 1, "it was written without a boot");
}

#[test]
fn the_file_names_its_format_and_the_boot_and_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let (directory, path) = place();
    // A temporary file left by a crash during a write, readable by all.
    let fresh = directory.path().join("undo.new");
    fs::write(&fresh, "half of").unwrap();
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644)).unwrap();
    Journal::open(&path).unwrap().enter(rule()).unwrap();
    assert!(!fresh.exists());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    let header: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(header["journal"], 2);
    assert_eq!(header["boot"], boot.trim());
}

#[test]
fn a_write_that_fails_at_its_end_leaves_no_file_beside() {
    let (directory, path) = place();
    let mut journal = Journal::open(&path).unwrap();
    // A file cannot replace a directory that is not empty.
    fs::create_dir_all(path.join("in the way")).unwrap();
    assert!(journal.enter(rule()).is_err());
    assert!(journal.entries().is_empty());
    assert!(!directory.path().join("undo.new").exists());
}

#[test]
fn the_last_entry_is_struck_only_if_the_file_is_gone() {
    let (_directory, path) = place();
    let mut journal = Journal::open(&path).unwrap();
    journal.enter(rule()).unwrap();
    fs::remove_file(&path).unwrap();
    journal.strike(&rule()).unwrap();
    journal.enter(rule()).unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(journal.strike(&rule()).is_err(), "it cannot be removed as a file");
}

/// A path without a directory is in the current directory.
#[test]
fn a_bare_file_name_will_do() {
    let path = PathBuf::from(format!("journal-test-{}.json", std::process::id()));
    let mut journal = Journal::open(&path).unwrap();
    let entered = journal.enter(rule());
    let is_there = path.exists();
    let struck = journal.strike(&rule());
    assert!(is_there && !path.exists());
    entered.and(struck).unwrap();
}
