//! What routers advertise and the kernel leaves to programs: the address of a captive portal API.
//!
//! The kernel passes such options on where it listens to routers itself (`accept_ra`); where a
//! service does in its place, that service knows them.
//!
//! Source: linux/rtnetlink.h (`RTM_NEWNDUSEROPT`), RFC 4861 section 4.6, RFC 8910 section 2.3.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

use crate::netlink_bytes::messages;

/// Hears the option of captive portals in router advertisements.
pub struct Advertised(TokioSocket);

impl Advertised {
    /// Begins to listen; must be called within a tokio runtime.
    ///
    /// # Errors
    /// No netlink socket is to be had.
    pub fn listen() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
        socket.socket_mut().add_membership(USER_OPTIONS)?;
        Ok(Self(socket))
    }

    /// The next ones: an interface's index, and the value of the option with the zeros that fill it
    /// up. May be dropped while it waits.
    ///
    /// # Errors
    /// The socket broke, or something was lost.
    pub async fn next(&mut self) -> io::Result<Vec<(u32, Vec<u8>)>> {
        let (bytes, _) = self.0.recv_from_full().await?;
        let options = messages(&bytes).filter(|(kind, _)| *kind == NEW_USER_OPTION);
        Ok(options.filter_map(|(_, body)| captive_portal(body)).collect())
    }
}

/// The option in a message, if it is that one.
fn captive_portal(body: &[u8]) -> Option<(u32, Vec<u8>)> {
    let length = u16::from_ne_bytes([*body.get(2)?, *body.get(3)?]);
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let option = body.get(HEADER..HEADER + usize::from(length))?;
    let [kind, eights, value @ ..] = option else {
        return None;
    };
    let length = (usize::from(*eights) * 8).checked_sub(2)?;
    (*kind == CAPTIVE_PORTAL).then_some((index, value.get(..length)?.to_vec()))
}

/// `RTNLGRP_ND_USEROPT`.
const USER_OPTIONS: u32 = 20;
/// `RTM_NEWNDUSEROPT`.
const NEW_USER_OPTION: u16 = 68;
/// Of `struct nduseroptmsg`: family, length of the options, interface, type and code of ICMPv6.
const HEADER: usize = 16;
/// RFC 8910 section 2.3.
const CAPTIVE_PORTAL: u8 = 37;

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, SocketAddrV6};
    use std::time::Duration;

    use proptest::prelude::*;
    use socket2::{Domain, Protocol, Socket, Type};

    use super::*;
    use crate::netns::Namespace;

    // Indices of the two interfaces: any.
    const HOST: u32 = 71;
    const ROUTER: u32 = 72;

    /// Options of a router: another one, and an address with what fills it up.
    fn options(address: &str) -> Vec<u8> {
        let mut option = vec![CAPTIVE_PORTAL, 0];
        option.extend(address.bytes());
        option.resize(option.len().next_multiple_of(8), 0);
        option[1] = (option.len() / 8) as u8;
        // The MTU (RFC 4861 section 4.6.4) is the kernel's own business.
        [&[5, 1, 0, 0, 0, 0, 5, 0x78][..], &option].concat()
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

    async fn hear_while_advertised(options: &[u8]) -> io::Result<Vec<(u32, Vec<u8>)>> {
        let mut advertised = Advertised::listen()?;
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
                // There is no address to send from at first.
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
    fn what_a_router_says_of_captive_portals_is_heard() {
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
        let options = options("https://wifi.example/api");
        let heard = namespace.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(hear_while_advertised(&options))
        });
        assert_eq!(heard.unwrap(), [(HOST, options[10..].to_vec())]);
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = captive_portal(&bytes);
        }
    }
}
