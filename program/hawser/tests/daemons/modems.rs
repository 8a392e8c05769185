//! Modems of a client, as a stand-in for ModemManager on a private message bus reports them.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use hawser_testing::Daemon;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use zbus::object_server::SignalEmitter;
use zbus::zvariant::{self, OwnedObjectPath, OwnedValue};

use crate::world::{World, active, is_up};

const IMEI: &str = "490154203237518";
const ROOT: &str = "/org/freedesktop/ModemManager1";
const HOME: u32 = 1;
const ROAMING: u32 = 5;

type Properties = HashMap<String, OwnedValue>;

/// A modem with this interface and this state of registration.
struct Modems(String, u32);

#[zbus::interface(name = "org.freedesktop.DBus.ObjectManager")]
impl Modems {
    fn get_managed_objects(&self) -> HashMap<OwnedObjectPath, HashMap<String, Properties>> {
        let ports = vec![("cdc-wdm0", 6_u32), (self.0.as_str(), 2)];
        let modem = properties([("Ports", ports.into()), ("SignalQuality", (50_u32, true).into())]);
        let registration = properties([
            ("Imei", IMEI.into()),
            ("OperatorName", "Sol Mobile".into()),
            ("RegistrationState", self.1.into()),
        ]);
        let interfaces = [("Modem", modem), ("Modem.Modem3gpp", registration)];
        let interfaces = interfaces.map(|(name, all)| (format!("org.freedesktop.ModemManager1.{name}"), all));
        let path = format!("{ROOT}/Modem/0").try_into().unwrap();
        HashMap::from([(path, interfaces.into())])
    }

    #[zbus(signal)]
    async fn interfaces_added(emitter: &SignalEmitter<'_>) -> zbus::Result<()>;
}

fn properties<const N: usize>(all: [(&str, zvariant::Value<'_>); N]) -> Properties {
    all.map(|(name, value)| (name.to_owned(), value.try_to_owned().unwrap()))
        .into()
}

/// Message bus with a service.
struct Bus {
    address: String,
    service: zbus::Connection,
    runtime: Runtime,
    _daemon: Daemon,
}

impl Bus {
    /// Starts both; `None` if there is no program for the bus.
    fn start(modem: Modems) -> Option<Self> {
        let mut command = Command::new("dbus-daemon");
        command.args(["--session", "--nofork", "--print-address"]);
        let Ok(mut daemon) = command.stdout(Stdio::piped()).spawn() else {
            hawser_testing::skip("no dbus-daemon");
            return None;
        };
        let mut address = String::new();
        let mut output = BufReader::new(daemon.stdout.take().unwrap());
        output.read_line(&mut address).unwrap();
        let address = address.trim().to_owned();
        let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
        let service = runtime.block_on(async {
            let builder = zbus::connection::Builder::address(address.as_str()).unwrap();
            let builder = builder.name("org.freedesktop.ModemManager1").unwrap();
            builder.serve_at(ROOT, modem).unwrap().build().await.unwrap()
        });
        Some(Self {
            address,
            service,
            runtime,
            _daemon: Daemon(daemon),
        })
    }

    fn report(&self, modem: Modems) {
        self.runtime.block_on(async {
            let modems = self.service.object_server().interface::<_, Modems>(ROOT).await;
            let modems = modems.unwrap();
            *modems.get_mut().await = modem;
            Modems::interfaces_added(modems.signal_emitter()).await.unwrap();
        });
    }
}

fn network(world: &World, name: &str) -> Value {
    let status = world.status("c");
    let networks = status["networks"].as_array().cloned().unwrap_or_default();
    let mut networks = networks.into_iter();
    networks
        .find(|network| network["name"] == name)
        .unwrap_or_default()
}

#[test]
fn a_modem_is_used_at_home_and_its_settings_follow_it() {
    let Some(world) = World::new("mm") else { return };
    let Some(bus) = Bus::start(Modems("lte".to_owned(), ROAMING)) else {
        return;
    };
    world.init();
    world.configure(
        "c",
        format!(
            "[networks.modem]\ndevice = {{ imei = \"{IMEI}\" }}\nroaming = \"never\"\ncap_up = \"5mbit\"\n"
        ),
    );
    let _hub = world.start("h", &["hub", "run"]);
    let mut client = world.hawser("c", &["up", &world.invite(), "--foreground"]);
    client.env("DBUS_SYSTEM_BUS_ADDRESS", &bus.address);
    let _client = world.run_daemon("c", client);
    world.wait("up", is_up);
    world.wait("lte is not used abroad", |world| {
        let lte = network(world, "lte");
        lte["abroad"] == true && lte["path"].is_null() && lte["device"]["section"] == "modem"
    });
    let notice = world.status("c")["notice"].to_string();
    assert!(notice.contains("lte: its modem roams (Sol Mobile)"), "{notice}");
    assert_eq!(network(&world, "lte")["modem"]["roaming"], true);

    bus.report(Modems("lte".to_owned(), HOME));
    world.wait("lte is used at home", |world| {
        active(world).iter().any(|name| name == "lte") && network(world, "lte")["abroad"] == false
    });
    assert_eq!(network(&world, "lte")["cap_bps"]["up"], 5_000_000);

    let namespace = world.namespace("c");
    for change in ["set lte down", "set lte name usb0", "set usb0 up"] {
        world.ip(&namespace, &format!("link {change}"));
    }
    world.ip(&namespace, "route add default via 10.0.11.1 metric 101");
    bus.report(Modems("usb0".to_owned(), HOME));
    world.wait("the settings are those of usb0", |world| {
        let usb = network(world, "usb0");
        usb["device"]["section"] == "modem" && usb["cap_bps"]["up"] == 5_000_000
    });
    world.wait("usb0 is used", |world| {
        active(world).iter().any(|name| name == "usb0")
    });

    bus.report(Modems("usb0".to_owned(), ROAMING));
    world.wait("usb0 is not used abroad", |world| {
        network(world, "usb0")["abroad"] == true && active(world) == ["fiber"]
    });
}
