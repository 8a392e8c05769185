//! Flows whose programs have declared their traffic: the kernel reports declarations, both ends of
//! the tunnel receive them, and the end of a socket removes its flow.

use std::collections::BTreeSet;
use std::io;

use hawser_control::client::driver::Driver;
use hawser_dataplane::{Change, SessionId};
use hawser_linux::bpf::{self, Declarations, SocketOptions};
use hawser_linux::sockets;
use hawser_proto::egress::{Declaration, MAX_DECLARED};
use hawser_proto::pool::allocation::Need;
use hawser_proto::pool::requirement::Requirement;
use hawser_units::{Bytes, Duration, Instant, Rate};
use hawser_wire::control::Message;
use hawser_wire::deadline::{DeclaredFlow, ListedRule};
use hawser_wire::inner::FlowKey;

use super::Client;

/// Poll interval of the sockets, while there are any. Source: our choice; a socket that was closed
/// without a word reserves rate for as long, and a shorter one reads the kernel's sockets more
/// often.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Time for which changes are collected, and minimum interval of failed searches for sockets: it
/// bounds the cost of a program that declares in a loop. Source: our choice, not noticeable at the
/// start of a call; a longer one delays the reservation.
const GATHER: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Declared {
    kernel: Option<Declarations>,
    stored: Vec<StoredDeclaration>,
    /// Time of the oldest unsent change.
    changed_at: Option<Instant>,
    /// Flows whose declarations have changed since the last report to the hubs.
    untold: BTreeSet<FlowKey>,
    looked_at: Instant,
}

struct StoredDeclaration {
    declaration: Declaration,
    /// Set if the kernel has reported the socket; if the kernel cannot report sockets, a missing
    /// report has no meaning.
    is_seen: bool,
}

impl StoredDeclaration {
    fn is_closed(&self) -> bool {
        self.is_seen && matches!(is_there(&self.declaration.key), Ok(false))
    }
}

impl Declared {
    pub(super) fn listen(options: Option<&mut SocketOptions>) -> Self {
        let kernel = options.map_or(Ok(None), SocketOptions::listen);
        let kernel = kernel.inspect_err(|error| tracing::warn!(%error, "programs cannot declare rates"));
        Self {
            kernel: kernel.unwrap_or(None),
            ..Self::default()
        }
    }

    /// Waits for the next declaration of a program.
    pub(super) async fn next(&mut self) -> io::Result<bpf::Declared> {
        match &mut self.kernel {
            Some(kernel) => kernel.next().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let look = (!self.stored.is_empty()).then(|| self.looked_at + POLL_INTERVAL);
        let tell = self.changed_at.map(|at| at + GATHER);
        look.into_iter().chain(tell).min()
    }

    fn handle(&mut self, declared: &bpf::Declared, now: Instant) {
        let declaration = declaration(declared);
        let known = self
            .stored
            .iter()
            .position(|stored| stored.declaration.key == declaration.key);
        match known {
            Some(at) if self.stored[at].declaration == declaration => return,
            Some(at) if declared.rate.bits_per_second == 0 => drop(self.stored.swap_remove(at)),
            Some(at) => self.stored[at].declaration = declaration,
            None if declared.rate.bits_per_second == 0 => return,
            None => {
                if self.stored.len() >= MAX_DECLARED && now >= self.looked_at + GATHER {
                    self.forget_removed(now);
                }
                if self.stored.len() >= MAX_DECLARED {
                    tracing::debug!(from = %declared.from, "ignored: too many flows are declared");
                    return;
                }
                let is_seen = is_there(&declaration.key).unwrap_or(false);
                self.stored.push(StoredDeclaration { declaration, is_seen });
            }
        }
        self.untold.insert(declaration.key);
        self.changed_at.get_or_insert(now);
    }

    /// Returns whether all declarations must be sent again.
    fn handle_timeout(&mut self, now: Instant) -> bool {
        if !self.stored.is_empty() && now >= self.looked_at + POLL_INTERVAL {
            self.forget_removed(now);
        }
        self.changed_at.take_if(|at| now >= *at + GATHER).is_some()
    }

    /// Removes flows whose sockets are closed, with a query of the kernel for each.
    fn forget_removed(&mut self, now: Instant) {
        self.looked_at = now;
        let before = self.stored.len();
        let gone = self.stored.extract_if(.., |stored| stored.is_closed());
        self.untold.extend(gone.map(|stored| stored.declaration.key));
        if self.stored.len() < before {
            self.changed_at.get_or_insert(now);
        }
    }
}

impl Client {
    pub(super) fn on_declared(&mut self, heard: io::Result<bpf::Declared>) {
        let now = self.now();
        match heard {
            Ok(declared) => self.declared.handle(&declared, now),
            Err(error) => {
                tracing::warn!(%error, "programs can no longer declare rates");
                self.declared.kernel = None;
            }
        }
    }

