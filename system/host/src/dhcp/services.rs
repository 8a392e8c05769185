//! Asks services that may already manage a device, over the system's message bus: NetworkManager
//! and systemd-networkd.

use zbus::zvariant::{ObjectPath, OwnedObjectPath};
use zbus::{Connection, Proxy};

use crate::system_bus::runs;

/// Returns the name of the service that manages the device, if any. A service that is not
/// configuring the device is asked to begin, and its answer is returned.
///
/// # Errors
/// The bus does not answer.
pub(super) async fn ask_manager(bus: &Connection, device: &str, index: u32) -> zbus::Result<Option<String>> {
    if runs(bus, MANAGER).await?
        && let Some(asked) = network_manager(bus, device).await?
    {
        return Ok(Some(said("NetworkManager", asked)));
    }
    if runs(bus, NETWORKD).await?
        && let Some(asked) = networkd(bus, device, index).await?
    {
        return Ok(Some(said("systemd-networkd", asked)));
    }
    Ok(None)
}

fn said(service: &str, asked: zbus::Result<()>) -> String {
    match asked {
        Ok(()) => service.to_owned(),
        Err(error) => format!("{service}, which reports: {error}"),
    }
}

/// Asks NetworkManager to configure the device. Returns `None` if it does not manage the device.
async fn network_manager(bus: &Connection, device: &str) -> zbus::Result<Option<zbus::Result<()>>> {
    let manager = Proxy::new(bus, MANAGER, "/org/freedesktop/NetworkManager", MANAGER).await?;
    let found: zbus::Result<OwnedObjectPath> = manager.call("GetDeviceByIpIface", &(device,)).await;
    let Ok(path) = found else { return Ok(None) };
    let proxy = Proxy::new(
        bus,
        MANAGER,
        path.clone(),
        "org.freedesktop.NetworkManager.Device",
    )
    .await?;
    let (is_managed, state): (bool, u32) = (
        proxy.get_property("Managed").await?,
        proxy.get_property("State").await?,
    );
    if !is_managed {
        return Ok(None);
    }
    if ![DISCONNECTED, FAILED].contains(&state) {
        return Ok(Some(Ok(())));
    }
    // It chooses the connection that fits best.
    let any = ObjectPath::try_from("/")?;
    let asked: zbus::Result<OwnedObjectPath> = manager.call("ActivateConnection", &(&any, &path, &any)).await;
    Ok(Some(asked.map(drop)))
}

/// Asks systemd-networkd to configure the device. Returns `None` if it does not manage the device.
async fn networkd(bus: &Connection, device: &str, index: u32) -> zbus::Result<Option<zbus::Result<()>>> {
    let manager = Proxy::new(
        bus,
        NETWORKD,
        "/org/freedesktop/network1",
        "org.freedesktop.network1.Manager",
    )
    .await?;
    let found: zbus::Result<(i32, OwnedObjectPath)> = manager.call("GetLinkByName", &(device,)).await;
    let number = i32::try_from(index).unwrap_or(0);
    // A service of another network namespace knows other devices.
    let Some((_, path)) = found.ok().filter(|(found, _)| *found == number) else {
        return Ok(None);
    };
    let link = Proxy::new(bus, NETWORKD, path, "org.freedesktop.network1.Link").await?;
    let state: String = link.get_property("AdministrativeState").await?;
    let question = match state.as_str() {
        "unmanaged" => return Ok(None),
        "failed" => "ReconfigureLink",
        // Has no effect if DHCP is not enabled.
        "configuring" | "configured" => "RenewLink",
        // Its state is not yet known.
        _ => return Ok(Some(Ok(()))),
    };
    let asked: zbus::Result<()> = manager.call(question, &(number,)).await;
    Ok(Some(asked))
}

