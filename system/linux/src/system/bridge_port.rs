//! A TAP interface as a port of a bridge.

use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::{System, SystemError, refused};

impl System {
    /// Puts an interface into a bridge and brings it up. All of it ends with the interface.
    ///
    /// `address`: its Ethernet address. A bridge takes the lowest address of its ports as its own;
    /// one that begins with `fe` does not change that, and the bridge's hosts and leases stay as
    /// they are.
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
        // Without IPv6 of its own: the bridge has the addresses. A kernel without IPv6 has no such
        // setting.
        let setting = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        let _ = std::fs::write(setting, "1");
        let change = LinkMessageBuilder::<LinkUnspec>::new()
            .index(index)
            .address(address.to_vec())
            .controller(controller)
            .up()
            .build();
        let result = self.handle.link().set(change).execute().await;
        result.map_err(|source| refused(format!("put {interface} into the bridge {bridge}"), source))
    }
}
