//! Helper for watched values.

use tokio::sync::watch;

/// Sends a value to its receivers if it differs from the last one.
pub fn send_if_changed<T: PartialEq>(tell: &watch::Sender<T>, value: T) {
    tell.send_if_modified(|known| {
        let is_new = *known != value;
        *known = value;
        is_new
    });
}
