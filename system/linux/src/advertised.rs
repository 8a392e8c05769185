//! Router advertisement options that the kernel leaves to programs: the address of a captive portal
//! API, and the prefix of a translator (NAT64).
//!
//! The kernel passes such options on if it processes router advertisements itself (`accept_ra`); if
//! a service processes them instead, that service knows the options.
//!
//! Source: linux/rtnetlink.h (`RTM_NEWNDUSEROPT`), RFC 4861 sections 4.1 and 4.6, RFC 8910 section
//! 2.3, RFC 8781 section 4.

use std::io;
use std::net::{Ipv6Addr, SocketAddrV6};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

use socket2::{Domain, Protocol, Socket, Type};

use crate::netlink_bytes::messages;
use crate::udp::keep_outside;

/// Option of router advertisements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterOption {
    /// Address of the captive portal API.
    CaptivePortal,
    /// Prefix of a translator.
    Pref64,
}

impl RouterOption {
    /// Returns the type of the option. Source: RFC 8910 section 2.3, RFC 8781 section 4.
    fn kind(self) -> u8 {
        match self {
            Self::CaptivePortal => 37,
            Self::Pref64 => 38,
        }
    }
}

/// Receives one option of router advertisements.
pub struct Advertised {
    socket: TokioSocket,
    option: RouterOption,
}

impl Advertised {
    /// Starts listening; must be called within a tokio runtime.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn listen(option: RouterOption) -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
        socket.socket_mut().add_membership(USER_OPTIONS)?;
        Ok(Self { socket, option })
    }

    /// Returns the next options: an interface's index, and the value of the option with its zero
    /// padding. Cancel safe.
    ///
    /// # Errors
    /// The socket has failed, or messages were lost.
    pub async fn next(&mut self) -> io::Result<Vec<(u32, Vec<u8>)>> {
        let (bytes, _) = self.socket.recv_from_full().await?;
        let options = messages(&bytes).filter(|(kind, _)| *kind == NEW_USER_OPTION);
        let own = options.filter_map(|(_, body)| value_of(self.option, body));
        Ok(own.collect())
    }
}

/// Asks the routers of an interface for an advertisement, which they send within 3 s (RFC 4861
/// section 6.2.6).
///
/// # Errors
/// The device was removed, has no IPv6 address, or privileges (`CAP_NET_RAW`) are missing.
pub fn solicit(device: &str, index: u32) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
    keep_outside(&socket, Some(device))?;
    socket.set_multicast_hops_v6(NEIGHBOUR_HOPS)?;
    socket
        .send_to(&SOLICITATION, &SocketAddrV6::new(ALL_ROUTERS, 0, 0, index).into())
        .map(drop)
}

/// Returns the value of an option in a message, if the message contains it.
fn value_of(option: RouterOption, body: &[u8]) -> Option<(u32, Vec<u8>)> {
    let wanted = option.kind();
    let length = u16::from_ne_bytes([*body.get(2)?, *body.get(3)?]);
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let option = body.get(HEADER..HEADER + usize::from(length))?;
    let [kind, eights, value @ ..] = option else {
        return None;
    };
    let length = (usize::from(*eights) * 8).checked_sub(2)?;
    (*kind == wanted).then_some((index, value.get(..length)?.to_vec()))
}

/// `RTNLGRP_ND_USEROPT` of linux/rtnetlink.h.
const USER_OPTIONS: u32 = 20;
/// `RTM_NEWNDUSEROPT` of linux/rtnetlink.h.
const NEW_USER_OPTION: u16 = 68;
/// Length of `struct nduseroptmsg` of linux/rtnetlink.h: family, length of the options, interface,
/// type and code of ICMPv6.
const HEADER: usize = 16;
/// Router solicitation without options (RFC 4861 section 4.1); the kernel fills in the checksum.
const SOLICITATION: [u8; 8] = [133, 0, 0, 0, 0, 0, 0, 0];
/// Hop limit that routers require (RFC 4861 section 6.1.1).
const NEIGHBOUR_HOPS: u32 = 255;
/// Multicast address of all routers of a link (RFC 4291 section 2.7.1).
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::netns::Namespace;

    // Arbitrary indices of the two interfaces.
    const HOST: u32 = 71;
    const ROUTER: u32 = 72;

    /// An option with its padding.
    fn option(option: RouterOption, value: &[u8]) -> Vec<u8> {
        let mut bytes = [&[option.kind(), 0][..], value].concat();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes[1] = (bytes.len() / 8) as u8;
        bytes
    }

    /// A router advertisement (RFC 4861 section 4.2) to all hosts.
    fn advertise(options: &[u8]) -> io::Result<()> {
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
        socket.set_multicast_hops_v6(255)?;
        let all = SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 0, 0, ROUTER);
        let head = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        socket
            .send_to(&[&head[..], options].concat(), &all.into())
            .map(drop)
    }

    async fn hear_while_advertised(option: RouterOption, options: &[u8]) -> io::Result<Vec<(u32, Vec<u8>)>> {
        let mut advertised = Advertised::listen(option)?;
        let hear = async {
            loop {
                let heard = advertised.next().await?;
                if !heard.is_empty() {
                    return Ok(heard);
                }
            }
        };
        let say = async {
            for _ in 0..100 {
                // At first there is no source address.
                let _ = advertise(options);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            heard = hear => heard,
            () = say => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    #[test]
    fn what_a_router_says_of_portals_and_translators_is_heard() {
        if !hawser_testing::require(crate::process::is_root(), "needs root") {
            return;
        }
        let namespace = Namespace::new().unwrap();
        let mut commands = namespace.command("sh");
        let script = format!(
            "ip link add host index {HOST} type veth peer name router index {ROUTER}
             cd /proc/sys/net/ipv6/conf
             echo 1 >host/accept_ra_from_local; echo 1 >host/accept_ra; echo 0 >router/accept_ra
             ip link set host up; ip link set router up"
        );
        assert!(commands.args(["-ec", &script]).status().unwrap().success());
        let portal = option(RouterOption::CaptivePortal, b"https://wifi.example/api");
        let pref64 = option(
            RouterOption::Pref64,
            &[7, 8, 0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0],
        );
        // The MTU (RFC 4861 section 4.6.4), which the kernel itself processes.
        let options = [&[5, 1, 0, 0, 0, 0, 5, 0x78][..], &portal, &pref64].concat();
        for (option, sent) in [
            (RouterOption::CaptivePortal, &portal),
            (RouterOption::Pref64, &pref64),
        ] {
            let heard = namespace.run(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(hear_while_advertised(option, &options))
            });
            assert_eq!(heard.unwrap(), [(HOST, sent[2..].to_vec())]);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = value_of(RouterOption::Pref64, &bytes);
        }
    }
}
