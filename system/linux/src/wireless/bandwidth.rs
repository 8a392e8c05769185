//! How much an interface carries, by a short test: datagrams as fast as it takes them.
//!
//! A datagram counts once the driver has let go of it, which on Wi-Fi is when it was acknowledged
//! or given up. So this needs nobody's help on the other end. Drivers that let go at once (some of
//! USB) make every channel look the same, and none better than another.

use std::io;
use std::net::SocketAddrV6;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use hawser_units::Rate;
use socket2::SockRef;
use tokio::net::UdpSocket;

use crate::links::open_port;

/// What a test has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Datagrams that the driver has let go of.
    pub done: u64,
    /// How long it took.
    pub time: Duration,
}

impl Found {
    /// What the interface carries, where so many of the datagrams were given up; in bits of IP
    /// packets.
    #[must_use]
    pub fn rate(&self, given_up: u64) -> Rate {
        let bits = self.done.saturating_sub(given_up) * 8 * PACKET;
        Rate::from_bps((bits as f64 / self.time.as_secs_f64().max(1e-6)) as u64)
    }
}

/// Sends to an address on the link for that time. What is sent means nothing to whom it reaches.
/// Must be called within a tokio runtime.
///
/// # Errors
/// The link is gone, or nobody has that address.
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
            // A full queue of the interface says so.
            Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => break,
        }
        let waiting = waiting(socket.as_raw_fd())?;
        each = each.max(waiting / sent.max(1));
        if left.is_zero() || sent >= MOST {
            break;
        }
    }
    let waiting = waiting(socket.as_raw_fd())?.checked_div(each).unwrap_or(0);
    Ok(Found {
        done: sent.saturating_sub(waiting),
        time: begun.elapsed(),
    })
}

/// What the socket has handed over and the driver has not let go of, in the kernel's own units.
fn waiting(socket: RawFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the question is answered with an int, which outlives the call.
    crate::check(unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Of each datagram. Units: bytes of IP packet.
pub const PACKET: u64 = 1_400;
/// IPv6 and UDP. Units: bytes.
const HEADERS: u64 = 48;
/// More than 20 ms of 10 Gbit/s: a link that never makes anybody wait is fast enough.
const MOST: u64 = 20_000;
/// What may wait, with what the kernel keeps of each: some 55 datagrams, two aggregates of 802.11n,
/// and less than simulated cards drop.
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
            // An address of the link becomes ready after a moment.
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
        // A machine that stalls sees less; more cannot be.
        assert!((2_000_000..23_000_000).contains(&rate), "{rate}");
        assert_eq!(found.rate(found.done), Rate::ZERO);
    }
}
