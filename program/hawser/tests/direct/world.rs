//! Machine with two networks of the same subnet and the same gateway address, a LAN behind it, and
//! a server beyond both gateways.
//!
//! ```text
//!   lan ---- client ==(net1)== gateway 1 \
//!                   ==(net2)== gateway 2 --- server  203.0.113.2, 2001:db8::2
//! ```
//!
//! Each gateway translates to its own address, so the server sees the network of a flow:
//! `10.9.N.1`, `fd09:N::1`. Each gateway is also the host 192.168.0.5.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;
pub(crate) use hawser_testing::Daemon;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

pub(crate) const SERVER: &str = "203.0.113.2";
pub(crate) const SERVER6: &str = "2001:db8::2";
const MOUNT_CGROUPS: &str = "mount -t cgroup2 none /sys/fs/cgroup";
pub(crate) const PORT: u16 = 8000;

pub(crate) struct World {
    pub(crate) client: Namespace,
    pub(crate) gateways: [Namespace; 2],
    pub(crate) server: Namespace,
    pub(crate) lan: Namespace,
    pub(crate) dir: tempfile::TempDir,
}

impl World {
    /// Creates the namespaces; `None` if they are not permitted.
    pub(crate) fn new() -> Option<Self> {
        let namespace = Namespace::new;
        let world = match namespace() {
            Err(error) => {
                hawser_testing::skip(format!("no namespaces: {error}"));
                return None;
            }
            Ok(client) => Self {
                client,
                gateways: [
                    namespace().expect("a namespace"),
                    namespace().expect("a namespace"),
                ],
                server: namespace().expect("a namespace"),
                lan: namespace().expect("a namespace"),
                dir: tempfile::tempdir().expect("a directory"),
            },
        };
        for namespace in [
            &world.client,
            &world.gateways[0],
            &world.gateways[1],
            &world.server,
            &world.lan,
        ] {
            set(namespace, "net/ipv6/conf/default/accept_dad", "0");
            set(namespace, "net/ipv6/conf/all/accept_dad", "0");
            ip(namespace, "link set lo up");
        }
        ip(
            &world.server,
            &format!("addr add {SERVER}/32 dev lo\naddr add {SERVER6}/128 dev lo nodad"),
        );
        for number in [1, 2] {
            world.join(number);
        }
        world.join_lan();
        serve(&world.server, SERVER);
        for gateway in &world.gateways {
            serve(gateway, "192.168.0.5");
        }
        Some(world)
    }

    fn join(&self, n: usize) {
        let gateway = &self.gateways[n - 1];
        ip(
            &self.client,
            &format!("link add net{n} type veth peer name in netns {}", gateway.path()),
        );
        ip(
            gateway,
            &format!(
                "link add out type veth peer name g{n} netns {}",
                self.server.path()
            ),
        );
        ip(
            gateway,
            &format!(
                "addr add 192.168.0.1/24 dev in\naddr add 192.168.0.5/24 dev in\naddr add fd77::1/64 dev in nodad\nlink set in up\n\
                 addr add 10.9.{n}.1/24 dev out\naddr add fd09:{n}::1/64 dev out nodad\nlink set out up\n\
                 route add {SERVER} via 10.9.{n}.2\nroute add {SERVER6} via fd09:{n}::2"
            ),
        );
        ip(
            &self.server,
            &format!(
                "addr add 10.9.{n}.2/24 dev g{n}\naddr add fd09:{n}::2/64 dev g{n} nodad\nlink set g{n} up"
            ),
        );
        set(gateway, "net/ipv4/ip_forward", "1");
        set(gateway, "net/ipv6/conf/all/forwarding", "1");
        nft(
            gateway,
            "table inet nat {\n chain out {\n type nat hook postrouting priority srcnat;\n oifname \"out\" masquerade\n }\n}",
        );
        ip(&self.client, &format!("addr add 192.168.0.2/24 dev net{n}"));
        self.plug(n);
    }

    pub(crate) fn plug(&self, n: usize) {
        ip(&self.client, &plugging(n));
    }

