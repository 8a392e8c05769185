//! What services on the system's message bus know: UPower of the battery, ModemManager of signals.
//!
//! They are asked again when one of them comes, goes, or says that something is different, and
//! every few seconds. Neither is started for this, and nothing of them is changed: ModemManager
//! measures in dBm only while somebody has set a rate for all who use the modem
//! (`mmcli --signal-setup`), which is left to them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{SelectAll, select_all};
use hawser_steer::policy::signal;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use zbus::fdo::ObjectManagerProxy;
use zbus::message::Type;
use zbus::names::OwnedInterfaceName;
use zbus::zvariant::{OwnedObjectPath, OwnedValue};
use zbus::{Connection, MatchRule, MessageStream};

use crate::system_bus::{SystemBus, object, owners, patiently, runs};
use crate::watched::tell_if_new;

/// What they say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) on_battery: Option<bool>,
    /// By interface name. Units: dBm.
    pub(super) signals: BTreeMap<String, i16>,
}

/// Tells what they say whenever it is something else, until nobody listens.
pub(super) async fn follow(bus: SystemBus, tell: watch::Sender<Said>) {
    loop {
        tokio::select! {
            () = tell.closed() => return,
            ended = listen(&bus, &tell) => tracing::trace!(error = ?ended.err(), "no message bus to listen to"),
        }
        tell.send_replace(Said::default());
        sleep(LOOK_EVERY).await;
    }
}

/// Ends when the bus does.
async fn listen(bus: &SystemBus, tell: &watch::Sender<Said>) -> zbus::Result<()> {
    let bus = bus.connect().await?;
    let changes = patiently(changes(&bus)).await?;
    let changed = Notify::new();
    let looks = async {
        loop {
            tell_if_new(tell, look(&bus).await);
            let _ = timeout(LOOK_EVERY, changed.notified()).await;
            // What happens together is looked at once.
            sleep(SETTLED_AFTER).await;
        }
    };
    // Always read: a full queue would hold up the answers behind it.
    let heard = changes.for_each(async |_| changed.notify_one());
    tokio::select! {
        () = looks => {}
        () = heard => {}
        () = bus.closed() => {}
    }
    Ok(())
}

/// Whatever the services say by themselves.
async fn changes(bus: &Connection) -> zbus::Result<SelectAll<MessageStream>> {
    let mut all = Vec::new();
    for service in [UPOWER, MODEMS] {
        let rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender(service)?
            .build();
        all.push(MessageStream::for_match_rule(rule, bus, None).await?);
        all.push(owners(bus, service).await?);
    }
    Ok(select_all(all))
}

async fn look(bus: &Connection) -> Said {
    let (battery, signals) = tokio::join!(patiently(on_battery(bus)), patiently(signals(bus)));
    Said {
        on_battery: said("UPower", battery),
        signals: said("ModemManager", signals),
    }
}

fn said<T: Default>(service: &str, answer: zbus::Result<T>) -> T {
    let log = |error: &zbus::Error| tracing::trace!(service, %error, "says nothing");
    answer.inspect_err(log).unwrap_or_default()
}

/// A machine without a battery is not on it; one with a supply that outlasts a cut may be.
async fn on_battery(bus: &Connection) -> zbus::Result<Option<bool>> {
    if !runs(bus, UPOWER).await? {
        return Ok(None);
    }
    let power = object(bus, (UPOWER, UPOWER), "/org/freedesktop/UPower").await?;
    power.get_property("OnBattery").await.map(Some)
}

