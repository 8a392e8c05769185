//! Private message bus of a test, for services that imitate the real ones.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use zbus::connection::Builder;

use crate::system_bus::SystemBus;

pub(crate) struct PrivateBus {
    daemon: Child,
    address: String,
}

impl PrivateBus {
    /// Starts the bus; `None` if its program is not installed.
    pub(crate) fn start() -> Option<Self> {
        Self::run(&[])
    }

    /// Starts the bus at a given address.
    pub(crate) fn start_at(address: &str) -> Option<Self> {
        Self::run(&[&format!("--address={address}")])
    }

    fn run(arguments: &[&str]) -> Option<Self> {
        let mut command = Command::new("dbus-daemon");
        command
            .args(["--session", "--nofork", "--print-address"])
            .args(arguments);
        let Ok(mut daemon) = command.stdout(Stdio::piped()).spawn() else {
            hawser_testing::skip("no dbus-daemon");
            return None;
        };
        let mut address = String::new();
        BufReader::new(daemon.stdout.take().unwrap())
            .read_line(&mut address)
            .unwrap();
        Some(Self { daemon, address })
    }

    /// Returns the bus, in place of the system's.
    pub(crate) fn bus(&self) -> SystemBus {
        SystemBus::at(self.address.trim())
    }

    /// Returns a builder of a connection to the bus.
    pub(crate) fn builder(&self) -> Builder<'_> {
        Builder::address(self.address.trim()).unwrap()
    }
}

impl Drop for PrivateBus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
