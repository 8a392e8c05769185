//! MPTCP over all networks: connects the machine that decides about endpoints with the kernel's
//! path manager.

use std::net::IpAddr;

use hawser_config::ClientConfig;
use hawser_linux::bpf::Subflows;
use hawser_linux::direct::MULTIPATH_MARK;
use hawser_linux::mptcp::{self, MAX_ENDPOINTS, PathManager};
use hawser_linux::netlink::Network;
use hawser_linux::system::{System, SystemError};
use hawser_steer::endpoints::{Endpoints, Offer, Step};
use hawser_units::NetworkId;

use super::Direct;
use super::networks::Known;
use super::probe::Probe;
use super::rules::port;

/// Use of all networks by MPTCP; ends with this value, except for what the journal undoes.
pub(super) struct Multipath {
    manager: PathManager,
    machine: Endpoints,
    /// Marks first subflows, so that they find a network's address. Without it, connections have
    /// two subflows on one network.
    _subflows: Option<Subflows>,
    /// Routes of first subflows that the kernel has.
    firsts: Vec<(Network, IpAddr)>,
    /// Last error, so that it is reported once.
    said: Option<String>,
}

impl Multipath {
    /// Permits as many subflows of a connection as the kernel supports; `None` without MPTCP.
    pub(super) fn start(system: &mut System) -> Option<Self> {
        let manager = PathManager::open()
            .inspect_err(|error| tracing::info!(%error, "no MPTCP: this kernel has none"))
            .ok()?;
        let most = u32::try_from(MAX_ENDPOINTS).unwrap_or(u32::MAX);
        let steps = system
            .sysctl("net/mptcp/enabled", "1")
            .and_then(|()| system.raise_subflows(&manager, most));
        if let Err(error) = steps {
            tracing::warn!(error = said(&error), "MPTCP does not use all networks");
            return None;
        }
        let subflows = Subflows::mark(MULTIPATH_MARK).inspect_err(
            |error| tracing::warn!(%error, "MPTCP connections have two subflows on their first network"),
        );
        Some(Self {
            manager,
            machine: Endpoints::new(MAX_ENDPOINTS),
            _subflows: subflows.ok(),
            firsts: Vec::new(),
            said: None,
        })
    }

    /// Returns the present role of a network for MPTCP.
    pub(super) fn part(&self, number: u8) -> Option<&'static str> {
        let mut endpoints = self.machine.present().values();
        let own = endpoints.find(|endpoint| endpoint.network == NetworkId(u32::from(number)))?;
        Some(if own.is_backup { "backup" } else { "yes" })
    }

    async fn follow(&mut self, system: &mut System, offers: &[(Offer, &Network)]) {
        let plain: Vec<_> = offers.iter().map(|(offer, _)| offer.clone()).collect();
        self.machine.handle_networks(&plain);
        let mut problem = None;
        while let Some(step) = self.machine.poll_transmit() {
            if let Err((address, error)) = self.carry_out(system, step, offers) {
                problem = Some(said(&error));
                self.machine.handle_refusal(address);
            }
        }
        if let Err(error) = self.lead_firsts(system, offers).await {
            problem = Some(said(&error));
        }
        if problem != self.said {
            if let Some(error) = &problem {
                tracing::warn!(error, "cannot update the networks of MPTCP");
            }
            self.said = problem;
        }
    }

    fn carry_out(
        &self,
        system: &mut System,
        step: Step,
        offers: &[(Offer, &Network)],
    ) -> Result<(), (IpAddr, SystemError)> {
        tracing::debug!(?step, "MPTCP");
        let (address, result) = match step {
            Step::Remove(address) => (address, system.remove_endpoint(&self.manager, address)),
            Step::Change(address, endpoint) => {
                let result = system.set_backup(&self.manager, address, endpoint.is_backup);
                (address, result)
            }
            Step::Add(address, endpoint) => {
                let own = offers.iter().find(|(offer, _)| offer.network == endpoint.network);
                let endpoint = mptcp::Endpoint {
                    address,
                    device: own.map_or(0, |(_, network)| network.index),
                    is_backup: endpoint.is_backup,
                };
                (address, system.add_endpoint(&self.manager, &endpoint))
            }
        };
        result.map_err(|error| (address, error))
    }

    /// Updates the routes of first subflows, if they have changed.
    async fn lead_firsts(
        &mut self,
        system: &mut System,
        offers: &[(Offer, &Network)],
    ) -> Result<(), SystemError> {
        let way = |(id, address): (NetworkId, IpAddr)| {
            let own = offers.iter().find(|(offer, _)| offer.network == id);
            own.map(|(_, network)| ((*network).clone(), address))
        };
        let firsts: Vec<_> = self
            .machine
            .firsts()
            .into_iter()
            .flatten()
            .filter_map(way)
            .collect();
        if firsts != self.firsts {
            let ways: Vec<_> = firsts
                .iter()
                .map(|(network, address)| (network, *address))
                .collect();
            system.first_subflows(&ways).await?;
            self.firsts = firsts;
        }
        Ok(())
    }
}

impl Direct {
    /// Updates the endpoints of MPTCP's path manager to the present networks.
    pub(super) async fn follow_multipath(&mut self) {
        let Some(multipath) = &mut self.multipath else {
            return;
        };
        let offers = self
            .networks
            .all()
            .filter_map(|(number, known)| offer(number, known, &self.config));
        multipath
            .follow(&mut self.system, &offers.collect::<Vec<_>>())
            .await;
    }
}

fn offer<'a>(number: u8, known: &'a Known, config: &ClientConfig) -> Option<(Offer, &'a Network)> {
    let network = known.network.as_ref()?;
    let offer = Offer {
        network: NetworkId(u32::from(number)),
        addresses: port(number, network, known.is_shut).addresses,
        part: config.network(&known.name).mptcp.0,
        is_alive: known.is_alive(),
        round_trip: known.probe.as_ref().and_then(Probe::round_trip),
    };
    Some((offer, network))
}

fn said(error: &SystemError) -> String {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}
