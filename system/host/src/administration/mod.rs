//! Web page with which devices of a LAN administer their gateway.
//!
//! It is a separate process, started and ended by the daemon: the code that parses untrusted bytes
//! has neither the daemon's memory nor its privileges. It queries the daemon over its control
//! socket, and makes all changes by typed requests there. It listens on LAN addresses only
//! ([`lans`]), by HTTPS with its own certificate ([`certificate`]), accepts only requests for its
//! own names and from its own page ([`sites`]), and only from people who have signed in
//! ([`password`], [`hawser_steer::sign_in`]).
//!
//! | question | file |
//! |---|---|
//! | where it listens | `lans.rs`, `server.rs` |
//! | permission of requests | `api.rs`, `sites.rs`, `password.rs` |
//! | names of devices, the name `hawser.local` | `names.rs` |
//! | events | `events.rs` |
//! | the page itself | `page/` |
//!
//! The page for this machine alone is [`crate::dashboard`].

mod api;
mod certificate;
mod events;
mod lans;
mod lock;
mod names;
mod password;
mod report;
mod server;
mod sites;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hawser_config::atomic_file;
use hawser_linux::clock::now;
use hawser_linux::netlink::named_addresses;
use hawser_linux::process::host_name;
use hawser_steer::sign_in::SignIn;
use serde_json::Value;
use tokio_rustls::TlsAcceptor;

use api::{Page, unix_time};
use events::Events;
use lans::Lans;
use lock::lock;
use names::{Announcement, Names};
use server::{Answers, Leads, Server};
use sites::{Origins, Sites};

pub use certificate::Certificate;
pub use password::Passwords;

use crate::control_socket;

/// Serves the page until the runtime ends.
///
/// # Errors
/// The certificate cannot be read or created.
pub async fn serve(socket: PathBuf, dir: PathBuf) -> anyhow::Result<()> {
    let machine = host_name();
    let sites = Sites::new(&machine);
    let certificate = Certificate::load_or_make(&dir, sites.names())?;
    let tls = TlsAcceptor::from(certificate.server()?);
    let passwords = Passwords::new(&dir);
    if let Some(code) = passwords.code()? {
        // Not in the log: others may read it.
        drop(code);
        tracing::info!(
            "the page has no password yet: `sudo hawser dashboard code` prints the code for the first visit"
        );
    }
    let events_file = dir.join("dashboard.events");
    let page = Arc::new(Page {
        sign_in: Mutex::new(SignIn::default()),
        mark: Mutex::new(passwords.mark()?),
        events: Mutex::new(Events::restored(&std::fs::read(&events_file).unwrap_or_default())),
        names: Names::default(),
        passwords,
        sites: sites.clone(),
        socket: socket.clone(),
        dir,
        machine,
    });
    let answers: Answers = {
        let page = Arc::clone(&page);
        Arc::new(move |asked| Box::pin(Arc::clone(&page).answer(asked)))
    };
    let leads: Leads = Arc::new(move |host, own| {
        let host = host?;
        let host = host.strip_suffix(":80").unwrap_or(host);
        let asked = Origins {
            host: Some(host),
            ..Origins::default()
        };
        sites.check(asked, own, false).ok().map(|()| host.to_owned())
    });
    let mut server = Server::new(tls, answers, leads);
    let mut lans = Lans::default();
    let mut announcement = Announcement::default();
    let (mut said_failed, mut round) = (Vec::new(), 0_u64);
    loop {
        let status = control_socket::status(&socket).await.unwrap_or_default();
        let at = unix_time();
        lock(&page.events).handle_status(&status, at);
        if round % DEVICES_EACH == 0
            && let Ok(devices) = page.devices().await
        {
            page.names.resolve(&devices);
            lock(&page.events).handle_devices(&named(&devices), at);
        }
        let addresses = named_addresses().await.unwrap_or_default();
        let places = lans.handle(&addresses, &status["lans"], now());
        let failed = server.listen(&places);
        if failed != said_failed {
            for reason in &failed {
                tracing::error!(reason, "the page cannot be served: another program uses the port");
            }
            said_failed = failed;
        }
        announcement.announce(server.addresses()).await;
        store(&page, &events_file);
        round += 1;
        tokio::time::sleep(EVERY).await;
    }
}

fn store(page: &Page, file: &Path) {
    let fresh = lock(&page.events).poll_store();
    if let Some(fresh) = fresh
        && let Err(error) = atomic_file::write(file, &fresh, 0o600)
    {
        tracing::warn!(error = format!("{error:#}"), "cannot store events");
    }
}

/// Returns the address and name of each device.
fn named(devices: &Value) -> BTreeMap<String, String> {
    let all = devices["devices"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    all.filter_map(|device| {
        let address = text(&device["address"])?;
        let name = text(&device["name"]).unwrap_or_else(|| address.clone());
        Some((address, name))
    })
    .collect()
}

/// Interval at which addresses and status are read. Source: an address that a LAN has lost is
/// served no longer by the kernel anyway; a new one is there when a person opens the page.
const EVERY: Duration = Duration::from_secs(2);
/// Rounds between readings of the devices, which starts a program. Source: 30 of 2 s are a minute.
const DEVICES_EACH: u64 = 30;
