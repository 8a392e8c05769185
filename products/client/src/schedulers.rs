//! Which scheduler places the packets of each class: as the configuration says, or as a user wants
//! for a while.

use anyhow::{Context, anyhow};
use hawser_config::SchedulerName;
use hawser_control::client::driver::Driver;
use hawser_dataplane::{Change, SessionId};
use hawser_proto::scheduler;
use hawser_wire::control::Message;
use hawser_wire::data::Class;
use serde_json::{Value, json};

use super::Client;

impl Client {
    /// The schedulers that somebody has chosen: `wanted` by a user, in place of the configuration.
    pub(super) fn schedulers(&self) -> Vec<(Class, String)> {
        let mut all = self.config.schedulers.clone();
        for (class, name) in self.wanted_schedulers.chosen() {
            *all.of(class) = Some(SchedulerName(name));
        }
        all.chosen()
    }

    /// Has both ends place the packets of a class by this scheduler, or by what the configuration
    /// says where none is named.
    ///
    /// # Errors
    /// There is no such class, or no such scheduler.
    pub(super) fn choose_scheduler(&mut self, class: &str, name: Option<String>) -> anyhow::Result<Value> {
        let known = Class::ALL.into_iter().find(|known| known.name() == class);
        let names = Class::ALL.map(Class::name).join(", ");
        let class = known.with_context(|| format!("{class}: there is no such class; there are: {names}"))?;
        let wanted = name.map(|name| {
            let unknown = |()| anyhow!("{name}: no scheduler; there are: {}", scheduler::NAMES.join(", "));
            name.parse().map_err(unknown)
        });
        *self.wanted_schedulers.of(class) = wanted.transpose()?;
        let chosen = self.schedulers();
        let own = chosen.into_iter().find(|(own, _)| *own == class);
        let own = own.unwrap_or_else(|| (class, scheduler::default_of(class).to_owned()));
        tracing::info!(class = class.name(), scheduler = own.1, "as a user wants");
        let said = json!({ "class": class.name(), "scheduler": own.1 });
        self.order_schedulers(&[own]);
        Ok(said)
    }

    /// Has this end of a session place packets as is wanted.
    pub(super) fn order_placing(&self, driver: &Driver, session: SessionId) {
        for (class, scheduler) in self.schedulers() {
            driver.order(Change::SetScheduler {
                session,
                class,
                scheduler,
            });
        }
        let rules = self.config.layer_rules();
        driver.order(Change::SetLayerRules { session, rules });
        self.order_deadlines(driver, session);
        self.order_declared(driver, session);
    }

    /// Tells the hub by what it places packets.
    pub(super) fn send_schedulers(&self, driver: &Driver) {
        for (class, scheduler) in self.schedulers() {
            driver.tell(Message::SetScheduler { class, scheduler });
        }
    }

    /// Tells both ends.
    pub(super) fn order_schedulers(&self, schedulers: &[(Class, String)]) {
        for driver in self.drivers() {
            let Some(session) = driver.machine.session().map(SessionId) else {
                continue;
            };
            for (class, scheduler) in schedulers.iter().cloned() {
                driver.order(Change::SetScheduler {
                    session,
                    class,
                    scheduler: scheduler.clone(),
                });
                driver.tell(Message::SetScheduler { class, scheduler });
            }
        }
    }
}
