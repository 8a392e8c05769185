//! New values of hub.toml: what takes effect at once, and what needs a restart.

use anyhow::Context;
use hawser_config::{HubConfig, differing};

use super::carrying::settings;
use super::names::Terms;
use super::over_tls::certificate_of;
use super::stores::load;
use super::waypoint::Policy;
use super::{Hub, own_addresses, resolvers};

impl Hub {
    pub(super) async fn reload(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let mut fresh = load(&self.options.dir)?;
        let wants_names = std::mem::replace(&mut fresh.names, self.config.names);
        self.terms.send_replace(Terms::take_over(&mut fresh));
        if fresh.dns.is_empty() {
            resolvers::complete_and_log(&mut fresh, &own_addresses().await?);
        }
        if let Some(tls) = &mut self.tls {
            let is_got_already = tls.acme.is_some() && fresh.tls.acme == self.config.tls.acme;
            if !is_got_already {
                // The contents of the files may have changed.
                let files = fresh.tls.certificate.as_ref();
                tls.shown
                    .renew(&self.identity, files)
                    .context("hub.toml, [tls]")?;
                tls.acme = certificate_of(&fresh, &self.options.dir, &tls.shown);
            }
        }
        self.config = fresh;
        let (old, new) = (&self.running, &self.config);
        let fixed = [
            (
                "endpoints (for new invitations: at once; port: after a restart)",
                old.listen_address() != new.listen_address(),
            ),
            ("pool", old.pool != new.pool),
            ("pool6", old.pool6 != new.pool6),
            ("interface", old.interface != new.interface),
            ("mtu", old.mtu != new.mtu),
            ("nat", old.nat != new.nat),
            ("names", old.names != wants_names),
            ("nat_addresses", old.nat_addresses != new.nat_addresses),
            ("thread_pairs", old.thread_pairs != new.thread_pairs),
            ("metrics", old.metrics != new.metrics),
            ("otlp", old.otlp != new.otlp),
            ("history", old.history != new.history),
            ("store", old.store != new.store),
            ("streams", old.streams != new.streams),
            ("tls.listen", old.tls.listen != new.tls.listen),
            (
                "wireguard.listen",
                old.wireguard.as_ref().map(|wireguard| wireguard.listen)
                    != new.wireguard.as_ref().map(|wireguard| wireguard.listen),
            ),
            (
                "gre (whether it is there)",
                old.gre.is_some() != new.gre.is_some(),
            ),
        ];
        let restart = differing(&fixed);
        if let (Some(gre), Some(config)) = (&self.gre, &new.gre) {
            gre.set(config.clone());
        }
        self.options.log.set(new.log.as_ref())?;
        // Settings that need a restart remain unchanged in the rules too.
        let isolation = HubConfig {
            pool: old.pool,
            pool6: old.pool6,
            interface: old.interface.clone(),
            nat_addresses: old.nat_addresses.clone(),
            ..new.clone()
        };
        self.reach.set_allowed(&new.reach);
        let isolation = self.reach.leading().isolation(&isolation);
        self.reach.enforce(isolation.clone()).await?;
        self.policy.send_replace(Policy::new(isolation, new));
        let mut settings = settings(new, self.options.spread.pairs());
        (settings.pool, settings.mtu) = (old.pools(), old.mtu.0);
        self.control.apply(settings);
        self.store.set_endpoints(&new.addresses());
        Ok(restart)
    }
}
