//! Motion of the machine, derived from GeoClue's positions.
//!
//! GeoClue is started and queried only while a rule depends on motion and no file states it.
//! Positions are passed to [`Motion`] and nowhere else.
//!
//! GeoClue reports positions to programs that an agent of their user authorises. A daemon's user
//! has no agent, so Hawser acts as its own; GeoClue's configuration decides whether this is
//! accepted (`whitelist`).

use std::time::Duration;
use std::time::Instant as Clock;

use futures_util::{FutureExt, StreamExt};
use hawser_steer::policy::motion::{Fix, Motion};
use hawser_units::Instant;
use tokio::sync::watch;
use tokio::time::sleep;
use zbus::zvariant::OwnedObjectPath;
use zbus::{Connection, Message, MessageStream, Proxy};

use crate::system_bus::{SystemBus, object, owners, patiently, within};
use crate::watched::send_if_changed;

/// Reports whether the machine moves, or that this is unknown, while it is `wanted`; ends when the
/// requester is dropped.
pub(super) async fn follow(
    bus: SystemBus,
    mut wanted: watch::Receiver<bool>,
    tell: watch::Sender<Option<bool>>,
) {
    while wanted.wait_for(|is_wanted| *is_wanted).await.is_ok() {
        let attempts = async {
            loop {
                if let Err(error) = attempt(&bus, &tell).await {
                    tracing::trace!(%error, "no message bus for reports of motion");
                    sleep(POLL_INTERVAL).await;
                }
            }
        };
        tokio::select! {
            () = attempts => {}
            _ = wanted.wait_for(|is_wanted| !is_wanted) => {}
        }
        tell.send_replace(None);
    }
}

/// Listens until an error, and waits until the next attempt is permitted. Its objects on the bus
/// end with it.
///
/// # Errors
/// The bus does not answer.
async fn attempt(bus: &SystemBus, tell: &watch::Sender<Option<bool>>) -> zbus::Result<()> {
    let bus = bus.connect().await?;
    let mut owners = patiently(owners(&bus, GEOCLUE)).await?;
    let ended = converse(&bus, tell).await;
    tell.send_replace(None);
    // Ignore the start of GeoClue that this query has caused.
    while owners.next().now_or_never().flatten().is_some() {}
    sleep(PAUSE).await;
    if let Err(error) = ended {
        tracing::trace!(%error, "no reports of motion");
        tokio::select! {
            () = arrival(&mut owners) => {}
            () = bus.closed() => {}
            () = sleep(ASK_AGAIN_AFTER) => {}
        }
    }
    Ok(())
}

/// Waits until GeoClue is started.
async fn arrival(owners: &mut MessageStream) {
    while let Some(Ok(change)) = owners.next().await {
        let names: zbus::Result<(String, String, String)> = change.body().deserialize();
        if names.is_ok_and(|(_, _, new)| !new.is_empty()) {
            return;
        }
    }
}

/// Reports GeoClue's positions until GeoClue ends, or stops reporting.
///
/// # Errors
/// GeoClue cannot be queried, or refuses.
async fn converse(bus: &Connection, tell: &watch::Sender<Option<bool>>) -> zbus::Result<()> {
    let client = within(START_TIMEOUT, client(bus)).await?;
    let mut updates = patiently(client.receive_signal("LocationUpdated")).await?;
    let mut owners = patiently(owners(bus, GEOCLUE)).await?;
    within(START_TIMEOUT, client.call::<_, _, ()>("Start", &())).await?;
    let (mut motion, started) = (Motion::default(), Clock::now());
    loop {
        tokio::select! {
            update = updates.next() => {
                let Some(update) = update else { return Ok(()) };
                match patiently(fix(bus, &update)).await {
                    Ok(fix) => motion.handle_fix(fix, since(started)),
                    Err(error) => tracing::trace!(%error, "an invalid position"),
                }
            }
            _ = owners.next() => return Ok(()),
            () = sleep(POLL_INTERVAL) => {
                // The user may have switched it off.
                if !patiently(client.get_property::<bool>("Active")).await? {
                    return Ok(());
                }
            }
        }
        send_if_changed(tell, motion.is_moving(since(started)));
    }
}

