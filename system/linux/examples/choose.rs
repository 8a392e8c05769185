//! Connects over a chosen network: `cargo run -p hawser-linux --example choose wlan0
//! 203.0.113.2:80`
#![expect(clippy::print_stdout, reason = "this is an example")]

use std::net::SocketAddr;

use hawser_linux::bpf::{NETWORK, choose};
use socket2::{Domain, Socket, Type};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(network), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: choose NETWORK ADDRESS:PORT".into());
    };
    let address: SocketAddr = address.parse()?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    choose(&socket, NETWORK, &network)?;
    socket.connect(&address.into())?;
    println!("connected over {network}");
    Ok(())
}
