//! What Open vSwitch needs of the system in direct mode: a bridge, frames that stay as they came,
//! and where gateways are.

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::{System, SystemError, refused};
use crate::direct::openflow::Mac;
use crate::journal::Entry;
use crate::{offload, switch};

impl System {
    /// Makes a bridge of Open vSwitch anew, whose own port is an interface of its name that needs
    /// no neighbours.
    ///
    /// # Errors
    /// Open vSwitch is missing, does not run, or refuses.
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

    /// The Ethernet addresses of neighbours, by the index of their device and their address.
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

    /// Keeps a device from joining packets: whoever reads frames from it has no room for large
    /// ones. One that has done so already, or cannot, is as good.
    ///
    /// # Errors
    /// The journal cannot be written, or there is no right to change it.
    pub fn keep_frames_apart(&mut self, device: &str) -> Result<(), SystemError> {
        if !offload::joins_packets(device).unwrap_or(false) {
            // Switched off by an earlier run, perhaps: then it is still to be switched on again.
            let own = |left: &Entry| matches!(left, Entry::FramesApart { device: left } if left == device);
            self.ledger().left.retain(|left| !own(left));
            return Ok(());
        }
        self.enter(Entry::FramesApart {
            device: device.to_owned(),
        })?;
        Ok(offload::set_joins_packets(device, false)?)
    }
}