    fn join_lan(&self) {
        ip(
            &self.client,
            &format!("link add lan0 type veth peer name eth0 netns {}", self.lan.path()),
        );
        ip(&self.client, "addr add 10.50.0.1/24 dev lan0\nlink set lan0 up");
        ip(
            &self.lan,
            "addr add 10.50.0.2/24 dev eth0\nlink set eth0 up\nroute add default via 10.50.0.1",
        );
    }

    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.dir.path().join("client.toml"), text).expect("written");
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub(crate) fn hawser(&self, arguments: &[&str]) -> Command {
        let mut command = self.client.command(env!("CARGO_BIN_EXE_hawser"));
        command.args(arguments).arg("--run-dir").arg(self.run_dir());
        command.env("OVS_RUNDIR", self.switch_dir());
        command
    }

    /// Returns the directory of this world's switch.
    pub(crate) fn switch_dir(&self) -> PathBuf {
        self.dir.path().join("switch")
    }

    /// Starts a daemon, which is killed at the end of the test, and waits until both networks are
    /// monitored and answer.
    pub(crate) fn up(&self) -> Daemon {
        let daemon = self.start();
        self.wait_until("both networks are active", |world| {
            ["net1", "net2"].iter().all(|name| world.state(name) == "active")
        });
        daemon
    }

    /// Starts a daemon without waiting.
    pub(crate) fn start(&self) -> Daemon {
        self.start_after(":")
    }

    /// Starts a daemon in a separate mount namespace after `commands`.
    pub(crate) fn start_after(&self, commands: &str) -> Daemon {
        let log = std::fs::File::create(self.dir.path().join("log")).expect("a log");
        // The namespace's own /sys has no control groups.
        let mut command = self.client.command("sh");
        command.args([
            "-c",
            &format!("{MOUNT_CGROUPS}; {commands}; exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_hawser"),
        ]);
        command.args(["up", "--direct", "--foreground", "--log", "debug"]);
        command.env("OVS_RUNDIR", self.switch_dir());
        // The machine's own services must not be used.
        command.env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent");
        command
            .arg("--run-dir")
            .arg(self.run_dir())
            .arg("--dir")
            .arg(self.dir.path());
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        Daemon(command.spawn().expect("the program starts"))
    }

    /// Runs a script that sees the client's networks and all control groups.
    pub(crate) fn script(&self, script: &str) -> Output {
        let mut command = self.client.command("bash");
        command.args(["-c", &format!("{MOUNT_CGROUPS}; {script}")]);
        command.output().expect("bash runs")
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> Value {
        let output = self
            .hawser(arguments)
            .arg("--json")
            .output()
            .expect("the program runs");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.hawser(arguments).output().expect("the program runs")
    }

    /// Runs `hawser run` with these options.
    pub(crate) fn run_program(&self, options: &[&str], program: &[&str]) -> Output {
        let mut command = self.hawser(&["run"]);
        command.args(options).arg("--").args(program);
        command.output().expect("the program runs")
    }

    pub(crate) fn down(&self) -> String {
        let output = self.run(&["down"]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn state(&self, name: &str) -> String {
        let status = self.ask(&["status"]);
        let networks = status["networks"].as_array().cloned().unwrap_or_default();
        let network = networks.iter().find(|network| network["name"] == name);
        network
            .and_then(|network| network["state"].as_str())
            .unwrap_or("absent")
            .to_owned()
    }

    pub(crate) fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) -> Duration {
        let start = Instant::now();
        while !is_so(self) {
            if start.elapsed() > hawser_testing::GIVE_UP {
                panic!(
                    "never: {what}; {}",
                    std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        start.elapsed()
    }

    /// Returns all state that Hawser may change in the client and must restore at the end.
    pub(crate) fn system(&self) -> String {
        let script = "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; nft list ruleset; \
             grep -H . /proc/sys/net/ipv4/conf/*/rp_filter /proc/sys/net/ipv4/conf/*/arp_* /proc/sys/net/ipv4/ip_forward \
             /proc/sys/net/ipv6/conf/*/forwarding /proc/sys/net/ipv6/conf/*/accept_ra; ip mptcp limits; ip mptcp endpoint; ip -o link | cut -d' ' -f2";
        let output = self
            .client
            .command("sh")
            .args(["-c", script])
            .output()
            .expect("sh runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // The time and order of the kernel's own addresses and routes of links vary.
        let mut lines: Vec<_> = text
            .lines()
            .filter(|line| !line.contains("fe80:") && !line.contains("ff00::"))
            .collect();
        lines.sort_unstable();
        lines.join("\n")
    }

    /// Returns the network that a connection from `from` to the server uses: 1 or 2.
    pub(crate) fn way(&self, from: &Namespace, server: &str, mark: Option<u32>) -> std::io::Result<usize> {
        let mut stream = connect(from, server, mark)?;
        let seen = read_peer(&mut stream)?;
        Ok(way_of(&seen))
    }

    pub(crate) fn ways(&self, count: usize) -> Vec<usize> {
        (0..count)
            .map(|_| self.way(&self.client, SERVER, None).expect("the server answers"))
            .collect()
    }
}

/// Returns the commands of a network manager when a device gets its carrier.
pub(crate) fn plugging(n: usize) -> String {
    format!(
        "link set net{n} up\naddr replace 192.168.0.2/24 dev net{n}\naddr replace fd77::2/64 dev net{n} nodad\n\
         route replace default via 192.168.0.1 dev net{n} metric 10{n}\nroute replace ::/0 via fd77::1 dev net{n} metric 10{n}"
    )
}

pub(crate) fn way_of(seen: &str) -> usize {
    let part = seen
        .split(['.', ':'])
        .nth(if seen.contains("10.9.") { 2 } else { 1 });
    part.and_then(|part| part.parse().ok())
        .unwrap_or_else(|| panic!("seen from {seen}"))
}

/// Reads the address under which the server sees the connection.
pub(crate) fn read_peer(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 && byte != *b"\n" {
        bytes.push(byte[0]);
    }
    Ok(String::from_utf8(bytes).expect("text"))
}

pub(crate) fn connect(from: &Namespace, server: &str, mark: Option<u32>) -> std::io::Result<TcpStream> {
    from.run(|| {
        let address = SocketAddr::new(server.parse::<IpAddr>().expect("an address"), PORT);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if let Some(mark) = mark {
            socket.set_mark(mark)?;
        }
        socket.connect_timeout(&address.into(), Duration::from_secs(3))?;
        socket.set_read_timeout(Some(Duration::from_secs(3)))?;
        Ok(socket.into())
    })
}

/// Starts servers: a TCP connection receives its own peer address and then an echo; a datagram is
/// answered with its source.
fn serve(namespace: &Namespace, address: &str) {
    let (listener, datagrams) = namespace
        .run(|| {
            Ok((
                TcpListener::bind(("::", PORT))?,
                UdpSocket::bind((address, PORT))?,
            ))
        })
        .expect("a server");
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            std::thread::spawn(move || {
                let peer = match peer.ip() {
                    IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(v6.into(), IpAddr::from),
                    v4 @ IpAddr::V4(_) => v4,
                };
                let _ = stream.write_all(format!("{peer}\n").as_bytes());
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, peer)) = datagrams.recv_from(&mut buffer) {
            let _ = datagrams.send_to(peer.ip().to_string().as_bytes(), peer);
        }
    });
}

pub(crate) fn ip(namespace: &Namespace, commands: &str) {
    let output = try_ip(namespace, commands);
    assert!(
        output.status.success(),
        "{commands}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs commands of `ip` that may fail, for example because a device is absent.
pub(crate) fn try_ip(namespace: &Namespace, commands: &str) -> Output {
    let mut command = namespace.command("ip");
    feed(command.args(["-force", "-batch", "-"]), commands)
}

pub(crate) fn nft(namespace: &Namespace, rules: &str) {
    let mut command = namespace.command("nft");
    let output = feed(command.args(["-f", "-"]), rules);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn feed(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(input.as_bytes())
        .expect("written");
    child.wait_with_output().expect("the program ends")
}

fn set(namespace: &Namespace, key: &str, value: &str) {
    let result = namespace.run(|| std::fs::write(format!("/proc/sys/{key}"), value));
    assert!(result.is_ok() || key.contains("ipv6"), "{key}: {result:?}");
}
