//! Tests of `packaging/openwrt` under a shell, with stand-ins for OpenWrt's own functions, which
//! iterate over the configuration and call back for each section.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Stand-ins for the system's functions: `config_load` reads the output of `uci export`.
const FUNCTIONS: &str = r#"
config_cb() { :; }; option_cb() { :; }; list_cb() { :; }
config() { TYPE="$1"; NAME="$2"; config_cb "$1" "$2"; }
option() { eval "OPTION_${NAME:-none}_$1=\"\$2\""; option_cb "$1" "$2"; }
list() { list_cb "$1" "$2"; }
config_load() { . "$HAWSER_TEST/exported"; config_cb; }
config_get() { eval "$1=\"\${OPTION_$2_$3:-$4}\""; }
config_get_bool() {
    config_get "$@"
    eval "case \"\$$1\" in 1|on|true|yes|enabled) $1=1 ;; *) $1=0 ;; esac"
}
procd_open_instance() { echo "open"; }
procd_set_param() { echo "param $*"; }
procd_close_instance() { echo "close"; }
hawser() { "$HAWSER_TEST_PROGRAM" "$@"; }
"#;

const EXPORTED: &str = r#"
config hawser 'main'
    option enabled '1'
    option mode 'client'
    option kill_switch '1'
    list forward 'br-lan'
    list exclude 'docker*'
    list exclude 'virbr*'
    option mtu '1400'
config network
    option cap_up '10mbit'
    option device 'eth0.2'
    option reset_day '5'
config network 'wwan0'
    option weight '2'
config radio
    option slots '1'
config tls 'tls'
    option port '8443'
config direct
    option portal_check 'http://192.0.2.1/page It says "yes" \ no'
    option mptcp 'off'
config rule
    list port '22'
    list port '60000-61000'
    list network 'eth1'
    option strict '0'
config rule
    option protocol 'udp'
    option via 'direct'
config gre
    option name 'bobs router'
    option member '192.168.1.7'
    option network '10.47.47.0/24'
"#;

const EXPECTED: &str = r#"kill_switch = true
forward = ["br-lan"]
exclude = ["docker*", "virbr*"]
mtu = 1400
[networks."eth0.2"]
cap_up = "10mbit"
reset_day = 5
[networks."wwan0"]
weight = 2
[radio]
slots = true
[tls]
port = 8443
[direct]
portal_check = "http://192.0.2.1/page It says \"yes\" \\ no"
mptcp = false
[[rule]]
port = [22, "60000-61000"]
network = ["eth1"]
strict = false
[[rule]]
protocol = "udp"
via = "direct"
[[pool.gre]]
name = "bobs router"
member = "192.168.1.7"
network = "10.47.47.0/24"
"#;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/openwrt")
}

/// Runs a part of the script for `init` with this UCI configuration.
fn run(directory: &Path, exported: &str, what: &str) -> Output {
    fs::write(directory.join("exported"), exported).unwrap();
    let script = format!(
        "{FUNCTIONS}\n. '{}'\n{what}\n",
        packaging().join("hawser.init").display()
    );
    Command::new("sh")
        .args(["-c", &script])
        .env("HAWSER_TEST", directory)
        .env("HAWSER_TEST_PROGRAM", env!("CARGO_BIN_EXE_hawser"))
        .env("HAWSER_DIRECTORY", directory.join("etc"))
        .env("HAWSER_SHARE", packaging())
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(error)
}

#[test]
#[ignore = "slow: make test-all"]
fn what_uci_says_is_written_as_a_configuration_and_run_by_procd() {
    let directory = tempfile::tempdir().unwrap();
    let output = run(directory.path(), EXPORTED, "start_service");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("param command /usr/bin/hawser up --foreground"),
        "{said}"
    );
    let file = directory.path().join("etc/client.toml");
    assert_eq!(fs::read_to_string(&file).unwrap(), EXPECTED);

    // An unchanged file is not written again.
    let before = fs::metadata(&file).unwrap().modified().unwrap();
    let output = run(directory.path(), EXPORTED, "start_service");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), before);
}

#[test]
#[ignore = "slow: make test-all"]
fn a_mistake_is_said_and_what_was_there_stays() {
    let directory = tempfile::tempdir().unwrap();
    assert!(run(directory.path(), EXPORTED, "start_service").status.success());
    let wrong = EXPORTED.replace("'10mbit'", "'fast'");
    let output = run(directory.path(), &wrong, "start_service");
    let said = text(&output);
    assert!(!output.status.success() && said.contains("fast"), "{said}");
    assert!(!said.contains("close"), "{said}");
    let file = directory.path().join("etc/client.toml");
    assert_eq!(fs::read_to_string(file).unwrap(), EXPECTED);
    let left = fs::read_dir(directory.path().join("etc")).unwrap().count();
    assert_eq!(left, 1);
}

#[test]
#[ignore = "slow: make test-all"]
fn modes_are_those_that_there_are_and_nothing_runs_unless_it_is_enabled() {
    let directory = tempfile::tempdir().unwrap();
    let start = |exported: &str| {
        let output = run(directory.path(), exported, "start_service");
        (output.status.success(), text(&output))
    };
    let off = start(&EXPORTED.replace("enabled '1'", "enabled '0'"));
    assert_eq!(off, (true, String::new()));
    let (_, said) = start(&EXPORTED.replace("'client'", "'hub'"));
    assert!(said.contains("param command /usr/bin/hawser hub run"), "{said}");
    let (_, said) = start(&EXPORTED.replace("'client'", "'direct'"));
    assert!(
        said.contains("param command /usr/bin/hawser up --direct --foreground"),
        "{said}"
    );
    let (works, said) = start(&EXPORTED.replace("'client'", "'other'"));
    assert!(!works && said.contains("not other"), "{said}");
}

#[test]
#[ignore = "slow: make test-all"]
fn the_example_is_a_good_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let example = fs::read_to_string(packaging().join("hawser.config")).unwrap();
    let example = example.replace("enabled '0'", "enabled '1'");
    let output = run(directory.path(), &example, "start_service");
    assert!(output.status.success(), "{}", text(&output));
    let written = fs::read_to_string(directory.path().join("etc/client.toml")).unwrap();
    assert_eq!(
        written,
        "kill_switch = false\nforward = [\"br-lan\"]\ndns = \"keep\"\n"
    );
}