/// Returns GeoClue's object for Hawser, ready to be started.
async fn client(bus: &Connection) -> zbus::Result<Proxy<'static>> {
    let root = "/org/freedesktop/GeoClue2/Manager";
    let manager = object(bus, (GEOCLUE, "org.freedesktop.GeoClue2.Manager"), root).await?;
    let agent = "/org/freedesktop/GeoClue2/Agent";
    bus.object_server().at(agent, Agent).await?;
    // Usually denied; then another agent may authorise Hawser, or no agent is needed.
    let added = manager.call::<_, _, ()>("AddAgent", &(ID,)).await;
    tracing::trace!(error = ?added.err(), "cannot register as an agent");
    let path: OwnedObjectPath = manager.call("GetClient", &()).await?;
    let client = object(bus, (GEOCLUE, "org.freedesktop.GeoClue2.Client"), path).await?;
    client.set_property("DesktopId", ID).await?;
    client.set_property("DistanceThreshold", CLOSEST).await?;
    client.set_property("RequestedAccuracyLevel", EXACT).await?;
    Ok(client)
}

async fn fix(bus: &Connection, update: &Message) -> zbus::Result<Fix> {
    let (_, new): (OwnedObjectPath, OwnedObjectPath) = update.body().deserialize()?;
    let place = object(bus, (GEOCLUE, "org.freedesktop.GeoClue2.Location"), new).await?;
    Ok(Fix {
        latitude: place.get_property("Latitude").await?,
        longitude: place.get_property("Longitude").await?,
        accuracy: place.get_property("Accuracy").await?,
        speed: place.get_property("Speed").await.unwrap_or(-1.0),
    })
}

/// Agent that authorises Hawser, and no other program of its user.
struct Agent;

#[zbus::interface(name = "org.freedesktop.GeoClue2.Agent")]
impl Agent {
    fn authorize_app(&self, id: &str, level: u32) -> (bool, u32) {
        (id == ID, level)
    }

    #[zbus(property)]
    fn max_accuracy_level(&self) -> u32 {
        EXACT
    }
}

fn since(started: Clock) -> Instant {
    Instant::ZERO + started.elapsed()
}

