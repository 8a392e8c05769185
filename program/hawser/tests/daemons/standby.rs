//! One hub on two machines: keepalived moves its address, conntrackd replicates the connections of
//! the kernel, and the downloads of all clients survive the failure of the active machine.
//!
//! The machines are configured by `packaging/standby`. `HAWSER_TEST_CLIENTS` is the number of
//! clients, by default 5, at most 200.

use std::io::{BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;
use hawser_testing::{Postgres, require_program};
use serde_json::Value;

use crate::world::{Daemon, World, good, run};

/// Address that moves between the machines, in the public network.
const ADDRESS: &str = "198.51.100.1";
const ENDPOINT: &str = "198.51.100.1:4430";
const SERVER: &str = "203.0.113.2:9000";
/// Another hub of the fleet, on the server's machine.
const OTHER: &str = "203.0.113.2:4431";
/// The two machines of the hub. The router between clients, hub and server is the namespace `h`.
const MACHINES: [&str; 2] = ["a", "b"];

struct Site {
    world: World,
    /// Hub, conntrackd and keepalived of a machine.
    daemons: [Vec<Daemon>; 2],
    clients: Vec<Daemon>,
    database: Postgres,
}

impl Site {
    fn new(name: &str, clients: u8, advert: &str) -> Option<Self> {
        for program in ["keepalived", "conntrackd", "nft"] {
            if !require_program(&[program]) {
                return None;
            }
        }
        let database = Postgres::start()?;
        let world = World::new(name)?;
        drop(world.add_server());
        let (router, server) = (world.namespace("h"), world.namespace("s"));
        world.ip(&server, "route add default via 203.0.113.1");
        world.ip(&router, &format!("addr del {ADDRESS}/32 dev lo"));
        world.ip(&router, "link add wan type bridge");
        world.ip(&router, "addr add 198.51.100.254/24 dev wan");
        world.ip(&router, "link set wan up");
        let mut sysctl = world.inside("h", "sysctl");
        sysctl.args(["-qw", "net.ipv4.ip_forward=1"]);
        good(sysctl);
        for (side, last) in MACHINES.into_iter().zip(2..) {
            let machine = world.namespace(side);
            run("ip", &["netns", "add", &machine]);
            world.ip(&machine, "link set lo up");
            let port = format!("wan-{side}");
            let link = format!("link add {port} type veth peer name wan netns {machine}");
            world.ip(&router, &link);
            world.ip(&router, &format!("link set {port} master wan up"));
            world.ip(&machine, &format!("addr add 198.51.100.{last}/24 dev wan"));
        }
        let (first, second) = (world.namespace("a"), world.namespace("b"));
        world.ip(
            &first,
            &format!("link add sync type veth peer name sync netns {second}"),
        );
        world.ip(&first, "addr add 10.99.0.1/24 dev sync");
        world.ip(&second, "addr add 10.99.0.2/24 dev sync");
        let mut site = Self {
            world,
            daemons: [Vec::new(), Vec::new()],
            clients: Vec::new(),
            database,
        };
        site.configure(advert);
        for machine in 0..2 {
            site.plug_in(machine);
            site.begin(machine);
            site.keep_alive(machine);
            // The first machine has the address before the second one looks for it.
            site.wait_for("active", || site.has_address(0));
        }
        site.begin_clients(clients);
        Some(site)
    }

    /// Runs `hawser-standby setup` in a separate directory for each machine.
    fn configure(&self, advert: &str) {
        let world = &self.world;
        let url = self.database.url();
        world.init_in_fleet("a", ENDPOINT, &url);
        let file = world.place("a").join("hub.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("nat_addresses = [\"{ADDRESS}\"]\n{text}")).unwrap();
        // Only key and configuration are the same on both machines.
        std::fs::create_dir(world.place("b")).unwrap();
        for name in ["hub.key", "hub.toml"] {
            std::fs::copy(world.place("a").join(name), world.place("b").join(name)).unwrap();
        }
        for (machine, side) in MACHINES.into_iter().enumerate() {
            let mut setup = world.inside(side, script().to_str().unwrap());
            let (own, peer) = [("10.99.0.1", "10.99.0.2"), ("10.99.0.2", "10.99.0.1")][machine];
            let address = format!("{ADDRESS}/24");
            setup.args(["setup", "--address", &address, "--interface", "wan"]);
            setup.args(["--own", own, "--peer", peer, "--priority", ["100", "90"][machine]]);
            setup.arg("--root").arg(self.root(machine));
            let said = String::from_utf8(good(setup).stdout).unwrap();
            assert!(
                said.contains(&format!("nat_addresses = [\"{ADDRESS}\"]")),
                "{said}"
            );
            let unit = self.root(machine).join("units/conntrackd.service.d/hawser.conf");
            assert!(
                std::fs::read_to_string(unit)
                    .unwrap()
                    .contains("hawser-conntrackd.lock")
            );
            // The checkout is not owned by root only, and daemons have their own directories here.
            let file = self.root(machine).join("etc/keepalived/keepalived.conf");
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(!text.contains('@'), "{text}");
            let run_dir = world.run_dir(side).display().to_string();
            let hawser = env!("CARGO_BIN_EXE_hawser");
            let check = format!("{hawser} status --json --run-dir {run_dir}");
            let text = text
                .replace("enable_script_security", "")
                .replace("advert_int 0.1", advert)
                .replace(&format!("{} check", script().display()), &check);
            std::fs::write(file, text).unwrap();
        }
    }

    fn root(&self, machine: usize) -> PathBuf {
        self.world.place(MACHINES[machine]).with_extension("root")
    }

    fn plug_in(&self, machine: usize) {
        let namespace = self.world.namespace(MACHINES[machine]);
        for link in ["wan", "sync"] {
            self.world.ip(&namespace, &format!("link set {link} up"));
        }
        self.world.ip(&namespace, "route add default via 198.51.100.254");
    }

    /// Starts the hub and conntrackd of a machine.
    fn begin(&mut self, machine: usize) {
        let side = MACHINES[machine];
        let hub = self.world.start(side, &["hub", "run"]);
        let root = self.root(machine);
        // These files are lost with the power, or removed by the units after a crash.
        for file in ["hawser-conntrackd.lock", "keepalived.pid", "vrrp.pid"] {
            let _ = std::fs::remove_file(root.join("run").join(file));
        }
        let mut conntrackd = self.world.inside(side, "conntrackd");
        conntrackd
            .arg("-C")
            .arg(root.join("etc/conntrackd/conntrackd.conf"));
        self.daemons[machine] = vec![hub, quiet(conntrackd)];
        self.wait_for("a hub", || self.world.status(side)["state"] == "up");
    }

    fn keep_alive(&mut self, machine: usize) {
        let root = self.root(machine);
        let mut keepalived = self.world.inside(MACHINES[machine], "keepalived");
        keepalived.args(["--dont-fork", "--vrrp", "--log-console"]);
        for (option, file) in [
            ("--use-file", "etc/keepalived/keepalived.conf"),
            ("--pid", "run/keepalived.pid"),
            ("--vrrp_pid", "run/vrrp.pid"),
        ] {
            keepalived.arg(option).arg(root.join(file));
        }
        let log = std::fs::File::create(root.join("keepalived.log")).unwrap();
        keepalived.stdin(Stdio::null());
        keepalived.stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons[machine].push(Daemon(keepalived.spawn().unwrap()));
    }

    fn begin_clients(&mut self, count: u8) {
        for number in 0..count {
            let side = client(number);
            if number > 0 {
                drop(self.world.add_client(&side, 20 + number));
            }
            let invited = good(
                self.world
                    .hawser("a", &["hub", "invite", &format!("guest-{number}")]),
            );
            let invitation = String::from_utf8(invited.stdout).unwrap();
            let up = ["up", invitation.trim(), "--foreground"];
            self.clients.push(self.world.start(&side, &up));
        }
        for number in 0..count {
            self.wait_for("a client", || self.world.status(&client(number))["state"] == "up");
        }
    }

    fn has_address(&self, machine: usize) -> bool {
        let mut ip = self.world.inside(MACHINES[machine], "ip");
        ip.args(["-o", "address", "show", "to", ADDRESS]);
        !good(ip).stdout.is_empty()
    }

    fn sessions(&self, clients: u8) -> Vec<Value> {
        let session = |number| self.world.status(&client(number))["session"].clone();
        (0..clients).map(session).collect()
    }

    fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + hawser_testing::GIVE_UP;
        while !is_so() {
            let log = |machine| std::fs::read_to_string(self.root(machine).join("keepalived.log"));
            assert!(Instant::now() < deadline, "not {what}: {:?} {:?}", log(0), log(1));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills all processes of a machine at once, like a loss of power: none closes its connections.
    fn kill(&mut self, machine: usize) {
        let namespace = self.world.namespace(MACHINES[machine]);
        let inside = Command::new("ip").args(["netns", "pids", &namespace]).output();
        let inside = String::from_utf8(inside.unwrap().stdout).unwrap();
        // If one process of keepalived ends, another one notifies the other machine.
        for link in ["wan", "sync"] {
            self.world.ip(&namespace, &format!("link set {link} down"));
        }
        let kill: Vec<_> = ["-KILL"].into_iter().chain(inside.split_whitespace()).collect();
        // Processes that keepalived started may have ended by themselves.
        let _ = Command::new("kill").args(kill).stderr(Stdio::null()).status();
        self.daemons[machine].clear();
    }
}

/// Returns the script that sets up both machines.
fn script() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/standby/hawser-standby");
    script.canonicalize().unwrap()
}

fn quiet(mut command: Command) -> Daemon {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Daemon(command.spawn().unwrap())
}

/// Returns the configuration of a client: the first has two networks, the others one.
fn client(number: u8) -> String {
    if number == 0 {
        return "c".to_owned();
    }
    format!("c{number}")
}

/// Downloads of all clients, each at 24 kB/s and checked byte by byte.
struct Downloads {
    all: Vec<Download>,
    is_over: Arc<AtomicBool>,
    serving: JoinHandle<()>,
}

struct Download {
    received: Arc<AtomicU64>,
    /// Longest time without data. Units: microseconds.
    longest_gap: Arc<AtomicU64>,
    receiving: JoinHandle<std::io::Result<()>>,
}

impl Downloads {
    fn start(world: &World, clients: u8) -> Self {
        let listener = world.open("s").run(|| TcpListener::bind(SERVER)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let serving = std::thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || serve(&listener, &is_over)
        });
        let all = (0..clients).map(|number| Download::start(world.open(&client(number))));
        let all = all.collect();
        Self {
            all,
            is_over,
            serving,
        }
    }

    /// Waits for up to 30 s until each download has received more or has ended. Returns the longest
    /// pause since the last call, and prints the others.
    fn go_on(&self, what: &str) -> Duration {
        let before: Vec<_> = self.all.iter().map(Download::received).collect();
        let deadline = Instant::now() + hawser_testing::GIVE_UP;
        let goes_on = |(download, before): &(&Download, &u64)| download.received() >= *before + 20_000;
        let going = || self.all.iter().zip(&before).filter(goes_on).count();
        let count = self.all.len();
        while going() + self.ended() < count && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let lost = count - going();
        let gaps = self
            .all
            .iter()
            .map(|download| download.longest_gap.swap(0, Ordering::Relaxed));
        let mut gaps: Vec<_> = gaps.map(Duration::from_micros).collect();
        gaps.sort_unstable();
        eprintln!(
            "{what}: {} of {count} connections go on; pauses: median {:?}, 95 % {:?}, longest {:?}",
            count - lost,
            gaps[count / 2],
            gaps[count * 95 / 100],
            gaps[count - 1]
        );
        assert!(
            lost * 100 <= count,
            "{what}: {lost} of {count} connections do not go on"
        );
        gaps[count - 1]
    }

    fn ended(&self) -> usize {
        let ended = self
            .all
            .iter()
            .filter(|download| download.receiving.is_finished());
        ended.count()
    }

    fn finish(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.serving.join().unwrap();
        for download in self.all {
            download.receiving.join().unwrap().unwrap();
        }
    }
}

