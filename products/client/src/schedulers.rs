//! Scheduler of each class: from the configuration, or by a user's temporary request.

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
    /// Returns the chosen schedulers: those requested by a user override the configuration.
    pub(super) fn schedulers(&self) -> Vec<(Class, String)> {
        let mut all = self.config.schedulers.clone();
        for (class, name) in self.wanted_schedulers.selected() {
            *all.of(class) = Some(SchedulerName(name));
        }
        all.selected()
    }

    /// Sets the scheduler of a class at both ends; without a name, that of the configuration.
    ///
    /// # Errors
    /// If there is no such class or no such scheduler.
    pub(super) fn choose_scheduler(&mut self, class: &str, name: Option<String>) -> anyhow::Result<Value> {
        let known = Class::ALL.into_iter().find(|known| known.name() == class);
        let names = Class::ALL.map(Class::name).join(", ");
        let class =
            known.with_context(|| format!("{class}: there is no such class; expected one of {names}"))?;
        let wanted = name.map(|name| {
            let unknown = |()| {
                anyhow!(
                    "{name}: there is no such scheduler; expected one of {}",
                    scheduler::NAMES.join(", ")
                )
            };
            name.parse().map_err(unknown)
        });
        *self.wanted_schedulers.of(class) = wanted.transpose()?;
        let chosen = self.schedulers();
        let own = chosen.into_iter().find(|(own, _)| *own == class);
        let own = own.unwrap_or_else(|| (class, scheduler::default_of(class).to_owned()));
        tracing::info!(class = class.name(), scheduler = own.1, "as requested by a user");
        let said = json!({ "class": class.name(), "scheduler": own.1 });
        self.order_schedulers(&[own]);
        Ok(said)
    }

    /// Sets the schedulers, the congestion controller and the rules of this end of a session.
    pub(super) fn order_placing(&self, driver: &Driver, session: SessionId) {
        for (class, scheduler) in self.schedulers() {
            driver.order(Change::SetScheduler {
                session,
                class,
                scheduler,
            });
        }
        self.order_controller(driver, session);
        let rules = self.config.layer_rules();
        driver.order(Change::SetLayerRules { session, rules });
        self.order_deadlines(driver, session);
        self.order_declared(driver, session);
    }

    /// Sets the congestion controller of this end of a session.
    pub(super) fn order_controller(&self, driver: &Driver, session: SessionId) {
        let controller = self.config.controller.0;
        driver.order(Change::SetController { session, controller });
    }

    /// Sends the schedulers to the hub.
    pub(super) fn send_schedulers(&self, driver: &Driver) {
        for (class, scheduler) in self.schedulers() {
            driver.send(Message::SetScheduler { class, scheduler });
        }
    }

    /// Sends the schedulers to both ends.
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
                driver.send(Message::SetScheduler { class, scheduler });
            }
        }
    }
}
