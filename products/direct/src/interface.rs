//! The interface that applications see. The service manager, where there is one, keeps it open
//! through a crash: routes and rules go on deciding then, so connections go on, and rules that are
//! strict stay so.

use std::os::fd::AsFd;

use hawser_linux::service;
use hawser_linux::tun::{Tun, TunError};

/// The interface of that name: the one that a process before has left, or a new one.
///
/// # Errors
/// The kernel refuses.
pub(super) fn open(name: &str, mtu: u16) -> Result<Tun, TunError> {
    let kept = service::take_kept().unwrap_or_default().into_iter();
    let mut adopted = kept
        .filter(|kept| kept.name == KEPT)
        .filter_map(|kept| Tun::adopt(kept.descriptor, name, mtu, 1).ok());
    let tun = match adopted.next() {
        Some(tun) => tun,
        None => Tun::create(name, mtu)?,
    };
    if service::is_managed()
        && let Err(error) = service::keep(KEPT, tun.as_fd())
    {
        tracing::warn!(%error, "a crash will take the interface away");
    }
    Ok(tun)
}

/// Its name with the service manager.
const KEPT: &str = "interface";
