//! Status report of a device that gives.

use hawser_proto::pool::giving::UplinkId;
use serde_json::{Value, json};

use super::{Share, Standing, Taker};

impl Share {
    pub(super) fn status(&self) -> Value {
        let config = &self.options.config;
        let ways: Vec<_> = self.ways.keys().collect();
        let left = self.ways.iter().map(|(name, way)| {
            let (queue, [up, down]) = self.relay.left_of(UplinkId(way.number));
            let queue_ms = queue.map(|queue| queue.as_secs_f64() * 1e3);
            json!({ "network": name, "queue_ms": queue_ms, "up_bps": up, "down_bps": down })
        });
        let left: Vec<_> = left.collect();
        let takers: Vec<_> = self.guests.values().map(|taker| self.taker(taker)).collect();
        json!({
            "role": "share",
            "state": "up",
            "code": self.code.to_string(),
            "port": config.port,
            "announced": self.announcement.is_some(),
            "cap_bps": config.cap.map(|speed| speed.0.as_bps()),
            "quota_bytes": config.quota.map(|size| size.0),
            "cost": config.cost,
            "until": config.until.map(|until| until.to_string()),
            "over": self.relay.over().map(|over| format!("{over:?}").to_lowercase()),
            "carried_bytes": self.relay.relayed(),
            "dropped": self.relay.dropped(),
            "uptime_s": self.started.elapsed().as_secs(),
            "ways": ways,
            "mine_first": config.mine_first,
            "left": left,
            "takers": takers,
            "carried_before": self.carried_before,
        })
    }

    fn taker(&self, taker: &Taker) -> Value {
        let guest = &taker.guest;
        let mut value = json!({
            "code": guest.code.to_string(),
            "machine": guest.hello.name_hint,
            "from": guest.from,
            "hubs": guest.hello.hubs,
        });
        match &taker.standing {
            Standing::Waiting(why) => {
                value["state"] = json!("waiting");
                value["why"] = json!(why);
            }
            Standing::Refused(reason) => {
                value["state"] = json!("refused");
                value["why"] = json!(reason.to_string());
            }
            Standing::Taking(taking) => {
                let [up, down] = self.relay.relayed_for(taking.id);
                let before = self.carried_before.get(&taking.name).copied().unwrap_or_default();
                let ways = self.ways.iter().filter_map(|(name, way)| {
                    let link = &taking.offers.get(&way.number)?.link;
                    let [up, down] = link.relayed();
                    let refused = link.refused();
                    Some(json!({ "network": name, "port": link.port, "up_bytes": up, "down_bytes": down, "refused": refused }))
                });
                value["state"] = json!("taking");
                value["name"] = json!(taking.name);
                value["up_bytes"] = json!(before[0] + up);
                value["down_bytes"] = json!(before[1] + down);
                value["ways"] = ways.collect();
            }
        }
        value
    }
}
