//! The system's message bus, for all that ask services on it.
//!
//! Many machines have no bus, on others it comes late, and a service may say nothing for as long as
//! it likes: nobody waits here for more than [`TIMEOUT`].

use std::io;
use std::time::Duration;

use tokio::time::timeout;
use zbus::connection::Builder;
use zbus::fdo::DBusProxy;
use zbus::message::Type;
use zbus::names::BusName;
use zbus::proxy::CacheProperties;
use zbus::zvariant::ObjectPath;
use zbus::{Connection, MatchRule, MessageStream, Proxy};

/// A connection that is made when it is first needed, and anew after it has failed.
#[derive(Debug, Default)]
pub struct SystemBus {
    /// A bus of a test's own.
    address: Option<String>,
    connection: Option<Connection>,
}

impl SystemBus {
    #[cfg(test)]
    pub(crate) fn at(address: &str) -> Self {
        Self {
            address: Some(address.to_owned()),
            connection: None,
        }
    }

    /// A connection of somebody's own.
    ///
    /// # Errors
    /// There is no bus, or it does not answer.
    pub async fn connect(&self) -> zbus::Result<Connection> {
        let builder = match &self.address {
            Some(address) => Builder::address(address.as_str())?,
            None => Builder::system()?,
        };
        patiently(builder.build()).await
    }

    /// Asks somebody on the bus, over the one connection of this.
    ///
    /// # Errors
    /// There is no bus, or the question failed or took too long; then the next one has another
    /// connection.
    pub async fn ask<T, F>(&mut self, question: impl FnOnce(Connection) -> F) -> zbus::Result<T>
    where
        F: Future<Output = zbus::Result<T>>,
    {
        let known = self.connection.take().filter(|bus| !bus.is_closed());
        let bus = match known {
            Some(bus) => bus,
            None => self.connect().await?,
        };
        let answer = patiently(question(bus.clone())).await?;
        self.connection = Some(bus);
        Ok(answer)
    }
}

/// Waits no longer than [`TIMEOUT`].
///
/// # Errors
/// Those of the question, or that it took longer.
pub(crate) async fn patiently<T>(question: impl Future<Output = zbus::Result<T>>) -> zbus::Result<T> {
    within(TIMEOUT, question).await
}

/// Waits no longer than `limit`.
///
/// # Errors
/// Those of the question, or that it took longer.
pub async fn within<T>(limit: Duration, question: impl Future<Output = zbus::Result<T>>) -> zbus::Result<T> {
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    timeout(limit, question).await.unwrap_or_else(late)
}

/// Whether a service is there; one that is not is not started by this question.
///
/// # Errors
/// The bus does not answer.
pub async fn runs(bus: &Connection, name: &'static str) -> zbus::Result<bool> {
    let proxy = DBusProxy::new(bus).await?;
    Ok(proxy.name_has_owner(BusName::try_from(name)?).await?)
}

/// An object of a service, whose properties are asked for whenever they are needed: following them
/// would be a subscription each.
///
/// # Errors
/// A name or path that no bus permits.
pub(crate) async fn object<'a>(
    bus: &Connection,
    (service, interface): (&'static str, &'static str),
    path: impl TryInto<ObjectPath<'a>, Error: Into<zbus::Error>>,
) -> zbus::Result<Proxy<'a>> {
    let builder = zbus::proxy::Builder::new(bus)
        .destination(service)?
        .path(path)?
        .interface(interface)?;
    builder.cache_properties(CacheProperties::No).build().await
}

/// Tells whenever a service comes, goes, or is another one.
///
/// # Errors
/// The bus does not answer.
pub(crate) async fn owners(bus: &Connection, name: &'static str) -> zbus::Result<MessageStream> {
    let rule = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender("org.freedesktop.DBus")?
        .member("NameOwnerChanged")?
        .arg(0, name)?
        .build();
    MessageStream::for_match_rule(rule, bus, None).await
}

/// A service that is too slow for this is as good as none.
const TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_bus::PrivateBus;

    #[tokio::test]
    async fn another_bus_in_the_place_of_one_that_went_is_asked() {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("unix:path={}", directory.path().join("bus").display());
        let mut bus = SystemBus::at(&address);
        let mut ask = async || {
            bus.ask(|bus| async move { runs(&bus, "org.example.Nobody").await })
                .await
        };
        assert!(ask().await.is_err());
        for _ in 0..2 {
            let Some(private) = PrivateBus::start_at(&address) else {
                return;
            };
            assert_eq!(ask().await.ok(), Some(false));
            drop(private);
            assert!(ask().await.is_err());
        }
    }
}
