//! What NetworkManager is told.

use hawser_host::system_bus::runs;
use zbus::zvariant::OwnedObjectPath;
use zbus::{Connection, Proxy};

/// Has it leave an interface alone that it has just found, or is about to find.
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

/// Together half a second: it finds an interface within a few milliseconds, or not at all.
const FOUND_TRIES: u32 = 10;
const FOUND_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
