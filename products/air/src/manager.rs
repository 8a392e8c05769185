//! Settings for NetworkManager.

use hawser_host::system_bus::runs;
use zbus::zvariant::OwnedObjectPath;
use zbus::{Connection, Proxy};

/// Makes NetworkManager ignore an interface that it has just found or will find soon.
pub(super) async fn leave_alone(bus: &Connection, device: &str) -> zbus::Result<()> {
    const MANAGER: &str = "org.freedesktop.NetworkManager";
    if !runs(bus, MANAGER).await? {
        return Ok(());
    }
    let manager = Proxy::new(bus, MANAGER, "/org/freedesktop/NetworkManager", MANAGER).await?;
    for _ in 0..FOUND_TRIES {
        let found: zbus::Result<OwnedObjectPath> = manager.call("GetDeviceByIpIface", &(device,)).await;
        if let Ok(path) = found {
            let device = Proxy::new(bus, MANAGER, path, "org.freedesktop.NetworkManager.Device").await?;
            return Ok(device.set_property("Managed", false).await?);
        }
        tokio::time::sleep(FOUND_PAUSE).await;
    }
    Ok(())
}

/// Number of attempts, half a second in total: NetworkManager finds an interface within a few
/// milliseconds, or not at all. Source: our choice; a longer time delays the start on machines
/// whose NetworkManager ignores the interface.
const FOUND_TRIES: u32 = 10;
const FOUND_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
