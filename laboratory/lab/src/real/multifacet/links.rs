//! Two radio links as one, with the client on the repeater's wire: figures 11 and 16.
//!
//! Set-ups are those of `hawser_experiments`. Only the medium treats the wide channel of figure 16
//! as wide; hostapd and the kernel treat it as a channel of 20 MHz.

use hawser_experiments::papers::multifacet::{
    Hop, OWN, WIDE_LOADS, WIDE_OVERLAPS, adapted, adjacent_interferers, wide_hop,
};
use hawser_netem::air::channel::frequency;
use hawser_units::Duration;

use super::super::air::Lab;
use super::super::found::Measured;
use super::{Carrier, Floor, TRADITIONAL, framed};

/// Returns two equal links to a server on the same local network.
pub(super) fn alike(hop: Hop) -> Floor {
    Floor {
        links: [hop.clone(), hop.clone()],
        wire: Duration::from_micros(20),
        ..Floor::of_one(hop)
    }
}

/// Figure 11.
pub(super) fn over_the_air(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut all, mut shares, mut evidence) = (Vec::new(), Vec::new(), Vec::new());
    for feet in [0.0, 15.0, 120.0] {
        let floor = alike(adapted(feet));
        let (one, both) = (floor.tcp(lab, TRADITIONAL)?, floor.tcp(lab, Carrier::Multifacet)?);
        all.push(Measured::within(format!("M.fig11.d{feet:.0}"), one));
        evidence.push((format!("{feet:.0} feet: one link"), one));
        evidence.push((format!("{feet:.0} feet: both"), both));
        shares.push(100.0 * both / (2.0 * one));
    }
    let least = shares.into_iter().fold(f64::INFINITY, f64::min);
    all.push(framed("M.fig11.agg", least).with(evidence));
    Ok(all)
}

/// Figure 16: two channels of 20 MHz against one of 40.
pub(super) fn wide_channel(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut all = Vec::new();
    for (name, load) in ["low", "high"].into_iter().zip(WIDE_LOADS) {
        let mut rate = |is_wide: bool| {
            let mut floor = Floor {
                competitors: adjacent_interferers(load),
                ..alike(wide_hop(is_wide))
            };
            // Moves the unused second link of the wide arm to another band.
            floor.channels = if is_wide { [3, 36] } else { [1, 6] };
            floor.more.overlaps = WIDE_OVERLAPS
                .map(|(one, other)| (frequency(one.into()), frequency(other.into())))
                .to_vec();
            let carrier = if is_wide {
                Carrier::Only(OWN)
            } else {
                Carrier::Multifacet
            };
            floor.tcp(lab, carrier)
        };
        let (two, wide) = (rate(false)?, rate(true)?);
        let evidence = vec![("two channels".to_owned(), two), ("one wide".to_owned(), wide)];
        all.push(framed(format!("M.fig16.{name}"), two / wide).with(evidence));
    }
    Ok(all)
}