    /// Sends changed declarations to both sessions.
    pub(super) fn see_to_declared(&mut self) {
        let now = self.now();
        if self.declared.handle_timeout(now) {
            let untold = std::mem::take(&mut self.declared.untold);
            for driver in self.drivers() {
                self.send_declared(driver, untold.iter());
                if let Some(session) = driver.machine.session() {
                    self.order_declared(driver, SessionId(session));
                }
            }
        }
    }

    /// Sends all declarations to a hub on a new connection, and the rules for deadlines.
    pub(super) fn send_deadlines(&self, driver: &Driver) {
        for rule in ListedRule::list(&self.config.deadline_rules()) {
            driver.send(Message::Deadline(Box::new(rule)));
        }
        let all = self.declared.stored.iter().map(|stored| &stored.declaration.key);
        self.send_declared(driver, all);
    }

    /// Sends the declarations of these flows to a hub, for the reverse direction.
    fn send_declared<'a>(&self, driver: &Driver, keys: impl Iterator<Item = &'a FlowKey>) {
        for key in keys {
            let mut stored = self.declared.stored.iter().map(|stored| stored.declaration);
            let known = stored.find(|declaration| declaration.key == *key);
            driver.send(Message::Declare(Box::new(reverse_declaration(key, known))));
        }
    }

    /// Sets the deadlines of the configuration at this end of a session.
    pub(super) fn order_deadlines(&self, driver: &Driver, session: SessionId) {
        driver.order(Change::SetDeadlines {
            session,
            rules: self.config.deadline_rules(),
            is_from_client: true,
        });
    }

    pub(super) fn order_declared(&self, driver: &Driver, session: SessionId) {
        let flows = self
            .declared
            .stored
            .iter()
            .map(|stored| stored.declaration)
            .collect();
        driver.order(Change::SetDeclared { session, flows });
    }
}

fn is_there(key: &FlowKey) -> io::Result<bool> {
    let from = (key.source, key.source_port).into();
    let to = (key.destination, key.destination_port).into();
    sockets::is_there(key.protocol, from, to)
}

/// Returns the message to a hub about the reverse direction of a flow; it withdraws the declaration
/// of a flow that is not `known`.
fn reverse_declaration(key: &FlowKey, known: Option<Declaration>) -> DeclaredFlow {
    let need = known.map(|declaration| declaration.need);
    let wait = need.and_then(|need| need.deadline).unwrap_or_default();
    let bounded = |figure: u128| u32::try_from(figure).unwrap_or(u32::MAX);
    DeclaredFlow {
        protocol: key.protocol,
        from: (key.destination, key.destination_port).into(),
        to: (key.source, key.source_port).into(),
        bits_per_second: need.map_or(0, |need| bounded(need.traffic.rate().as_bps().into())),
        burst_bytes: need.map_or(0, |need| bounded(need.traffic.burst().0.into())),
        longest_wait_ms: bounded(wait.as_millis()),
    }
}

fn declaration(declared: &bpf::Declared) -> Declaration {
    let bpf::Declared {
        protocol,
        from,
        to,
        rate,
    } = *declared;
    let wait = u64::from(rate.longest_wait_ms);
    Declaration {
        key: FlowKey {
            source: from.ip(),
            destination: to.ip(),
            protocol,
            source_port: from.port(),
            destination_port: to.port(),
        },
        need: Need {
            traffic: Requirement::TokenBucket {
                rate: Rate::from_bps(rate.bits_per_second.into()),
                burst: Bytes(rate.burst_bytes.into()),
            },
            deadline: (wait > 0).then(|| Duration::from_millis(wait)),
        },
    }
}
