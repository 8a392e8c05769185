//! Facts from services on the system's message bus: UPower's battery state and ModemManager's
//! modems.
//!
//! They are queried when one of them appears, disappears, or signals a change, and every few
//! seconds. Neither is started for this, and no setting is changed: ModemManager measures in dBm
//! only after an operator has set a rate for all users of the modem (`mmcli --signal-setup`).

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{SelectAll, select_all};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use zbus::message::Type;
use zbus::{Connection, MatchRule, MessageStream};

use super::modems::{MODEMS, Modem, modems};
use crate::system_bus::{SystemBus, object, owners, patiently, runs};
use crate::watched::send_if_changed;

/// Facts of the services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) on_battery: Option<bool>,
    /// Modems by the interfaces that carry their packets.
    pub(super) modems: BTreeMap<String, Modem>,
}

impl Said {
    /// Returns the signals by interface name. Units: dBm.
    pub(super) fn signals(&self) -> impl Iterator<Item = (String, i16)> {
        let modems = self.modems.iter();
        modems.filter_map(|(name, modem)| Some((name.clone(), modem.signal?)))
    }
}

/// Reports of the services, which end with the last of these values.
#[derive(Clone, Debug)]
pub struct Services {
    said: watch::Receiver<Said>,
}

impl Services {
    /// Starts listening to the services on `bus`; must be called within a tokio runtime.
    #[must_use]
    pub fn start(bus: SystemBus) -> Self {
        let (tell, said) = watch::channel(Said::default());
        hawser_linux::tasks::spawn(follow(bus, tell));
        Self { said }
    }

    #[cfg(test)]
    pub(super) fn of(said: watch::Receiver<Said>) -> Self {
        Self { said }
    }

