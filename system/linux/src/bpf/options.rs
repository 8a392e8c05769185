//! Socket options with which a program chooses a network or declares the needs of a flow.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::assembly::{Assembly, If, Register, Width};
use super::kernel::{AttachPoint, Map, attach, load};
use super::rates::{self, Declarations, RATE};
use super::ring::Ring;
use super::root::root;
use super::setting::{LENGTH, LEVEL, OPTION, SOCKET, SOL_HAWSER, VALUE, VALUE_END, set};

/// Option that names a network. Source: `HAWSER_NETWORK` of `include/hawser.h`.
pub const NETWORK: i32 = 1;
/// Option that names an intent. Source: `HAWSER_INTENT` of `include/hawser.h`.
pub const INTENT: i32 = 2;

/// Effect of a chosen name on the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Becomes {
    /// Sets the socket's mark (`SO_MARK`) to the name's number.
    Mark,
    /// Sets the traffic class of the socket to the name's number, in both families. Some kernels
    /// ignore it for IPv4 packets of an IPv6 socket.
    TrafficClass,
}

/// Handles `setsockopt(fd, SOL_HAWSER, ...)` in this network namespace for its lifetime.
///
/// The value is a name; the socket gets the effect that is stored under it ([`Becomes`]). Other
/// names are refused with `ENODEV`. Without Hawser, the level is unknown to the kernel, which
/// returns `ENOPROTOOPT`.
#[derive(Debug)]
pub struct SocketOptions {
    names: Map,
    present: BTreeMap<(i32, String), u32>,
    /// Declarations of programs, until a listener takes over.
    ring: Option<Ring>,
    _link: OwnedFd,
}

impl SocketOptions {
    /// Starts with an empty set of names.
    ///
    /// # Errors
    /// Privileges (`CAP_BPF`, `CAP_NET_ADMIN`) are missing, or the kernel lacks control groups of
    /// version 2 or the helpers (available since Linux 5.18).
    pub fn new(becomes: Becomes) -> io::Result<Self> {
        let names = Map::new(KEY, ENTRIES)?;
        let ring = match becomes {
            Becomes::Mark => None,
            Becomes::TrafficClass => Some(Ring::new()?),
        };
        let code = program(becomes, names.number(), ring.as_ref(), namespace_cookie()?);
        let program = load(AttachPoint::SetOption, &code)?;
        let root = root()?;
        Ok(Self {
            names,
            present: BTreeMap::new(),
            ring,
            _link: attach(AttachPoint::SetOption, &program, root.as_fd())?,
        })
    }

    /// Starts receiving declarations made with [`RATE`]; returns `None` if programs cannot make
    /// any, or if a listener exists already. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The runtime cannot poll the descriptor.
    pub fn listen(&mut self) -> io::Result<Option<Declarations>> {
        self.ring.take().map(Declarations::new).transpose()
    }

    /// Sets the known names: option, name, number. Names that are too long are left out.
    ///
    /// # Errors
    /// The kernel's table is full.
    pub fn know(&mut self, wanted: BTreeMap<(i32, String), u32>) -> io::Result<()> {
        for ((option, name), mark) in &wanted {
            if let Some(key) = key(*option, name)
                && self.present.get(&(*option, name.clone())) != Some(mark)
            {
                self.names.insert(&key, *mark)?;
            }
        }
        for (option, name) in self.present.keys().filter(|key| !wanted.contains_key(key)) {
            if let Some(key) = key(*option, name) {
                self.names.remove(&key)?;
            }
        }
        self.present = wanted;
        Ok(())
    }
}

/// Chooses a network ([`NETWORK`]) or an intent ([`INTENT`]) for a socket, as any program can; an
/// empty name removes the choice.
///
/// # Errors
/// `ENODEV`: the name is unknown. `ENOPROTOOPT`: Hawser is not running here, or cannot handle the
/// option.
pub fn choose(socket: &impl AsFd, option: i32, name: &str) -> io::Result<()> {
    set(socket, option, name.as_bytes())
}

/// Returns the key: the option and the name, padded with zeroes.
fn key(option: i32, name: &str) -> Option<[u8; KEY]> {
    let mut key = [0; KEY];
    key[..4].copy_from_slice(&option.to_ne_bytes());
    key[4..].get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    (name.len() < NAME).then_some(key)
}

