//! Flows whose programs have declared what they send: heard of the kernel, told to this end of the
//! tunnel, and forgotten when their sockets are gone.

use std::collections::BTreeSet;
use std::io;

use hawser_control::client::driver::Driver;
use hawser_dataplane::{Change, SessionId};
use hawser_linux::bpf::{self, Declarations, SocketOptions};
use hawser_linux::sockets;
use hawser_proto::egress::{Declaration, MOST_DECLARED};
use hawser_proto::pool::allocation::Need;
use hawser_proto::pool::requirement::Requirement;
use hawser_units::{Bytes, Duration, Instant, Rate};
use hawser_wire::control::Message;
use hawser_wire::deadline::{DeclaredFlow, ListedRule};
use hawser_wire::inner::FlowKey;

use super::Client;

/// How often it is looked whether the sockets are still there, while there are any.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long changes are gathered, and how often sockets are looked for in vain: a program that
/// declares in a loop costs no more than this often.
const GATHER: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Declared {
    kernel: Option<Declarations>,
    kept: Vec<Kept>,
    /// Something is to be told since then.
    changed_at: Option<Instant>,
    /// Changed since the hubs were told last.
    untold: BTreeSet<FlowKey>,
    looked_at: Instant,
}

struct Kept {
    declaration: Declaration,
    /// The kernel has told of its socket; where it cannot, nothing follows from its silence.
    is_seen: bool,
}

impl Kept {
    fn is_gone(&self) -> bool {
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

    /// Waits for what a program declares.
    pub(super) async fn next(&mut self) -> io::Result<bpf::Declared> {
        match &mut self.kernel {
            Some(kernel) => kernel.next().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let look = (!self.kept.is_empty()).then(|| self.looked_at + LOOK_EVERY);
        let tell = self.changed_at.map(|at| at + GATHER);
        look.into_iter().chain(tell).min()
    }

    fn handle(&mut self, declared: &bpf::Declared, now: Instant) {
        let declaration = declaration(declared);
        let known = self
            .kept
            .iter()
            .position(|kept| kept.declaration.key == declaration.key);
        match known {
            Some(at) if self.kept[at].declaration == declaration => return,
            Some(at) if declared.rate.bits_per_second == 0 => drop(self.kept.swap_remove(at)),
            Some(at) => self.kept[at].declaration = declaration,
            None if declared.rate.bits_per_second == 0 => return,
            None => {
                if self.kept.len() >= MOST_DECLARED && now >= self.looked_at + GATHER {
                    self.forget_gone(now);
                }
                if self.kept.len() >= MOST_DECLARED {
                    tracing::debug!(from = %declared.from, "not heeded: too many flows are declared");
                    return;
                }
                let is_seen = is_there(&declaration.key).unwrap_or(false);
                self.kept.push(Kept { declaration, is_seen });
            }
        }
        self.untold.insert(declaration.key);
        self.changed_at.get_or_insert(now);
    }

    /// All flows, where they are to be told again.
    fn handle_timeout(&mut self, now: Instant) -> bool {
        if !self.kept.is_empty() && now >= self.looked_at + LOOK_EVERY {
            self.forget_gone(now);
        }
        self.changed_at.take_if(|at| now >= *at + GATHER).is_some()
    }

    /// Forgets flows whose sockets are closed: a question to the kernel for each.
    fn forget_gone(&mut self, now: Instant) {
        self.looked_at = now;
        let before = self.kept.len();
        let gone = self.kept.extract_if(.., |kept| kept.is_gone());
        self.untold.extend(gone.map(|kept| kept.declaration.key));
        if self.kept.len() < before {
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
                tracing::warn!(%error, "programs cannot declare rates any more");
                self.declared.kernel = None;
            }
        }
    }

    /// Tells both sessions what has changed.
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

    /// Tells a hub of all flows, on a new connection, and by which rules packets have deadlines.
    pub(super) fn send_deadlines(&self, driver: &Driver) {
        for rule in ListedRule::list(&self.config.deadline_rules()) {
            driver.tell(Message::Deadline(Box::new(rule)));
        }
        let all = self.declared.kept.iter().map(|kept| &kept.declaration.key);
        self.send_declared(driver, all);
    }

    /// Tells a hub what programs have declared of these flows, for the way back.
    fn send_declared<'a>(&self, driver: &Driver, keys: impl Iterator<Item = &'a FlowKey>) {
        for key in keys {
            let mut kept = self.declared.kept.iter().map(|kept| kept.declaration);
            let known = kept.find(|declaration| declaration.key == *key);
            driver.tell(Message::Declare(Box::new(reverse_declaration(key, known))));
        }
    }

    /// Has this end of a session heed the deadlines of the configuration.
    pub(super) fn order_deadlines(&self, driver: &Driver, session: SessionId) {
        driver.order(Change::SetDeadlines {
            session,
            rules: self.config.deadline_rules(),
            is_from_client: true,
        });
    }

    pub(super) fn order_declared(&self, driver: &Driver, session: SessionId) {
        let flows = self.declared.kept.iter().map(|kept| kept.declaration).collect();
        driver.order(Change::SetDeclared { session, flows });
    }
}

fn is_there(key: &FlowKey) -> io::Result<bool> {
    let from = (key.source, key.source_port).into();
    let to = (key.destination, key.destination_port).into();
    sockets::is_there(key.protocol, from, to)
}

/// Returns the message to a hub about the way back of a flow; it takes back what was declared of
/// one that is not `known`.
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
