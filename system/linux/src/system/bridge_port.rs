//! A TAP interface as a port of a bridge.

use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::settings::sysctl_path;
use super::{System, SystemError, refused};
use crate::desired::{Object, Setting, Wanted};

impl System {
    /// Adds an interface to a bridge and sets it up. Both changes end with the interface.
    ///
    /// `address` is its Ethernet address. A bridge uses the lowest address of its ports as its own.
    /// An address that begins with `fe` does not change it, so the bridge's hosts and leases are
    /// unaffected.
    ///
    /// # Errors
    /// Interface or bridge do not exist, or the kernel refuses.
    pub async fn put_into_bridge(
        &self,
        interface: &str,
        address: [u8; 6],
        bridge: &str,
    ) -> Result<(), SystemError> {
        let (index, controller) = (self.index(interface)?, self.index(bridge)?);
        let _turn = self.turn.lock().await;
        // The port needs no IPv6, because the bridge has the addresses. A kernel without IPv6 lacks
        // this setting.
        let setting = format!("net/ipv6/conf/{interface}/disable_ipv6");
        if std::fs::write(sysctl_path(&setting), "1").is_ok() {
            let wanted = Wanted::Setting(Setting::Is("1".to_owned()));
            self.want(Object::Setting(setting), wanted);
        }
        let change = LinkMessageBuilder::<LinkUnspec>::new()
            .index(index)
            .address(address.to_vec())
            .controller(controller)
            .up()
            .build();
        let result = self.handle.link().set(change).execute().await;
        result.map_err(|source| refused(format!("put {interface} into the bridge {bridge}"), source))?;
        self.want(Object::Link(interface.to_owned()), Wanted::Up);
        self.want(
            Object::Port(interface.to_owned()),
            Wanted::Bridge(bridge.to_owned()),
        );
        Ok(())
    }

    /// Makes an interface a port of the bridge with that index.
    pub(super) async fn attach(&self, interface: &str, bridge: u32) -> Result<(), SystemError> {
        let change = LinkMessageBuilder::<LinkUnspec>::new()
            .index(self.index(interface)?)
            .controller(bridge)
            .build();
        let result = self.handle.link().set(change).execute().await;
        result.map_err(|source| refused(format!("put {interface} back into its bridge"), source))
    }
}
