//! Many clients without traffic in one process, to measure the cost of an idle client for a hub.
//!
//! Scope: every client has its own key, enrols with its own invitation, opens its paths and
//! maintains its control connection like the daemon, with the same machine and the same times.
//!
//! Limitations: no data plane. The hub has keys and paths of every client but never receives a
//! packet on them, so the figures exclude the exchange that keeps a real client's path measured.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hawser_config::identity::{Identity, random};
use hawser_config::invitation::Invitation;
use hawser_proto::session::{ClientAction, ClientSession, SessionConfig};
use hawser_units::{Instant, NetworkId};
use hawser_wire::control::{Hello, Message, VERSION};
use hawser_wire::frame::Format;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::client::{Established, Turn, connect};
use crate::tls;

/// Clients, each with a session.
pub struct IdleClients {
    tasks: JoinSet<anyhow::Result<()>>,
    /// Endpoint whose socket all connections share.
    _endpoint: quinn::Endpoint,
}

impl IdleClients {
    /// Enrols one client for each invitation, each with `paths` paths.
    ///
    /// # Errors
    /// The first client that the hub rejects.
    pub async fn enrol(
        socket: UdpSocket,
        hub: SocketAddr,
        invitations: Vec<Invitation>,
        paths: u32,
    ) -> anyhow::Result<Self> {
        let runtime = Arc::new(quinn::TokioRuntime);
        let endpoint = quinn::Endpoint::new(tls::client_endpoint_config(), None, socket, runtime)?;
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let mut enrolling = JoinSet::new();
        for invitation in invitations {
            let (endpoint, turns) = (endpoint.clone(), Arc::clone(&turns));
            enrolling.spawn(async move {
                let _turn = turns.acquire().await?;
                enrol_one(&endpoint, hub, &invitation).await
            });
        }
        let mut tasks = JoinSet::new();
        while let Some(established) = enrolling.join_next().await {
            tasks.spawn(stay(established??, paths));
        }
        Ok(Self {
            tasks,
            _endpoint: endpoint,
        })
    }

    /// Leaves the clients idle for a time.
    ///
    /// # Errors
    /// The reason why the first client lost the hub.
    pub async fn idle(&mut self, time: Duration) -> anyhow::Result<()> {
        match tokio::time::timeout(time, self.tasks.join_next()).await {
            Err(_) | Ok(None) => Ok(()),
            Ok(Some(ended)) => ended?,
        }
    }
}

async fn enrol_one(
    endpoint: &quinn::Endpoint,
    hub: SocketAddr,
    invitation: &Invitation,
) -> anyhow::Result<Established> {
    let config = tls::client_config(&Identity::generate()?, invitation.hub.key)?;
    let hello = Hello {
        version: VERSION,
        enrol_token: Some(invitation.token.0),
        resume: None,
        prefers: hawser_dataplane::preferred_cipher(),
        format: Format::Ip,
        name_hint: invitation.name.clone(),
    };
    Ok(connect(endpoint, config, hub, hello, &Turn::default()).await?)
}

/// Behaves as an idle client daemon.
async fn stay(established: Established, paths: u32) -> anyhow::Result<()> {
    let Established {
        connection: _connection,
        mut stream,
        welcome,
        ..
    } = established;
    let started = tokio::time::Instant::now();
    let now = || Instant::ZERO + started.elapsed();
    let index = || u32::from_be_bytes(random());
    let mut machine = ClientSession::new(SessionConfig::default());
    (0..paths).for_each(|network| machine.handle_network_added(NetworkId(network), index()));
    machine.handle_control_up(welcome.session, now(), index);
    loop {
        while let Some(action) = machine.poll_action() {
            if matches!(action, ClientAction::Reconnect | ClientAction::Closed(_)) {
                anyhow::bail!("{} lost the hub: {action:?}", welcome.inner_v4.0);
            }
        }
        while let Some(message) = machine.poll_transmit() {
            stream.send(&message).await?;
        }
        let (due, _) = machine
            .poll_timeout()
            .context("a session that is up has a timer")?;
        tokio::select! {
            message = stream.next() => {
                let message: Message = message?;
                machine.handle_message(&message)?;
            }
            () = tokio::time::sleep_until(started + Duration::from_nanos(due.as_nanos())) => {
                machine.handle_timeout(now());
            }
        }
    }
}

/// Maximum number of concurrent handshakes; more would only wait for each other. Source: our
/// choice, since a processor computes one at a time and the rest wait for round trips.
const AT_ONCE: usize = 32;