const MANAGER: &str = "org.freedesktop.NetworkManager";
const NETWORKD: &str = "org.freedesktop.network1";
/// States of a device without a connection, and after a failed one. Source: `NMDeviceState` of the
/// D-Bus API of NetworkManager.
const DISCONNECTED: u32 = 30;
const FAILED: u32 = 120;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::private_bus::PrivateBus;

    /// Requests that the imitated services received.
    type Asked = Arc<Mutex<Vec<String>>>;

    struct Manager(Asked);

    #[zbus::interface(name = "org.freedesktop.NetworkManager")]
    impl Manager {
        fn get_device_by_ip_iface(&self, name: String) -> zbus::fdo::Result<OwnedObjectPath> {
            let path = OwnedObjectPath::try_from(format!("/{name}")).unwrap();
            let is_known = name != "other";
            is_known
                .then_some(path)
                .ok_or(zbus::fdo::Error::Failed("no device".to_owned()))
        }

        fn activate_connection(
            &self,
            connection: OwnedObjectPath,
            device: OwnedObjectPath,
            object: OwnedObjectPath,
        ) -> zbus::fdo::Result<OwnedObjectPath> {
            let said = format!("activate {connection} {device} {object}");
            self.0.lock().unwrap().push(said);
            if device.as_str() == "/failed" {
                return Err(zbus::fdo::Error::Failed("no connection fits".to_owned()));
            }
            Ok(device)
        }
    }

    struct Device {
        managed: bool,
        state: u32,
    }

    #[zbus::interface(name = "org.freedesktop.NetworkManager.Device")]
    impl Device {
        #[zbus(property)]
        fn managed(&self) -> bool {
            self.managed
        }

        #[zbus(property)]
        fn state(&self) -> u32 {
            self.state
        }
    }

    struct Networkd(Asked);

    #[zbus::interface(name = "org.freedesktop.network1.Manager")]
    impl Networkd {
        fn get_link_by_name(&self, name: String) -> (i32, OwnedObjectPath) {
            (7, OwnedObjectPath::try_from(format!("/{name}")).unwrap())
        }

        fn renew_link(&self, index: i32) {
            self.0.lock().unwrap().push(format!("renew {index}"));
        }

        fn reconfigure_link(&self, index: i32) {
            self.0.lock().unwrap().push(format!("reconfigure {index}"));
        }
    }

    struct Link(&'static str);

    #[zbus::interface(name = "org.freedesktop.network1.Link")]
    impl Link {
        #[zbus(property)]
        fn administrative_state(&self) -> String {
            self.0.to_owned()
        }
    }

    #[tokio::test]
    async fn network_manager_is_asked_where_it_manages_a_device_and_does_nothing() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let asked = Asked::default();
        let mut service = private
            .builder()
            .name(MANAGER)
            .unwrap()
            .serve_at("/org/freedesktop/NetworkManager", Manager(Arc::clone(&asked)))
            .unwrap();
        for (name, managed, state) in [
            ("/idle", true, 30),
            ("/busy", true, 70),
            ("/failed", true, 120),
            ("/unmanaged", false, 10),
        ] {
            service = service.serve_at(name, Device { managed, state }).unwrap();
        }
        let _service = service.build().await.unwrap();
        let bus = private.builder().build().await.unwrap();
        let ask = async |name: &str| ask_manager(&bus, name, 7).await.unwrap();
        let own = Some("NetworkManager".to_owned());
        assert_eq!(ask("busy").await, own);
        assert!(asked.lock().unwrap().is_empty());
        assert_eq!(ask("idle").await, own);
        assert_eq!(*asked.lock().unwrap(), ["activate / /idle /"]);
        assert!(ask("failed").await.unwrap().contains("no connection fits"));
        assert_eq!(ask("unmanaged").await, None);
        assert_eq!(ask("other").await, None);
        assert_eq!(asked.lock().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn networkd_is_asked_where_it_manages_a_device() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let asked = Asked::default();
        let mut service = private
            .builder()
            .name(NETWORKD)
            .unwrap()
            .serve_at("/org/freedesktop/network1", Networkd(Arc::clone(&asked)))
            .unwrap();
        for (name, state) in [
            ("/idle", "configured"),
            ("/early", "pending"),
            ("/failed", "failed"),
            ("/unmanaged", "unmanaged"),
        ] {
            service = service.serve_at(name, Link(state)).unwrap();
        }
        let _service = service.build().await.unwrap();
        let bus = private.builder().build().await.unwrap();
        let ask = async |name: &str, index| ask_manager(&bus, name, index).await.unwrap();
        let own = Some("systemd-networkd".to_owned());
        assert_eq!(ask("early", 7).await, own);
        assert!(asked.lock().unwrap().is_empty());
        assert_eq!(ask("idle", 7).await, own);
        assert_eq!(ask("failed", 7).await, own);
        assert_eq!(*asked.lock().unwrap(), ["renew 7", "reconfigure 7"]);
        assert_eq!(ask("unmanaged", 7).await, None);
        // A device of that name elsewhere.
        assert_eq!(ask("idle", 8).await, None);
        assert_eq!(asked.lock().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn nobody_is_no_manager() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let bus = private.builder().build().await.unwrap();
        assert_eq!(ask_manager(&bus, "eth0", 2).await.unwrap(), None);
    }
}
