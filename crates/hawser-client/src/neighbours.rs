//! Neighbours' ways out, taken into use and left: each is a network of the session like any other,
//! whose remote address is a port of the neighbour. Which are taken is said by whoever knows the
//! neighbours ([`WaysOut`](hawser_control::client::ways_out::WaysOut)).

use hawser_control::client::driver::fresh_index;
use hawser_control::client::ways_out::{WayOut, Wish};

use super::Client;

impl Client {
    /// Looks for members, and takes and leaves ways out. To be called after whatever has happened.
    pub(super) fn see_to_pool(&mut self) {
        let now = self.now();
        let hubs = &self.hubs.current().addresses;
        self.pool
            .handle_timeout(&self.config.pool, hubs, &self.driver.orders, now);
        while let Some(wish) = self.pool.poll() {
            match wish {
                Wish::Take(way) => self.take_way_out(&way),
                Wish::Leave(network) => self.remove_network(network),
            }
        }
    }

    fn take_way_out(&mut self, way: &WayOut) {
        let networks = &mut self.driver.networks;
        match networks.attach_member(&way.label, (way.relay, way.hub), way.mtu, way.cap_bps) {
            Ok(id) => {
                self.pool.handle_taken(way.member, id);
                tracing::info!(network = way.label, at = %way.relay, "a neighbour offers a way out");
                self.driver.machine.handle_network_added(id, fresh_index());
                if self.driver.line.is_none() {
                    self.seek_also(id);
                }
            }
            Err(error) => {
                tracing::warn!(network = way.label, error = format!("{error:#}"), "not usable");
            }
        }
    }
}
