//! Telling the stations of an access point that it goes to another channel.

use futures_util::StreamExt;
use hawser_radio::multifacet::announcement::channel_switch;
use hawser_radio::multifacet::candidates::Tuning;
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_generic::GenlMessage;
use wl_nl80211::{Nl80211Attr, Nl80211Command, Nl80211Error, Nl80211Message};

use super::cards::{Interface, Wireless, WirelessError};

impl Wireless {
    /// Tells each station of an access point, by a frame of its own, that the access point goes to
    /// another channel after so many beacons. The access point itself is for hostapd to move.
    ///
    /// # Errors
    /// There is no such access point, or its driver sends no such frames.
    pub async fn tell_stations(
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
