//! A message bus of a test's own, for services that say what the real ones do.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use zbus::connection::Builder;

use crate::system_bus::SystemBus;

pub(crate) struct PrivateBus {
    daemon: Child,
    address: String,
}

impl PrivateBus {
    /// `None` where there is no program for it.
    pub(crate) fn start() -> Option<Self> {
        Self::run(&[])
    }

    /// At an address of the test's choice.
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

    /// In place of the system's.
    pub(crate) fn bus(&self) -> SystemBus {
        SystemBus::at(self.address.trim())
    }

    /// A connection to it, to be built.
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
