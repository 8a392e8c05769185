//! Notifies the stations of an access point of a channel switch, and reports when a station starts
//! to follow one.

use futures_util::StreamExt;
use hawser_radio::striping::announcement::channel_switch;
use hawser_radio::striping::candidates::Tuning;
use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, Nla};
use netlink_packet_generic::GenlMessage;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use wl_nl80211::{
    Nl80211Attr, Nl80211Command, Nl80211Error, Nl80211Message, Nl80211MulticastGroup,
    new_multicast_connection,
};

use super::cards::{Interface, Wireless, WirelessError};

impl Wireless {
    /// Notifies each station of an access point, by a separate action frame, that the access point
    /// moves to another channel after the announced beacons. hostapd moves the access point itself.
    ///
    /// # Errors
    /// The access point does not exist, or its driver cannot send such frames.
    pub async fn notify_stations(
        &self,
        access_point: &Interface,
        to: Tuning,
        beacons: u8,
    ) -> Result<(), WirelessError> {
        for station in self.links(access_point.index).await? {
            let Some(frame) = channel_switch(access_point.address, station.bssid, to, beacons) else {
                return Ok(());
            };
            self.send_frame(access_point.index, frame).await?;
        }
        Ok(())
    }

    /// Sends a management frame on the channel of an interface.
    async fn send_frame(&self, index: u32, frame: Vec<u8>) -> Result<(), WirelessError> {
        let message = Nl80211Message {
            cmd: Nl80211Command::Frame,
            attributes: vec![Nl80211Attr::IfIndex(index), Nl80211Attr::Frame(frame)],
        };
        let mut message = NetlinkMessage::from(GenlMessage::from_payload(message));
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
        let mut handle = self.handle.clone();
        let refused = |source| WirelessError::Refused {
            what: "send a management frame".to_owned(),
            source,
        };
        let mut answers = handle.request(message).await.map_err(refused)?;
        while let Some(answer) = answers.next().await {
            let answer = answer.map_err(|error| refused(Nl80211Error::DecodeFailed(error)))?;
            if let NetlinkPayload::Error(error) = answer.payload
                && error.code.is_some()
            {
                return Err(refused(Nl80211Error::NetlinkError(error)));
            }
        }
        Ok(())
    }
}

/// An interface that starts to change its channel: a station whose access point has announced it,
/// or an access point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The interface's index.
    pub interface: u32,
    /// New channel. Units: MHz.
    pub frequency: u32,
    /// Number of beacons until the switch; the first may have been sent already.
    pub count: u8,
}

/// Reports interfaces that start a channel switch, in separate tasks.
pub struct Switches {
    heard: mpsc::Receiver<Switch>,
    tasks: [JoinHandle<()>; 2],
}

impl Switches {
    /// Starts watching. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`WirelessError::Socket`].
    pub fn watch() -> Result<Self, WirelessError> {
        let (connection, _, mut events) = new_multicast_connection(&[Nl80211MulticastGroup::Mlme])?;
        let (tell, heard) = mpsc::channel(WAITING);
        let reading = crate::tasks::spawn(async move {
            while let Some((message, _)) = events.next().await {
                if let NetlinkPayload::InnerMessage(message) = message.payload
                    && let Ok(message) = message.parse_into_genlmsg::<Nl80211Message>()
                    && let Some(switch) = begun(&message.payload)
                    && tell.send(switch).await.is_err()
                {
                    return;
                }
            }
        });
        let tasks = [crate::tasks::spawn(connection), reading];
        Ok(Self { heard, tasks })
    }

    /// Returns the next switch; `None` if the kernel reports no further ones. Cancel safe.
    pub async fn next(&mut self) -> Option<Switch> {
        self.heard.recv().await
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the others play no part")]
fn begun(message: &Nl80211Message) -> Option<Switch> {
    if message.cmd != Nl80211Command::ChSwitchStartedNotify {
        return None;
    }
    let (mut interface, mut frequency, mut count) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            Nl80211Attr::IfIndex(index) => interface = Some(*index),
            Nl80211Attr::WiphyFreq(mhz) => frequency = Some(*mhz),
            Nl80211Attr::Other(other) if other.kind() == CHANNEL_SWITCH_COUNT => count = number(other),
            _ => {}
        }
    }
    Some(Switch {
        interface: interface?,
        frequency: frequency?,
        count: u8::try_from(count?).unwrap_or(u8::MAX),
    })
}

fn number(attribute: &DefaultNla) -> Option<u32> {
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    value.try_into().ok().map(u32::from_ne_bytes)
}

/// Source: linux/nl80211.h, `NL80211_ATTR_CH_SWITCH_COUNT`.
const CHANNEL_SWITCH_COUNT: u16 = 183;
/// Capacity of the queue of events, of which a few occur per second. Source: our choice; if events
/// wait for longer than several seconds, the switch that they announce is over.
const WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_that_begins_says_where_and_when() {
        let message = |cmd, count: Vec<u8>| Nl80211Message {
            cmd,
            attributes: vec![
                Nl80211Attr::IfIndex(7),
                Nl80211Attr::WiphyFreq(5_200),
                Nl80211Attr::Other(DefaultNla::new(CHANNEL_SWITCH_COUNT, count)),
            ],
        };
        let started = Nl80211Command::ChSwitchStartedNotify;
        let three = 3_u32.to_ne_bytes().to_vec();
        let switch = Switch {
            interface: 7,
            frequency: 5_200,
            count: 3,
        };
        assert_eq!(begun(&message(started, three.clone())), Some(switch));
        assert_eq!(begun(&message(started, vec![3])), None);
        assert_eq!(begun(&message(Nl80211Command::ChSwitchNotify, three)), None);
    }
}
