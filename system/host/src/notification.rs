//! Desktop notifications: a network requires a login, or the hub has revoked this machine's access.
//!
//! logind lists the users with a graphical session; `notify-send` runs with the privileges of that
//! user. If systemd is running, it starts the program, because a daemon that is confined by its
//! unit can neither change its user nor access `/run/user`. The notification contains no text from
//! a network, no shell is involved, and without a session or the program nothing happens.

use std::path::Path;
use std::process::{Command, Stdio};

use tokio::task::spawn_blocking;
use zbus::Connection;
use zbus::zvariant::OwnedObjectPath;

use crate::program::{as_user, find};
use crate::system_bus::{SystemBus, object};

/// Notifies users with a graphical session that the network requires a login.
pub(crate) async fn ask_for_login(network: String) {
    let body = format!("sudo hawser login {network}");
    notify(format!("{network} requires a login"), body).await;
}

/// Shows a notification to users with a graphical session: one line, and the remedy.
pub async fn notify(summary: String, body: String) {
    let Some(program) = find("notify-send") else {
        return;
    };
    let starts = Path::new("/run/systemd/system").exists();
    notify_by(&mut SystemBus::default(), &program, starts, (&summary, &body)).await;
}

async fn notify_by(bus: &mut SystemBus, program: &Path, has_systemd: bool, text: (&str, &str)) {
    let users = match bus.ask(|bus| async move { users(&bus).await }).await {
        Ok(users) => users,
        Err(error) => {
            tracing::debug!(%error, "cannot determine the users with a screen");
            return;
        }
    };
    for user in users {
        let words = words(user, program, has_systemd, text);
        let told = spawn_blocking(move || {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).current_dir("/");
            let nothing = Stdio::null;
            command.stdin(nothing()).stdout(nothing()).stderr(nothing());
            command.status()
        });
        let told = told.await;
        tracing::debug!(user = user.id, ?told, "a notification");
    }
}

/// User with a graphical session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct User {
    id: u32,
    group: u32,
}

/// Returns the users with a graphical session, according to logind.
async fn users(bus: &Connection) -> zbus::Result<Vec<User>> {
    let interface = |name| ("org.freedesktop.login1", name);
    let manager = object(bus, interface("org.freedesktop.login1.Manager"), LOGIND).await?;
    let all: Vec<(u32, String, OwnedObjectPath)> = manager.call("ListUsers", &()).await?;
    let mut found = Vec::new();
    for (id, _, path) in all.into_iter().take(MAX_USERS) {
        let user = object(bus, interface("org.freedesktop.login1.User"), path.as_str()).await?;
        // Of a user's sessions, a graphical one is preferred.
        let (session, path): (String, OwnedObjectPath) = user.get_property("Display").await?;
        if session.is_empty() {
            continue;
        }
        let session = object(bus, interface("org.freedesktop.login1.Session"), path.as_str()).await?;
        let kind: String = session.get_property("Type").await?;
        if ["x11", "wayland", "mir"].contains(&kind.as_str()) {
            let group = user.get_property("GID").await?;
            found.push(User { id, group });
        }
    }
    Ok(found)
}

/// Returns the command that shows the notification to a user.
fn words(user: User, program: &Path, has_systemd: bool, (summary, body): (&str, &str)) -> Vec<String> {
    let bus = format!("DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/{}/bus", user.id);
    let start = if has_systemd {
        let mut words = ["systemd-run", "--quiet", "--collect", "--no-block"]
            .map(str::to_owned)
            .to_vec();
        words.extend([
            format!("--uid={}", user.id),
            format!("--setenv={bus}"),
            "--".to_owned(),
        ]);
        words
    } else {
        as_user(user.id, user.group, [bus])
    };
    let body = body
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let said = [
        program.display().to_string(),
        "--app-name=Hawser".to_owned(),
        "--icon=network-wireless".to_owned(),
        "--".to_owned(),
        summary.to_owned(),
        body,
    ];
    // systemd expands variables after this character.
    let plain = |word: String| {
        if has_systemd {
            word.replace('$', "$$")
        } else {
            word
        }
    };
    [start, said.map(plain).to_vec()].concat()
}

