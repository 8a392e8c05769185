//! Interface that applications see. The service manager, if there is one, keeps it open during a
//! crash: routes and rules remain in effect, so connections continue and strict rules remain
//! strict.

use std::os::fd::AsFd;

use hawser_linux::service;
use hawser_linux::tun::{Tun, TunError};

/// Opens the interface of that name: the one of the previous process, or a new one.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn open(name: &str, mtu: u16) -> Result<Tun, TunError> {
    let kept = service::take_inherited().unwrap_or_default().into_iter();
    let mut adopted = kept
        .filter(|kept| kept.name == DESCRIPTOR_NAME)
        .filter_map(|kept| Tun::adopt(kept.descriptor, name, mtu, 1).ok());
    let tun = match adopted.next() {
        Some(tun) => tun,
        None => Tun::create(name, mtu)?,
    };
    if service::is_managed()
        && let Err(error) = service::keep(DESCRIPTOR_NAME, tun.as_fd())
    {
        tracing::warn!(%error, "the interface will be lost in a crash");
    }
    Ok(tun)
}

/// Name of the descriptor at the service manager.
const DESCRIPTOR_NAME: &str = "interface";
