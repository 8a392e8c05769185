//! Values that others watch.

use tokio::sync::watch;

/// Says what a value is now; who watches it hears of it where it is another than before.
pub fn tell_if_new<T: PartialEq>(tell: &watch::Sender<T>, value: T) {
    tell.send_if_modified(|known| {
        let is_new = *known != value;
        *known = value;
        is_new
    });
}