impl Download {
    fn start(client: Namespace) -> Self {
        let (received, longest_gap) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (count, gap) = (Arc::clone(&received), Arc::clone(&longest_gap));
        let receiving = std::thread::spawn(move || receive(&client, &count, &gap));
        Self {
            received,
            longest_gap,
            receiving,
        }
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

fn serve(listener: &TcpListener, is_over: &Arc<AtomicBool>) {
    let mut sending = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let Ok((stream, from)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        assert_eq!(
            from.ip(),
            ADDRESS.parse::<IpAddr>().unwrap(),
            "NAT by the address that moves"
        );
        let is_over = Arc::clone(is_over);
        sending.push(std::thread::spawn(move || send(stream, &is_over)));
    }
    for one in sending {
        one.join().unwrap();
    }
}

/// Sends consecutive numbers, so that a lost or duplicated byte is detected.
fn send(mut stream: TcpStream, is_over: &AtomicBool) {
    stream.set_nonblocking(false).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut next = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        let chunk: Vec<u8> = (next..next + 60).flat_map(u64::to_be_bytes).collect();
        next += 60;
        // The client reports the error of the connection.
        if stream.write_all(&chunk).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn receive(client: &Namespace, count: &AtomicU64, longest_gap: &AtomicU64) -> std::io::Result<()> {
    let server: SocketAddr = SERVER.parse().unwrap();
    let stream = client.run(|| TcpStream::connect_timeout(&server, hawser_testing::GIVE_UP))?;
    stream.set_read_timeout(Some(hawser_testing::GIVE_UP))?;
    let mut stream = BufReader::new(stream);
    let (mut number, mut before) = ([0; 8], Instant::now());
    let mut expected = 0_u64;
    loop {
        match stream.read_exact(&mut number) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let now = Instant::now();
        let gap = now.duration_since(std::mem::replace(&mut before, now));
        longest_gap.fetch_max(u64::try_from(gap.as_micros()).unwrap(), Ordering::Relaxed);
        assert_eq!(u64::from_be_bytes(number), expected);
        expected += 1;
        count.fetch_add(8, Ordering::Relaxed);
    }
}

/// UDP exchange through the NAT: the other side answers with the source that it sees.
struct Call(UdpSocket);

impl Call {
    fn start(world: &World) -> Self {
        let other = world
            .open("s")
            .run(|| UdpSocket::bind("203.0.113.2:9001"))
            .unwrap();
        std::thread::spawn(move || {
            let mut packet = [0; 16];
            // The loop ends with the test, when no more packets arrive.
            while let Ok((_, from)) = other.recv_from(&mut packet) {
                let _ = other.send_to(from.to_string().as_bytes(), from);
            }
        });
        let own = world.open("c").run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        own.connect("203.0.113.2:9001").unwrap();
        own.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Self(own)
    }

    fn appears_as(&self) -> String {
        let mut answer = [0; 64];
        let deadline = Instant::now() + hawser_testing::GIVE_UP;
        loop {
            self.0.send(b"?").unwrap();
            match self.0.recv(&mut answer) {
                Ok(len) => return String::from_utf8_lossy(&answer[..len]).into_owned(),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }
}

#[test]
#[ignore = "slow: make test-all"]
fn setup_says_what_is_missing() {
    let link = ["--own", "10.99.0.1", "--peer", "10.99.0.2"];
    let said = |arguments: &[&str]| {
        let mut setup = Command::new(script());
        let output = setup.arg("setup").args(arguments).output().unwrap();
        assert!(output.stdout.is_empty());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = said(&["--address", "198.51.100.1/24"]);
    assert!(code == Some(64) && text.starts_with("usage:"), "{code:?} {text}");
    let (code, text) = said(&[&["--address", ADDRESS, "--interface", "eth0"], &link[..]].concat());
    assert!(
        code == Some(1) && text.contains("such as 198.51.100.1/24"),
        "{code:?} {text}"
    );
}

/// Clients change to the other hub before the standby has the address; existing connections
/// nevertheless continue through the standby.
#[test]
#[ignore = "slow: make test-all"]
fn connections_outlive_it_in_a_fleet() {
    // The takeover is so late that all clients have changed.
    let Some(mut site) = Site::new("standbyfleet", 2, "advert_int 1") else {
        return;
    };
    let (world, url) = (&site.world, site.database.url());
    world.init_in_fleet("s", OTHER, &url);
    let mut loopback = world.inside("s", "ip");
    loopback.args(["link", "set", "lo", "up"]);
    good(loopback);
    let _other = world.start("s", &["hub", "run"]);
    let hubs = |site: &Site, number| {
        let hubs = site.world.status(&client(number))["hubs"].clone();
        hubs.as_array().cloned().unwrap_or_default()
    };
    let used = |site: &Site, number| {
        let hubs = hubs(site, number);
        let used = hubs.iter().find(|hub| hub["in_use"] == true).cloned();
        used.map_or(Value::Null, |hub| hub["endpoints"][0].clone())
    };
    for number in 0..2 {
        site.wait_for("told of the other hub", || hubs(&site, number).len() == 2);
        assert_eq!(used(&site, number), ENDPOINT);
    }
    let downloads = Downloads::start(&site.world, 2);
    downloads.go_on("at first");
    site.kill(0);
    downloads.go_on("the machine is killed");
    assert!(site.has_address(1));
    for number in 0..2 {
        assert_eq!(used(&site, number), OTHER);
    }
    downloads.go_on("later");
    downloads.finish();
}

#[test]
#[ignore = "slow: make test-all"]
fn connections_outlive_the_machine_of_their_hub() {
    let clients = std::env::var("HAWSER_TEST_CLIENTS").ok();
    let clients = clients.map_or(5, |count| count.parse().unwrap());
    let Some(mut site) = Site::new("standby", clients, "advert_int 0.1") else {
        return;
    };
    let downloads = Downloads::start(&site.world, clients);
    let call = Call::start(&site.world);
    let place = call.appears_as();
    assert!(place.starts_with(ADDRESS), "{place}");
    downloads.go_on("at first");
    let before = site.sessions(clients);
    assert!(site.has_address(0) && !site.has_address(1));

    // Only the state that the first machine has replicated remains.
    site.kill(0);
    let longest = downloads.go_on("the machine is killed");
    assert!(site.has_address(1));
    eprintln!("the longest pause: {longest:?}");
    assert_eq!(call.appears_as(), place);
    // The keys are from another handshake: a separate session, which only this hub has.
    let after = site.sessions(clients);
    for (before, after) in before.iter().zip(&after) {
        assert!(after.is_u64() && before != after, "{before} {after}");
    }
    let hub = site.world.status("b");
    let known = hub["clients"].as_array().unwrap().iter();
    let known: Vec<_> = known.map(|client| client["session"].clone()).collect();
    assert!(after.iter().all(|session| known.contains(session)), "{known:?}");

    // The machine returns and does not take over.
    site.plug_in(0);
    site.begin(0);
    site.keep_alive(0);
    std::thread::sleep(Duration::from_secs(3));
    downloads.go_on("the machine comes back");
    assert!(site.has_address(1) && !site.has_address(0));
    assert_eq!(site.sessions(clients), after);

    // It takes over on request.
    site.daemons[1].pop().unwrap().signal("-TERM");
    site.wait_for("changed", || site.has_address(0) && !site.has_address(1));
    let longest = downloads.go_on("a planned change");
    eprintln!("the longest pause: {longest:?}");
    assert_eq!(call.appears_as(), place);
    // New connections are known to both machines, too.
    let more = site.world.open("c");
    let server: SocketAddr = SERVER.parse().unwrap();
    let stream = more.run(|| TcpStream::connect_timeout(&server, hawser_testing::GIVE_UP));
    let mut number = [0; 8];
    stream.unwrap().read_exact(&mut number).unwrap();
    downloads.finish();
}