const LOGIND: &str = "/org/freedesktop/login1";
/// Maximum number of graphical sessions. Source: our choice; each costs several calls of D-Bus, and
/// machines rarely have more than two.
const MAX_USERS: usize = 8;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::private_bus::PrivateBus;

    struct Manager;

    #[zbus::interface(name = "org.freedesktop.login1.Manager")]
    impl Manager {
        fn list_users(&self) -> Vec<(u32, String, OwnedObjectPath)> {
            [(65_534, "/at_screen"), (1, "/on_console"), (2, "/lingers")]
                .map(|(id, path)| (id, "name".to_owned(), path.try_into().unwrap()))
                .into()
        }
    }

    struct LoggedIn(&'static str);

    #[zbus::interface(name = "org.freedesktop.login1.User")]
    impl LoggedIn {
        #[zbus(property)]
        fn display(&self) -> (String, OwnedObjectPath) {
            let path = if self.0.is_empty() { "/" } else { self.0 };
            (self.0.to_owned(), path.try_into().unwrap())
        }

        #[zbus(property, name = "GID")]
        fn gid(&self) -> u32 {
            65_534
        }
    }

    struct Session(&'static str);

    #[zbus::interface(name = "org.freedesktop.login1.Session")]
    impl Session {
        #[zbus(property)]
        fn type_(&self) -> String {
            self.0.to_owned()
        }
    }

    /// Starts a bus with a logind that has three users, one of them with a graphical session.
    async fn logind(private: &PrivateBus) -> Connection {
        let service = private
            .builder()
            .name("org.freedesktop.login1")
            .unwrap()
            .serve_at(LOGIND, Manager)
            .unwrap();
        let mut service = service.serve_at("/lingers", LoggedIn("")).unwrap();
        for (user, session, kind) in [
            ("/at_screen", "/screen", "wayland"),
            ("/on_console", "/console", "tty"),
        ] {
            service = service.serve_at(user, LoggedIn(session)).unwrap();
            service = service.serve_at(session, Session(kind)).unwrap();
        }
        service.build().await.unwrap()
    }

    #[tokio::test]
    async fn those_at_a_screen_are_told_with_their_own_rights() {
        if !hawser_testing::require(hawser_linux::process::is_root(), "needs root") {
            return;
        }
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let _service = logind(&private).await;
        let place = tempfile::tempdir().unwrap();
        let (program, said) = (place.path().join("notify-send"), place.path().join("said"));
        let script = format!(
            "#!/bin/sh\n(id -u; echo \"$DBUS_SESSION_BUS_ADDRESS\"; printf '%s\\n' \"$@\") >> {}\n",
            said.display()
        );
        std::fs::write(&program, script).unwrap();
        for (path, mode) in [(place.path(), 0o777), (program.as_path(), 0o755)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let text = ("$(id)<b> requires a login", "sudo hawser login $(id)<b>");
        notify_by(&mut private.bus(), &program, false, text).await;
        let said = std::fs::read_to_string(said).unwrap();
        let expected = "65534\nunix:path=/run/user/65534/bus\n--app-name=Hawser\n--icon=network-wireless\n--\n\
                        $(id)<b> requires a login\nsudo hawser login $(id)&lt;b&gt;\n";
        assert_eq!(said, expected);
    }

    #[test]
    fn systemd_starts_it_where_it_runs_and_expands_nothing() {
        let user = User { id: 1000, group: 100 };
        let text = ("w$0 requires a login", "sudo hawser login w$0");
        let words = words(user, Path::new("/usr/bin/notify-send"), true, text);
        assert_eq!(
            words,
            [
                "systemd-run",
                "--quiet",
                "--collect",
                "--no-block",
                "--uid=1000",
                "--setenv=DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus",
                "--",
                "/usr/bin/notify-send",
                "--app-name=Hawser",
                "--icon=network-wireless",
                "--",
                "w$$0 requires a login",
                "sudo hawser login w$$0",
            ]
        );
    }
}