/// Returns the kernel's cookie of this network namespace.
pub(super) fn namespace_cookie() -> io::Result<u64> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the value is eight bytes, as the length says, and outlives the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cookie)
}

/// Returns the program, which looks up the option's value and changes the socket. It ignores other
/// levels and other namespaces.
fn program(becomes: Becomes, names: i32, ring: Option<&Ring>, cookie: u64) -> Vec<u64> {
    use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R10};
    let mut code = Assembly::default();
    code.copy(R6, R1)
        .load(Width::Word, R2, R6, LEVEL)
        .jump_if(If::NotEqual, R2, SOL_HAWSER, "pass")
        .call(GET_NETNS_COOKIE)
        .set_wide(R1, cookie)
        .jump_if_both(If::NotEqual, R0, R1, "pass");
    if ring.is_some() {
        code.load(Width::Word, R2, R6, OPTION)
            .jump_if(If::Equal, R2, RATE, "rate");
    }
    // Key on the stack: the option, then the name, padded with zeroes.
    code.set(R1, 0);
    for offset in (KEY_AT..0).step_by(8) {
        code.store(Width::Double, R10, offset, R1);
    }
    code.load(Width::Word, R2, R6, OPTION)
        .jump_if(If::Greater, R2, INTENT, "pass")
        .jump_if(If::Equal, R2, 0, "pass")
        .store(Width::Word, R10, KEY_AT, R2)
        .load(Width::Double, R7, R6, VALUE)
        .load(Width::Double, R8, R6, VALUE_END);
    for index in 0..NAME as i16 {
        code.copy(R1, R7)
            .add(R1, i32::from(index) + 1)
            .jump_if_both(If::Greater, R1, R8, "look up")
            .load(Width::Byte, R2, R7, index)
            .jump_if(If::Equal, R2, 0, "look up");
        if index < NAME as i16 - 1 {
            code.store(Width::Byte, R10, KEY_AT + 4 + index, R2);
        }
    }
    code.jump("unknown");
    code.label("look up")
        .set_map(R1, names)
        .copy(R2, R10)
        .add(R2, i32::from(KEY_AT))
        .call(MAP_LOOKUP)
        .jump_if(If::Equal, R0, 0, "unknown")
        .load(Width::Word, R2, R0, 0)
        .store(Width::Word, R10, NUMBER_AT, R2);
    let options: &[_] = match becomes {
        Becomes::Mark => &[(libc::SOL_SOCKET, libc::SO_MARK, "marked")],
        // An IPv4 socket accepts only the first; an IPv6 socket accepts the second, and on newer
        // kernels also the first, for its IPv4 packets.
        Becomes::TrafficClass => &[
            (libc::IPPROTO_IP, libc::IP_TOS, "of IPv4"),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, "of IPv6"),
        ],
    };
    code.set(R7, -1);
    for (level, option, then) in options {
        code.load(Width::Double, R1, R6, SOCKET)
            .set(R2, *level)
            .set(R3, *option)
            .copy(R4, R10)
            .add(R4, i32::from(NUMBER_AT))
            .set(R5, 4)
            .call(SET_SOCKET_OPTION)
            .jump_if(If::NotEqual, R0, 0, then)
            .set(R7, 0)
            .label(then);
    }
    code.jump_if(If::NotEqual, R7, 0, "unknown");
    // The kernel itself does not process the option further.
    code.label("done")
        .set(R1, -1)
        .store(Width::Word, R6, LENGTH, R1)
        .exit(1);
    if let Some(ring) = ring {
        rates::answer(&mut code, ring);
    }
    code.label("unknown").set(R1, -libc::ENODEV);
    code.label("refuse").call(SET_RESULT).exit(0);
    code.label("pass").exit(1);
    code.finish()
}

