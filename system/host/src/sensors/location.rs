//! Whether the machine is carried about, by the positions of GeoClue.
//!
//! GeoClue is asked, and started, while a rule wants to know and no file says it: at other times
//! nobody has to know where the machine is. Positions go into [`Motion`] and nowhere else.
//!
//! GeoClue tells positions to programs for which an agent of their user speaks. A daemon's user has
//! none, so Hawser is its own; whether that counts is said in GeoClue's configuration alone
//! (`whitelist`).

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
use crate::watched::tell_if_new;

/// Tells whether it moves, or that nobody knows, while that is `wanted`; until nobody can want it
/// any more.
pub(super) async fn follow(
    bus: SystemBus,
    mut wanted: watch::Receiver<bool>,
    tell: watch::Sender<Option<bool>>,
) {
    while wanted.wait_for(|is_wanted| *is_wanted).await.is_ok() {
        let attempts = async {
            loop {
                if let Err(error) = attempt(&bus, &tell).await {
                    tracing::trace!(%error, "no message bus to ask for motion");
                    sleep(LOOK_EVERY).await;
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

/// Listens for as long as it goes well, and waits until it may do so again. What it has on the bus
/// ends with it.
///
/// # Errors
/// The bus does not answer.
async fn attempt(bus: &SystemBus, tell: &watch::Sender<Option<bool>>) -> zbus::Result<()> {
    let bus = bus.connect().await?;
    let mut owners = patiently(owners(&bus, GEOCLUE)).await?;
    let ended = converse(&bus, tell).await;
    tell.send_replace(None);
    // What this question has started is no news.
    while owners.next().now_or_never().flatten().is_some() {}
    sleep(PAUSE).await;
    if let Err(error) = ended {
        tracing::trace!(%error, "nobody tells of motion");
        tokio::select! {
            () = arrival(&mut owners) => {}
            () = bus.closed() => {}
            () = sleep(ASK_AGAIN_AFTER) => {}
        }
    }
    Ok(())
}

/// Waits until somebody starts GeoClue.
async fn arrival(owners: &mut MessageStream) {
    while let Some(Ok(change)) = owners.next().await {
        let names: zbus::Result<(String, String, String)> = change.body().deserialize();
        if names.is_ok_and(|(_, _, new)| !new.is_empty()) {
            return;
        }
    }
}

/// Ends when GeoClue does, or does not tell any more.
///
/// # Errors
/// It cannot be asked, or says no.
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
                    Err(error) => tracing::trace!(%error, "a position that is none"),
                }
            }
            _ = owners.next() => return Ok(()),
            () = sleep(LOOK_EVERY) => {
                // The user may have switched it off.
                if !patiently(client.get_property::<bool>("Active")).await? {
                    return Ok(());
                }
            }
        }
        tell_if_new(tell, motion.is_moving(since(started)));
    }
}

/// Hawser as GeoClue knows it, ready to be started.
async fn client(bus: &Connection) -> zbus::Result<Proxy<'static>> {
    let root = "/org/freedesktop/GeoClue2/Manager";
    let manager = object(bus, (GEOCLUE, "org.freedesktop.GeoClue2.Manager"), root).await?;
    let agent = "/org/freedesktop/GeoClue2/Agent";
    bus.object_server().at(agent, Agent).await?;
    // Most often it may not; others may speak for it, or nobody has to.
    let added = manager.call::<_, _, ()>("AddAgent", &(ID,)).await;
    tracing::trace!(error = ?added.err(), "asked to be an agent of its own");
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

/// Speaks for Hawser, and for nothing else that its user runs.
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
/// What GeoClue's configuration names.
const ID: &str = "hawser";
/// GCLUE_ACCURACY_LEVEL_EXACT: who walks is told from who sits by good positions only.
const EXACT: u32 = 8;
/// Nothing closer together is apart. Units: m.
const CLOSEST: u32 = 25;
/// GeoClue takes five seconds to say no, and where no agent is listed, says nothing at all.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Between two questions, even where GeoClue comes and goes all the time.
const PAUSE: Duration = Duration::from_secs(2);
/// Each question starts GeoClue where it can be started, which the system logs; whoever permits it
/// restarts it, which is heard.
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

    /// What the imitated service was asked, and by whom.
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

    /// GeoClue, with a log of what it is asked.
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

    /// Waits until the log has the word at its end, and empties it.
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
            // What it had there is gone, and GeoClue forgets clients that go.
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
        // Something that does not even name a place.
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
        // Longer than it takes to see that the answer was no.
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
