//! Connection to the system's message bus, shared by all modules that query services.
//!
//! Many machines have no bus, on others it starts late, and a service may answer slowly: no caller
//! waits longer than [`TIMEOUT`].

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

/// Connection that is opened at its first use, and again after it has failed.
#[derive(Debug, Default)]
pub struct SystemBus {
    /// Address of a test's private bus.
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

    /// Opens a separate connection for the caller.
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

    /// Queries a service on the bus over the shared connection.
    ///
    /// # Errors
    /// There is no bus, or the query failed or timed out; the next query then opens a new
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

/// Waits for at most [`TIMEOUT`].
///
/// # Errors
/// Those of the question, or that it took longer.
pub(crate) async fn patiently<T>(question: impl Future<Output = zbus::Result<T>>) -> zbus::Result<T> {
    within(TIMEOUT, question).await
}

/// Waits for at most `limit`.
///
/// # Errors
/// Those of the question, or that it took longer.
pub async fn within<T>(limit: Duration, question: impl Future<Output = zbus::Result<T>>) -> zbus::Result<T> {
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    timeout(limit, question).await.unwrap_or_else(late)
}

/// Returns whether a service is running, without starting it.
///
/// # Errors
/// The bus does not answer.
pub async fn runs(bus: &Connection, name: &'static str) -> zbus::Result<bool> {
    let proxy = DBusProxy::new(bus).await?;
    Ok(proxy.name_has_owner(BusName::try_from(name)?).await?)
}

/// Returns an object of a service. Its properties are queried when needed, because caching them
/// would require a subscription each.
///
/// # Errors
/// The name or path is invalid.
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

/// Returns a stream of changes of a service's owner: its start, its end, or its replacement.
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

/// Timeout of an answer; a service that is slower counts as missing. Source: our choice; services
/// answer within milliseconds, or are being started. libdbus would wait for 25 s
/// (`_DBUS_DEFAULT_TIMEOUT_VALUE`).
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
