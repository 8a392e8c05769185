//! Measures the capacity of an interface by a short test, which sends datagrams as fast as it
//! accepts them.
//!
//! A datagram counts once the driver has released it: on Wi-Fi, after it was acknowledged or given
//! up. So no cooperation of the other end is needed. With drivers that release it at once (some USB
//! ones), all channels appear equal.

use std::io;
use std::net::SocketAddrV6;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use hawser_units::Rate;
use socket2::SockRef;
use tokio::net::UdpSocket;

use crate::links::open_port;

/// Result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Datagrams released by the driver.
    pub done: u64,
    /// Duration of the test.
    pub time: Duration,
}

impl Found {
    /// Returns the rate of the interface, in bits of IP packets, if `given_up` of the datagrams
    /// were given up.
    #[must_use]
    pub fn rate(&self, given_up: u64) -> Rate {
        let bits = self.done.saturating_sub(given_up) * 8 * PACKET;
        Rate::from_bps((bits as f64 / self.time.as_secs_f64().max(1e-6)) as u64)
    }
}

/// Sends datagrams to an address on the link for a duration; the receiver ignores them. Must be
/// called within a tokio runtime.
///
/// # Errors
/// The link is missing, or no device has that address.
pub async fn test(link: &str, to: SocketAddrV6, time: Duration) -> io::Result<Found> {
    let socket = UdpSocket::from_std(open_port(link, 0)?)?;
    SockRef::from(&socket).set_send_buffer_size(BUFFER / 2)?;
    let payload = [0; (PACKET - HEADERS) as usize];
    let begun = Instant::now();
    let (mut sent, mut each) = (0_u64, 0);
    loop {
        let left = time.saturating_sub(begun.elapsed());
        match tokio::time::timeout(left, socket.send_to(&payload, to)).await {
            Ok(Ok(_)) => sent += 1,
            // The queue of the interface is full.
            Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => break,
        }
        let waiting = waiting(socket.as_raw_fd())?;
        each = each.max(waiting / sent.max(1));
        if left.is_zero() || sent >= MAX {
            break;
        }
    }
    let waiting = waiting(socket.as_raw_fd())?.checked_div(each).unwrap_or(0);
    Ok(Found {
        done: sent.saturating_sub(waiting),
        time: begun.elapsed(),
    })
}

/// Returns the amount that the socket has passed on and the driver has not released, in the
/// kernel's units.
fn waiting(socket: RawFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the question is answered with an int, which outlives the call.
    crate::check(unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Size of each datagram. Units: bytes of IP packet. Source: our choice, below 1,500 bytes (RFC
/// 894) by more than any encapsulation takes, so that no datagram is fragmented.
pub const PACKET: u64 = 1_400;
/// Headers of IPv6 and UDP. Source: 40 bytes (RFC 8200 section 3) and 8 bytes (RFC 768). Units:
/// bytes.
const HEADERS: u64 = 48;
/// Maximum number of datagrams of a test: a link that never makes the sender wait is fast enough.
/// Source: 20 ms of 10 Gbit/s are 17,857 packets of [`PACKET`].
const MAX: u64 = 20_000;
/// Send buffer, with the kernel's overhead per datagram: some 55 datagrams, two aggregates of
/// 802.11n, and less than simulated cards drop. Source: our choice; less lets a fast radio run dry
/// between two calls, more counts datagrams that only wait in the kernel.
const BUFFER: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn a_test_finds_what_a_link_carries() {
        let Ok(namespace) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        for command in [
            "ip link add near type veth peer name far",
            "ip link set near up",
            "ip link set far up",
            "ip neigh add fe80::2 lladdr 02:00:00:00:00:02 dev near",
            "tc qdisc add dev near root tbf rate 20mbit burst 3000 limit 1000000",
        ] {
            let (program, arguments) = command.split_once(' ').unwrap();
            let done = namespace.command(program).args(arguments.split(' ')).status();
            assert!(done.unwrap().success(), "{command}");
        }
        let found = namespace.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let name = std::ffi::CString::new("near")?;
            // SAFETY: a name that ends with a zero, which outlives the call.
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            let to = SocketAddrV6::new("fe80::2".parse().unwrap(), 9, 0, index);
            // An address of the link becomes usable after a moment.
            for _ in 0..100 {
                let found = runtime.block_on(test("near", to, Duration::from_millis(200)));
                if found.is_ok() {
                    return found;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            runtime.block_on(test("near", to, Duration::from_millis(200)))
        });
        let found = found.unwrap();
        let rate = found.rate(0).as_bps();
        // A machine that stalls measures less; more is impossible.
        assert!((2_000_000..23_000_000).contains(&rate), "{rate}");
        assert_eq!(found.rate(found.done), Rate::ZERO);
    }
}