const GEOCLUE: &str = "org.freedesktop.GeoClue2";
/// Name in GeoClue's configuration.
const ID: &str = "hawser";
/// `GCLUE_ACCURACY_LEVEL_EXACT` of GeoClue: walking is distinguished from sitting by good positions
/// only. Source: `GClueAccuracyLevel` of GeoClue's library.
const EXACT: u32 = 8;
/// Minimum distance of reported positions. Source: `MIN_RADIUS` of
/// `core/steer/src/policy/motion.rs`. Units: m.
const CLOSEST: u32 = 25;
/// Timeout of GeoClue's start. Source: it takes five seconds to refuse, and does not answer at all
/// if no agent is listed.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval between two requests, even where GeoClue appears and disappears all the time.
/// Source: our choice; a position is of no use within that time, and a shorter one loads the bus.
const PAUSE: Duration = Duration::from_secs(2);
/// Pause after a refusal: each request starts GeoClue if possible, which the system logs. A user
/// who permits it restarts GeoClue, which is detected. Source: our choice, six lines in the log
/// each hour; a shorter one fills it, a longer one misses a permission that was given without a
/// restart.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::time::timeout;
    use zbus::fdo;
    use zbus::message::Header;
    use zbus::names::OwnedUniqueName;

    use super::*;
    use crate::private_bus::PrivateBus;

    /// Requests that the imitated service received, and their sender.
    #[derive(Default)]
    struct Asked {
        words: Vec<String>,
        peer: Option<OwnedUniqueName>,
        denies: bool,
        is_switched_off: bool,
    }

    type Log = Arc<Mutex<Asked>>;

    struct Manager(Log);

    #[zbus::interface(name = "org.freedesktop.GeoClue2.Manager")]
    impl Manager {
        fn add_agent(&self, id: &str) -> fdo::Result<()> {
            self.0.lock().unwrap().words.push(format!("agent {id}"));
            Err(fdo::Error::AccessDenied("not listed".to_owned()))
        }

        fn get_client(&self, #[zbus(header)] header: Header<'_>) -> OwnedObjectPath {
            self.0.lock().unwrap().peer = header.sender().map(|name| name.to_owned().into());
            "/client".try_into().unwrap()
        }
    }

    struct Client(Log, String, u32, u32);

    #[zbus::interface(name = "org.freedesktop.GeoClue2.Client")]
    impl Client {
        fn start(&self) -> fdo::Result<()> {
            let mut asked = self.0.lock().unwrap();
            if asked.denies {
                asked.words.push("denied".to_owned());
                return Err(fdo::Error::AccessDenied("no agent".to_owned()));
            }
            asked
                .words
                .push(format!("start {} {} {}", self.1, self.2, self.3));
            Ok(())
        }

        #[zbus(property)]
        fn active(&self) -> bool {
            !self.0.lock().unwrap().is_switched_off
        }

        #[zbus(property)]
        fn desktop_id(&self) -> &str {
            &self.1
        }

        #[zbus(property)]
        fn set_desktop_id(&mut self, id: String) {
            self.1 = id;
        }

        #[zbus(property)]
        fn distance_threshold(&self) -> u32 {
            self.2
        }

        #[zbus(property)]
        fn set_distance_threshold(&mut self, metres: u32) {
            self.2 = metres;
        }

        #[zbus(property)]
        fn requested_accuracy_level(&self) -> u32 {
            self.3
        }

        #[zbus(property)]
        fn set_requested_accuracy_level(&mut self, level: u32) {
            self.3 = level;
        }
    }

    struct Place {
        latitude: f64,
        speed: f64,
    }

    #[zbus::interface(name = "org.freedesktop.GeoClue2.Location")]
    impl Place {
        #[zbus(property)]
        fn latitude(&self) -> f64 {
            self.latitude
        }

        #[zbus(property)]
        fn longitude(&self) -> f64 {
            10.0
        }

        #[zbus(property)]
        fn accuracy(&self) -> f64 {
            10.0
        }

        #[zbus(property)]
        fn speed(&self) -> f64 {
            self.speed
        }
    }

    struct WrongPlace;

    #[zbus::interface(name = "org.freedesktop.GeoClue2.Location")]
    impl WrongPlace {
        #[zbus(property)]
        fn latitude(&self) -> &str {
            "here"
        }
    }

    /// Imitates GeoClue, and logs the requests.
    async fn geoclue(private: &PrivateBus, log: &Log) -> Connection {
        let client = Client(Arc::clone(log), String::new(), 0, 0);
        let place = |latitude, speed| Place { latitude, speed };
        let service = private
            .builder()
            .name(GEOCLUE)
            .unwrap()
            .serve_at("/org/freedesktop/GeoClue2/Manager", Manager(Arc::clone(log)))
            .unwrap()
            .serve_at("/client", client)
            .unwrap()
            .serve_at("/slow", place(50.0, 0.2))
            .unwrap()
            .serve_at("/fast", place(50.0, 20.0))
            .unwrap()
            .serve_at("/impossible", place(f64::NAN, 20.0))
            .unwrap()
            .serve_at("/wrong", WrongPlace)
            .unwrap();
        service.build().await.unwrap()
    }

    async fn update(service: &Connection, place: &str) {
        let places = ["/", place].map(|path| OwnedObjectPath::try_from(path).unwrap());
        let interface = "org.freedesktop.GeoClue2.Client";
        service
            .emit_signal(
                None::<&str>,
                "/client",
                interface,
                "LocationUpdated",
                &(places[0].clone(), places[1].clone()),
            )
            .await
            .unwrap();
    }

    /// Waits until the log ends with the word, and clears it.
    async fn asked(log: &Log, word: &str) {
        let is_said = async {
            while log.lock().unwrap().words.last().is_none_or(|last| last != word) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let said = timeout(Duration::from_secs(60), is_said).await;
        let words = std::mem::take(&mut log.lock().unwrap().words);
        assert!(said.is_ok(), "{word}: {words:?}");
    }

    async fn until(told: &mut watch::Receiver<Option<bool>>, is_moving: Option<bool>) {
        let heard = timeout(Duration::from_secs(60), told.wait_for(|told| *told == is_moving)).await;
        drop(
            heard
                .unwrap_or_else(|_| panic!("not heard: {is_moving:?}"))
                .unwrap(),
        );
    }

    fn listening(
        private: &PrivateBus,
        is_wanted: bool,
    ) -> (watch::Sender<bool>, watch::Receiver<Option<bool>>) {
        let (want, wanted) = watch::channel(is_wanted);
        let (tell, told) = watch::channel(None);
        hawser_linux::tasks::spawn(follow(private.bus(), wanted, tell));
        (want, told)
    }

    const STARTED: &str = "start hawser 25 8";

    #[tokio::test]
    async fn nobody_is_asked_where_the_machine_is_unless_motion_is_wanted() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let log = Log::default();
        let service = geoclue(&private, &log).await;
        let (want, mut told) = listening(&private, false);
        sleep(Duration::from_millis(300)).await;
        assert!(log.lock().unwrap().peer.is_none());
        for _ in 0..2 {
            want.send_replace(true);
            asked(&log, STARTED).await;
            update(&service, "/fast").await;
            until(&mut told, Some(true)).await;
            want.send_replace(false);
            until(&mut told, None).await;
            // Its connection has ended, and GeoClue removes clients whose connections end.
            let peer = log.lock().unwrap().peer.clone().unwrap();
            let bus = fdo::DBusProxy::new(&service).await.unwrap();
            let is_gone = async {
                while bus.name_has_owner((*peer).clone().into()).await.unwrap() {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            timeout(Duration::from_secs(60), is_gone).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_service_that_comes_late_is_asked() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let log = Log::default();
        let (_want, _told) = listening(&private, true);
        sleep(Duration::from_millis(300)).await;
        let _service = geoclue(&private, &log).await;
        asked(&log, STARTED).await;
    }

    #[tokio::test]
    async fn a_position_that_is_none_counts_for_nothing() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let log = Log::default();
        let service = geoclue(&private, &log).await;
        let (_want, mut told) = listening(&private, true);
        asked(&log, STARTED).await;
        for place in ["/wrong", "/nowhere", "/impossible", "/slow"] {
            update(&service, place).await;
        }
        // An object that is not a valid location.
        let interface = "org.freedesktop.GeoClue2.Client";
        service
            .emit_signal(None::<&str>, "/client", interface, "LocationUpdated", &7_u32)
            .await
            .unwrap();
        assert!(timeout(Duration::from_millis(500), told.changed()).await.is_err());
        update(&service, "/fast").await;
        until(&mut told, Some(true)).await;
    }

    #[tokio::test]
    async fn a_service_that_denies_goes_or_is_switched_off_is_asked_again_when_it_is_another() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let log = Log::default();
        log.lock().unwrap().denies = true;
        let service = geoclue(&private, &log).await;
        let (_want, mut told) = listening(&private, true);
        asked(&log, "denied").await;
        assert_eq!(*told.borrow(), None);
        service.close().await.unwrap();
        // Longer than it takes to process the refusal.
        sleep(Duration::from_secs(1)).await;
        log.lock().unwrap().denies = false;
        let service = geoclue(&private, &log).await;
        asked(&log, STARTED).await;
        update(&service, "/fast").await;
        until(&mut told, Some(true)).await;
        service.close().await.unwrap();
        until(&mut told, None).await;
        let service = geoclue(&private, &log).await;
        asked(&log, STARTED).await;
        update(&service, "/fast").await;
        until(&mut told, Some(true)).await;
        log.lock().unwrap().is_switched_off = true;
        until(&mut told, None).await;
    }

    #[tokio::test]
    async fn hawser_speaks_for_itself_alone() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let service = private
            .builder()
            .serve_at("/agent", Agent)
            .unwrap()
            .build()
            .await
            .unwrap();
        let bus = private.builder().build().await.unwrap();
        let interface = "org.freedesktop.GeoClue2.Agent";
        let agent = Proxy::new(&bus, service.unique_name().unwrap(), "/agent", interface)
            .await
            .unwrap();
        for (id, expected) in [(ID, true), ("browser", false)] {
            let answer: (bool, u32) = agent.call("AuthorizeApp", &(id, 5_u32)).await.unwrap();
            assert_eq!(answer, (expected, 5));
        }
    }
}
