//! Tests of the demonstration as an ordinary user: on real packets if user namespaces are allowed;
//! in the simulator if they are not, or if there is no TUN interface.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Copies both programs to a directory where every user may run them and write files.
fn stage() -> tempfile::TempDir {
    let lab = env!("CARGO_BIN_EXE_hawser-lab");
    let hawser = hawser_testing::require_sibling(lab, "hawser");
    let dir = tempfile::tempdir().expect("a directory");
    for program in [Path::new(lab), &hawser] {
        let name = program.file_name().expect("a name");
        std::fs::copy(program, dir.path().join(name)).expect("copied");
    }
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).expect("opened");
    dir
}

/// Command prefix that runs a command as an ordinary user.
const DEMOTE: &str = "setpriv --reuid 4242 --regid 4242 --clear-groups";

/// Runs `setup` in separate namespaces, then a small demonstration through `launch`. `namespaces`
/// are options of unshare(1).
fn demonstrate(dir: &Path, namespaces: &[&str], setup: &str, launch: &str) -> Output {
    let script = format!("set -e; {setup}; cd \"$1\"; exec {launch} ./hawser-lab demo --size 1 --out out");
    let mut command = Command::new("unshare");
    command
        .args(namespaces)
        .args(["sh", "-c", &script, "sh"])
        .arg(dir);
    command.env("HOME", dir).output().expect("unshare starts")
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text + &String::from_utf8_lossy(&output.stderr)
}

/// Asserts that a demonstration was simulated because of `reason`.
fn assert_simulated(dir: &Path, output: &Output, reason: &str) {
    let said = said(output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("the download is simulated") && said.contains(reason),
        "{said}"
    );
    assert!(said.contains("1 MB in "), "{said}");
    let page = std::fs::read_to_string(dir.join("out/demo.html")).expect("a page");
    assert!(page.contains("Everything was simulated"), "the page says so");
}

#[test]
fn without_real_packets_it_is_simulated_where_that_is_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hawser-lab"));
        command
            .args(["demo", "--simulated", "--size", "4", "--out"])
            .arg(dir.path().join("out"));
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{}", said(&output));
        std::fs::read_to_string(dir.path().join("out/demo.html")).expect("a page")
    };
    let page = run();
    assert!(page.contains("Wi-Fi stopped carrying anything") || page.contains("Wi-Fi is dead"));
    assert_eq!(page, run(), "the same every time");
}

#[test]
fn an_ordinary_user_gets_real_packets_in_a_user_namespace() {
    if !hawser_testing::require(
        hawser_linux::process::is_root(),
        "needs root, to make an ordinary user",
    ) {
        return;
    }
    let dir = stage();
    // On most machines every user may open this device; here its mode may differ.
    let device = "mount -t tmpfs none /dev/net; mknod -m 666 /dev/net/tun c 10 200";
    let output = demonstrate(dir.path(), &["--mount"], device, DEMOTE);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("simulated"), "{said}");
    let page = std::fs::read_to_string(dir.path().join("out/demo.html")).expect("a page");
    assert!(page.contains("the real Hawser programs"), "{said}");
}

#[test]
fn without_a_tun_device_it_is_simulated() {
    if !hawser_testing::require(hawser_linux::process::is_root(), "needs root, to hide the device") {
        return;
    }
    let dir = stage();
    let hide = "mount -t tmpfs none /dev/net";
    let output = demonstrate(dir.path(), &["--mount"], hide, DEMOTE);
    assert_simulated(dir.path(), &output, "cannot open /dev/net/tun");
}

#[test]
fn without_user_namespaces_it_is_simulated() {
    if !hawser_testing::require(
        hawser_linux::process::is_root(),
        "needs root, to forbid namespaces",
    ) {
        return;
    }
    let dir = stage();
    // The limit of a user namespace also applies to all nested ones; the test's user there is not
    // root.
    let forbid = "echo 0 >/proc/sys/user/max_user_namespaces";
    let namespaces = ["--user", "--map-user=4242", "--map-group=4242", "--keep-caps"];
    let output = demonstrate(dir.path(), &namespaces, forbid, "");
    assert_simulated(dir.path(), &output, "user namespaces");
}
