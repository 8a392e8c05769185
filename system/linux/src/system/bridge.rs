//! Open vSwitch in direct mode: the bridge, disabling of offloads that change frames, and the
//! addresses of gateways.

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::{System, SystemError, refused};
use crate::direct::openflow::Mac;
use crate::journal::Entry;
use crate::{ethtool, switch};

impl System {
    /// Creates a new Open vSwitch bridge, whose local port is an interface of the same name without
    /// neighbours.
    ///
    /// # Errors
    /// Open vSwitch is missing, is not running, or fails.
    pub async fn bridge(&mut self, name: &str) -> Result<(), SystemError> {
        switch::check()?;
        self.enter(Entry::Bridge {
            name: name.to_owned(),
        })?;
        switch::make(name)?;
        switch::forget_all();
        let index = self.index(name)?;
        let without = LinkMessageBuilder::<LinkUnspec>::new()
            .index(index)
            .arp(false)
            .build();
        let result = self.handle.link().set(without).execute().await;
        result.map_err(|source| refused(format!("set up {name}"), source))
    }

    /// Returns the Ethernet addresses of neighbours, by the index of their device and their
    /// address.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn neighbours(&self) -> Result<BTreeMap<(u32, IpAddr), Mac>, SystemError> {
        let mut found = BTreeMap::new();
        let mut listed = self.handle.neighbours().get().execute();
        let failed = |source| refused("list neighbours".to_owned(), source);
        while let Some(neighbour) = listed.try_next().await.map_err(failed)? {
            let mut address = None;
            let mut mac: Option<Mac> = None;
            for attribute in &neighbour.attributes {
                if let NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) = attribute {
                    address = Some(IpAddr::from(*v4));
                } else if let NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) = attribute {
                    address = Some(IpAddr::from(*v6));
                } else if let NeighbourAttribute::LinkLocalAddress(bytes) = attribute {
                    mac = bytes.as_slice().try_into().ok();
                }
            }
            if let (Some(address), Some(mac)) = (address, mac) {
                found.insert((neighbour.header.ifindex, address), mac);
            }
        }
        Ok(found)
    }

    /// Disables receive offload on a device, because the buffers of the frames' reader are too
    /// small for joined packets. A device without this offload, or with it disabled, is not
    /// changed.
    ///
    /// # Errors
    /// The journal cannot be written, or privileges are missing.
    pub fn keep_frames_apart(&mut self, device: &str) -> Result<(), SystemError> {
        if !ethtool::joins_packets(device).unwrap_or(false) {
            // An earlier run may have disabled it: then it must still be enabled at the end.
            let own = |left: &Entry| matches!(left, Entry::FramesApart { device: left } if left == device);
            self.ledger().left.retain(|left| !own(left));
            return Ok(());
        }
        self.enter(Entry::FramesApart {
            device: device.to_owned(),
        })?;
        Ok(ethtool::set_joins_packets(device, false)?)
    }
}