/// The signal of each modem, by the interfaces that carry its packets.
async fn signals(bus: &Connection) -> zbus::Result<BTreeMap<String, i16>> {
    let mut found = BTreeMap::new();
    if !runs(bus, MODEMS).await? {
        return Ok(found);
    }
    let root = ObjectManagerProxy::new(bus, MODEMS, "/org/freedesktop/ModemManager1").await?;
    for mut interfaces in root.get_managed_objects().await?.into_values() {
        let Some(strength) = strength(&mut interfaces) else {
            continue;
        };
        let modem = interfaces.get_mut(MODEM);
        let Some(modem) = modem else { continue };
        let ports: Vec<(String, u32)> = take(modem, "Ports").unwrap_or_default();
        let nets = ports.into_iter().filter(|(_, kind)| *kind == NET_PORT);
        let mut names: Vec<_> = nets.map(|(name, _)| name).collect();
        // PPP and multiplexed modems have an interface for each connection.
        let bearers: Vec<OwnedObjectPath> = take(modem, "Bearers").unwrap_or_default();
        for bearer in bearers.into_iter().take(MOST_BEARERS) {
            let bearer = object(bus, (MODEMS, "org.freedesktop.ModemManager1.Bearer"), bearer).await?;
            names.extend(bearer.get_property::<String>("Interface").await.ok());
        }
        found.extend(names.into_iter().map(|name| (name, strength)));
    }
    found.remove("");
    Ok(found)
}

/// In the unit of the modem where somebody has it measured, else from its share of the scale.
fn strength(interfaces: &mut HashMap<OwnedInterfaceName, HashMap<String, OwnedValue>>) -> Option<i16> {
    let measured = interfaces.get_mut("org.freedesktop.ModemManager1.Modem.Signal");
    let measured: Vec<HashMap<String, OwnedValue>> = measured
        .map(|signal| {
            TECHNOLOGIES
                .iter()
                .filter_map(|name| take(signal, name))
                .collect()
        })
        .unwrap_or_default();
    let strongest = |name| {
        let value = |technology: &HashMap<String, OwnedValue>| f64::try_from(technology.get(name)?).ok();
        measured
            .iter()
            .filter_map(value)
            .filter_map(signal::from_dbm)
            .max()
    };
    let share = |modem| {
        // The second says whether it is of the last minute; a signal that stays the same is told
        // once.
        let (share, _): (u32, bool) = take(modem, "SignalQuality")?;
        signal::from_percent(share)
    };
    strongest("rssi")
        .or_else(|| interfaces.get_mut(MODEM).and_then(share))
        .or_else(|| strongest("rsrp"))
}

fn take<T: TryFrom<OwnedValue>>(properties: &mut HashMap<String, OwnedValue>, name: &str) -> Option<T> {
    T::try_from(properties.remove(name)?).ok()
}