    pub(super) fn said(&self) -> watch::Ref<'_, Said> {
        self.said.borrow()
    }

    /// Returns the present modems, by the interfaces that carry their packets.
    #[must_use]
    pub fn modems(&self) -> BTreeMap<String, Modem> {
        self.said.borrow().modems.clone()
    }

    /// Waits until a report changes. Cancel safe.
    pub async fn changed(&mut self) {
        if self.said.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Reports the facts after each change, until the receiver is dropped.
pub(super) async fn follow(bus: SystemBus, tell: watch::Sender<Said>) {
    loop {
        tokio::select! {
            () = tell.closed() => return,
            ended = listen(&bus, &tell) => tracing::trace!(error = ?ended.err(), "no message bus"),
        }
        tell.send_replace(Said::default());
        sleep(POLL_INTERVAL).await;
    }
}

/// Reports the facts until the connection to the bus ends.
async fn listen(bus: &SystemBus, tell: &watch::Sender<Said>) -> zbus::Result<()> {
    let bus = bus.connect().await?;
    let changes = patiently(changes(&bus)).await?;
    let changed = Notify::new();
    let looks = async {
        loop {
            send_if_changed(tell, sample(&bus).await);
            let _ = timeout(POLL_INTERVAL, changed.notified()).await;
            // Simultaneous changes are processed at once.
            sleep(SETTLED_AFTER).await;
        }
    };
    // Signals are always read, because a full queue would delay the answers after them.
    let heard = changes.for_each(async |_| changed.notify_one());
    tokio::select! {
        () = looks => {}
        () = heard => {}
        () = bus.closed() => {}
    }
    Ok(())
}

/// Returns the stream of the services' change signals.
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

async fn sample(bus: &Connection) -> Said {
    let (battery, modems) = tokio::join!(patiently(on_battery(bus)), patiently(modems(bus)));
    Said {
        on_battery: said("UPower", battery),
        modems: said("ModemManager", modems),
    }
}

fn said<T: Default>(service: &str, answer: zbus::Result<T>) -> T {
    let log = |error: &zbus::Error| tracing::trace!(service, %error, "says nothing");
    answer.inspect_err(log).unwrap_or_default()
}

/// Returns whether the machine runs on battery: false without a battery; a machine with an
/// uninterruptible power supply may run on it.
async fn on_battery(bus: &Connection) -> zbus::Result<Option<bool>> {
    if !runs(bus, UPOWER).await? {
        return Ok(None);
    }
    let power = object(bus, (UPOWER, UPOWER), "/org/freedesktop/UPower").await?;
    power.get_property("OnBattery").await.map(Some)
}

const UPOWER: &str = "org.freedesktop.UPower";
/// Poll interval of values that change without a signal. Source: our choice; a shorter one wakes an
/// idle machine more often, a longer one shows an old signal.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Time within which simultaneous changes are collected. Source: our choice; a shorter one reads
/// all services again for each of them.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use zbus::zvariant::{OwnedObjectPath, OwnedValue, Value};

    use super::super::modems::{MODEM, MODEM_3GPP, NET_PORT};
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

    /// Adds values that the modem measures because another program has requested it.
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

    fn signals(said: &Said) -> BTreeMap<String, i16> {
        said.signals().collect()
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
            // Measured values take precedence over percentages, the strongest is used, and only
            // values of the same kind are compared.
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
        until(&mut told, "all modems", |said| signals(said) == expected).await;
        let modems = service
            .object_server()
            .interface::<_, Modems>("/org/freedesktop/ModemManager1")
            .await
            .unwrap();
        modems.get_mut().await.0.truncate(1);
        Modems::interfaces_added(modems.signal_emitter()).await.unwrap();
        until(&mut told, "two modems less", |said| said.modems.len() == 2).await;
        service.close().await.unwrap();
        until(&mut told, "nothing", |said| said.modems.is_empty()).await;
    }

    /// Adds the registration in a network of 3GPP.
    fn registered(mut modem: HashMap<String, Properties>, state: OwnedValue) -> HashMap<String, Properties> {
        let registration = properties([
            ("RegistrationState", state),
            ("OperatorName", value("Sol\u{1b}[2J Mobile")),
            ("Imei", value("490154203237518")),
        ]);
        modem.insert(MODEM_3GPP.to_owned(), registration);
        let technologies = value(1_u32 << 14 | 1 << 15);
        let own = modem.get_mut(MODEM).unwrap();
        own.insert("AccessTechnologies".to_owned(), technologies);
        modem
    }

    #[tokio::test]
    async fn a_modem_that_goes_abroad_and_returns_is_heard() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let mut told = listening(&private);
        let quality = || value((50_u32, true));
        // Home, roaming, searching, roaming for messages only, and nonsense.
        let states = [1_u32, 5, 2, 7].map(value).into_iter().chain([value("far")]);
        let modems = states.enumerate();
        let modems =
            modems.map(|(number, state)| registered(modem(&format!("wwan{number}"), quality()), state));
        let service = modem_manager(&private, modems.collect()).await;
        let roaming =
            |said: &Said| -> Vec<_> { said.modems.values().map(|modem| modem.is_roaming).collect() };
        let expected = [Some(false), Some(true), None, Some(true), None];
        until(&mut told, "all states", |said| roaming(said) == expected).await;
        let first = told.borrow().modems["wwan0"].clone();
        assert_eq!(first.imei.as_deref(), Some("490154203237518"));
        assert_eq!(
            (first.operator.as_deref(), first.technology),
            (Some("Sol[2J Mobile"), Some("5G"))
        );
        let modems = service
            .object_server()
            .interface::<_, Modems>("/org/freedesktop/ModemManager1")
            .await
            .unwrap();
        modems.get_mut().await.0 = vec![registered(modem("wwan1", quality()), value(1_u32))];
        Modems::interfaces_added(modems.signal_emitter()).await.unwrap();
        until(&mut told, "home again", |said| roaming(said) == [Some(false)]).await;
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
        let is_one = |said: &Said| {
            let expected = BTreeMap::from([("yes".to_owned(), -51)]);
            said.on_battery.is_none() && signals(said) == expected
        };
        let _power = upower(&private, SilentPower).await;
        until(&mut told, "the one good modem", is_one).await;
        drop(_power);
        let _power = upower(&private, WrongPower).await;
        sleep(SETTLED_AFTER * 4).await;
        until(&mut told, "the one good modem again", is_one).await;
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