/// Bytes of a name, with a zero at its end. Source: an interface has 16 (`IFNAMSIZ` of linux/if.h),
/// a BSSID 18.
const NAME: usize = 32;
/// Bytes of a key. Source: an option of 32 bits, and a name.
const KEY: usize = 4 + NAME;
/// Names of all networks and intents, some under more than one. Source: our choice, four names for
/// each of the 249 numbers of networks; further names are rejected when they are added.
const ENTRIES: u32 = 1024;
/// Offset of the key on the stack: 40 bytes, of which it fills 36. Source: [`KEY`] rounded up to a
/// multiple of 8 bytes.
const KEY_AT: i16 = -40;
/// Offset of the network's number on the stack. Source: 8 bytes below the key.
const NUMBER_AT: i16 = -48;
// Helpers (linux/bpf.h).
const MAP_LOOKUP: i32 = 1;
pub(super) const SET_SOCKET_OPTION: i32 = 49;
pub(super) const GET_NETNS_COOKIE: i32 = 122;
const SET_RESULT: i32 = 187;
// Source: asm-generic/socket.h of Linux.
const SO_NETNS_COOKIE: libc::c_int = 71;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use socket2::{Domain, Socket, Type};

    /// Starts handling options inside the namespace; returns `None`, and records the test as
    /// skipped, without the privilege to load programs.
    fn begun(inside: &Namespace, becomes: Becomes) -> Option<SocketOptions> {
        match inside.run(|| SocketOptions::new(becomes)) {
            Ok(options) => Some(options),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                hawser_testing::skip(format!("no right to load eBPF programs: {error}"));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_name_becomes_a_mark_here_and_nowhere_else() {
        let Ok(inside) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let Some(mut options) = begun(&inside, Becomes::Mark) else {
            return;
        };
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None);
        let names = [
            ((NETWORK, "wlan0".to_owned()), 0x4857_0002),
            ((INTENT, "cheap".to_owned()), 0x4857_0400),
        ];
        options.know(names.into()).unwrap();
        inside
            .run(|| {
                let socket = socket()?;
                choose(&socket, NETWORK, "wlan0")?;
                assert_eq!(socket.mark()?, 0x4857_0002);
                choose(&socket, INTENT, "cheap\0and more")?;
                assert_eq!(socket.mark()?, 0x4857_0400);
                for wrong in ["wlan1", "wlan", "cheap", "", &"x".repeat(31), &"x".repeat(200)] {
                    let error = choose(&socket, NETWORK, wrong).unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{wrong}");
                }
                let error = choose(&socket, 7, "wlan0").unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT));
                socket.set_tcp_nodelay(true)
            })
            .unwrap();
        let outside = choose(&socket().unwrap(), NETWORK, "wlan0").unwrap_err();
        assert_eq!(outside.raw_os_error(), Some(libc::ENOPROTOOPT));
        options.know(BTreeMap::new()).unwrap();
        inside
            .run(|| {
                let error = choose(&socket()?, NETWORK, "wlan0").unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
                Ok(())
            })
            .unwrap();
        drop(options);
        // A process that another test is starting may keep the link open a moment longer.
        let is_silent = || {
            inside.run(|| {
                let error = choose(&socket()?, NETWORK, "wlan0").unwrap_err();
                std::thread::sleep(std::time::Duration::from_millis(10));
                Ok(error.raw_os_error() == Some(libc::ENOPROTOOPT))
            })
        };
        assert!((0..200).any(|_| is_silent().unwrap()));
    }

    #[test]
    fn a_name_becomes_the_traffic_class_of_either_family() {
        let Ok(inside) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let Some(mut options) = begun(&inside, Becomes::TrafficClass) else {
            return;
        };
        let names = [("realtime", 46 << 2), ("", 0)];
        options
            .know(
                names
                    .map(|(name, class)| ((INTENT, name.to_owned()), class))
                    .into(),
            )
            .unwrap();
        inside
            .run(|| {
                let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
                choose(&socket, INTENT, "realtime")?;
                assert_eq!(socket.tos_v4()?, 46 << 2);
                choose(&socket, INTENT, "")?;
                assert_eq!(socket.tos_v4()?, 0);
                assert_eq!(
                    choose(&socket, NETWORK, "wlan0").unwrap_err().raw_os_error(),
                    Some(libc::ENODEV)
                );
                let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
                choose(&socket, INTENT, "realtime")?;
                assert_eq!(socket.tclass_v6()?, 46 << 2);
                Ok(())
            })
            .unwrap();
    }
}