const UPOWER: &str = "org.freedesktop.UPower";
const MODEMS: &str = "org.freedesktop.ModemManager1";
const MODEM: &str = "org.freedesktop.ModemManager1.Modem";
const TECHNOLOGIES: [&str; 6] = ["Lte", "Nr5g", "Umts", "Gsm", "Evdo", "Cdma"];
/// MM_MODEM_PORT_TYPE_NET.
const NET_PORT: u32 = 2;
/// More than any modem has connections at once.
const MOST_BEARERS: usize = 8;
/// For what comes without a word.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const SETTLED_AFTER: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use zbus::zvariant::Value;

    use super::*;
    use crate::private_bus::PrivateBus;

    struct Power(bool);

    #[zbus::interface(name = "org.freedesktop.UPower")]
    impl Power {
        #[zbus(property)]
        fn on_battery(&self) -> bool {
            self.0
        }
    }

    struct WrongPower;

    #[zbus::interface(name = "org.freedesktop.UPower")]
    impl WrongPower {
        #[zbus(property)]
        fn on_battery(&self) -> &str {
            "yes"
        }
    }

    struct SilentPower;

    #[zbus::interface(name = "org.freedesktop.UPower")]
    impl SilentPower {
        #[zbus(property)]
        async fn on_battery(&self) -> bool {
            std::future::pending().await
        }
    }

    type Properties = HashMap<String, OwnedValue>;
    type Objects = HashMap<OwnedObjectPath, HashMap<String, Properties>>;

    #[derive(Default)]
    struct Modems(Vec<HashMap<String, Properties>>);

    #[zbus::interface(name = "org.freedesktop.DBus.ObjectManager")]
    impl Modems {
        fn get_managed_objects(&self) -> Objects {
            let named = self.0.iter().enumerate().map(|(number, modem)| {
                let modem = modem.iter().map(|(interface, all)| {
                    let all = all
                        .iter()
                        .map(|(name, value)| (name.clone(), value.try_clone().unwrap()));
                    (interface.clone(), all.collect())
                });
                let path = format!("/org/freedesktop/ModemManager1/Modem/{number}");
                (path.try_into().unwrap(), modem.collect())
            });
            named.collect()
        }

        #[zbus(signal)]
        async fn interfaces_added(emitter: &zbus::object_server::SignalEmitter<'_>) -> zbus::Result<()>;
    }

    struct Bearer;

    #[zbus::interface(name = "org.freedesktop.ModemManager1.Bearer")]
    impl Bearer {
        #[zbus(property)]
        fn interface(&self) -> &str {
            "ppp0"
        }
    }

    fn value<'a>(value: impl Into<Value<'a>>) -> OwnedValue {
        value.into().try_to_owned().unwrap()
    }

    fn properties<const N: usize>(all: [(&str, OwnedValue); N]) -> Properties {
        all.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// A modem with a control port and a port for packets.
    fn modem(port: &str, quality: OwnedValue) -> HashMap<String, Properties> {
        let ports = vec![("cdc-wdm0", 6_u32), (port, NET_PORT)];
        let modem = properties([("Ports", value(ports)), ("SignalQuality", quality)]);
        HashMap::from([(MODEM.to_owned(), modem)])
    }

    /// With what somebody has it measure.
    fn measured<const N: usize>(
        mut modem: HashMap<String, Properties>,
        all: [(&str, OwnedValue); N],
    ) -> HashMap<String, Properties> {
        let signal = "org.freedesktop.ModemManager1.Modem.Signal".to_owned();
        modem.insert(signal, properties(all));
        modem
    }

    fn technology<const N: usize>(all: [(&str, f64); N]) -> OwnedValue {
        value(HashMap::from(
            all.map(|(name, strength)| (name, Value::from(strength))),
        ))
    }

    async fn until(told: &mut watch::Receiver<Said>, what: &str, is_so: impl FnMut(&Said) -> bool) {
        let heard = timeout(Duration::from_secs(60), told.wait_for(is_so)).await;
        drop(heard.unwrap_or_else(|_| panic!("not heard: {what}")).unwrap());
    }

    fn listening(private: &PrivateBus) -> watch::Receiver<Said> {
        let (tell, told) = watch::channel(Said::default());
        hawser_linux::tasks::spawn(follow(private.bus(), tell));
        told
    }

    async fn upower(private: &PrivateBus, power: impl zbus::object_server::Interface) -> Connection {
        let service = private.builder().name(UPOWER).unwrap();
        let service = service.serve_at("/org/freedesktop/UPower", power).unwrap();
        service.build().await.unwrap()
    }

    async fn modem_manager(private: &PrivateBus, modems: Vec<HashMap<String, Properties>>) -> Connection {
        let service = private.builder().name(MODEMS).unwrap();
        let service = service
            .serve_at("/org/freedesktop/ModemManager1", Modems(modems))
            .unwrap()
            .serve_at("/bearer", Bearer)
            .unwrap();
        service.build().await.unwrap()
    }

    #[tokio::test]
    async fn upower_is_heard_when_it_comes_late_changes_its_mind_and_goes() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let mut told = listening(&private);
        for _ in 0..2 {
            let service = upower(&private, Power(true)).await;
            until(&mut told, "on battery", |said| said.on_battery == Some(true)).await;
            let power = service
                .object_server()
                .interface::<_, Power>("/org/freedesktop/UPower")
                .await
                .unwrap();
            power.get_mut().await.0 = false;
            let emitter = power.signal_emitter();
            power.get().await.on_battery_changed(emitter).await.unwrap();
            until(&mut told, "on mains", |said| said.on_battery == Some(false)).await;
            service.close().await.unwrap();
            until(&mut told, "nothing", |said| said.on_battery.is_none()).await;
        }
    }

    #[tokio::test]
    async fn a_modem_is_heard_over_each_interface_that_carries_its_packets() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let mut told = listening(&private);
        let mut bearing = modem("wwan0", value((50_u32, false)));
        let bearers = vec![OwnedObjectPath::try_from("/bearer").unwrap()];
        bearing
            .get_mut(MODEM)
            .unwrap()
            .insert("Bearers".to_owned(), value(bearers));
        let modems = vec![
            bearing,
            // Measured comes before its share of a scale, the strongest before others, and like is
            // compared with like.
            measured(
                modem("wwan1", value((50_u32, true))),
                [
                    ("Lte", technology([("rssi", -60.4), ("rsrp", -90.0)])),
                    ("Umts", technology([("rssi", -75.0)])),
                ],
            ),
            measured(
                modem("wwan2", value((0_u32, true))),
                [("Nr5g", technology([("rsrp", -101.0)]))],
            ),
        ];
        let service = modem_manager(&private, modems).await;
        let names = [("ppp0", -82), ("wwan0", -82), ("wwan1", -60), ("wwan2", -101)];
        let expected = BTreeMap::from(names.map(|(name, strength)| (name.to_owned(), strength)));
        until(&mut told, "all modems", |said| said.signals == expected).await;
        let modems = service
            .object_server()
            .interface::<_, Modems>("/org/freedesktop/ModemManager1")
            .await
            .unwrap();
        modems.get_mut().await.0.truncate(1);
        Modems::interfaces_added(modems.signal_emitter()).await.unwrap();
        until(&mut told, "two modems less", |said| said.signals.len() == 2).await;
        service.close().await.unwrap();
        until(&mut told, "nothing", |said| said.signals.is_empty()).await;
    }

    #[tokio::test]
    async fn nonsense_and_silence_of_one_keep_nothing_from_being_heard_of_another() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let fine = || value((100_u32, true));
        let mut portless = modem("no0", fine());
        portless
            .get_mut(MODEM)
            .unwrap()
            .insert("Ports".to_owned(), value("no1"));
        let nan = [
            ("Lte", technology([("rssi", f64::NAN), ("rsrp", 1e300)])),
            ("Gsm", value("loud")),
        ];
        let modems = vec![
            modem("no2", value((101_u32, true))),
            modem("no3", value("loud")),
            modem("no4", value((0_u32, true))),
            modem("", fine()),
            measured(modem("yes", fine()), nan),
            HashMap::new(),
            portless,
        ];
        let _modems = modem_manager(&private, modems).await;
        let mut told = listening(&private);
        let expected = Said {
            on_battery: None,
            signals: BTreeMap::from([("yes".to_owned(), -51)]),
        };
        let _power = upower(&private, SilentPower).await;
        until(&mut told, "the one good modem", |said| *said == expected).await;
        drop(_power);
        let _power = upower(&private, WrongPower).await;
        sleep(SETTLED_AFTER * 4).await;
        until(&mut told, "the one good modem again", |said| *said == expected).await;
    }

    #[tokio::test]
    async fn a_bus_that_goes_takes_along_what_was_said_and_another_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("unix:path={}", directory.path().join("bus").display());
        let (tell, mut told) = watch::channel(Said::default());
        hawser_linux::tasks::spawn(follow(SystemBus::at(&address), tell));
        for _ in 0..2 {
            let Some(private) = PrivateBus::start_at(&address) else {
                return;
            };
            let service = upower(&private, Power(true)).await;
            until(&mut told, "on battery", |said| said.on_battery == Some(true)).await;
            drop((private, service));
            until(&mut told, "nothing", |said| *said == Said::default()).await;
        }
    }
}
