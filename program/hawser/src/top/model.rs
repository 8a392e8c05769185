//! Model of `hawser top`: the last answers of the daemon, and the rates before them.

use std::collections::{BTreeMap, VecDeque};

use hawser_host::lines::{Line, lines};
use serde_json::Value;

use crate::cli_status::{list, number, text};

/// State of the view.
#[derive(Debug, Default)]
pub(super) struct Model {
    status: Value,
    flows: Vec<Flow>,
    /// Rates of each line, the newest last.
    rates: BTreeMap<String, VecDeque<Rates>>,
    /// The reason why the status is not current.
    silence: Option<String>,
    is_held: bool,
    first_flow: usize,
}

/// Units: bit/s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rates {
    pub(super) up: u64,
    pub(super) down: u64,
}

/// A flow and its route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) name: String,
    pub(super) class: String,
    pub(super) sent_bytes: u64,
    /// The networks that carry it, with the share of each.
    pub(super) over: String,
    pub(super) why: String,
}

impl Model {
    /// The daemon has answered: its status, and the explanation of all flows.
    pub(super) fn handle_status(&mut self, status: Value, explained: &Value) {
        if self.is_held {
            return;
        }
        self.silence = None;
        let now = lines(&status);
        self.rates
            .retain(|name, _| now.iter().any(|line| line.name == *name));
        for line in now {
            let rates = rates(&line);
            let kept = self.rates.entry(line.name).or_default();
            if kept.len() == MAX_RATES {
                kept.pop_front();
            }
            kept.push_back(rates);
        }
        self.flows = list(&explained["flows"]).iter().map(flow).collect();
        self.flows.sort_by_key(|flow| std::cmp::Reverse(flow.sent_bytes));
        self.status = status;
        self.scroll(0);
    }

    /// The daemon does not answer.
    pub(super) fn handle_silence(&mut self, why: String) {
        if !self.is_held {
            self.silence = Some(why);
        }
    }

    /// Pauses or continues the display.
    pub(super) fn hold(&mut self) {
        self.is_held = !self.is_held;
    }

    /// Scrolls down by this many flows; the last one stays visible.
    pub(super) fn scroll(&mut self, by: isize) {
        let last = self.flows.len().saturating_sub(1);
        self.first_flow = self.first_flow.saturating_add_signed(by).min(last);
    }

    pub(super) fn status(&self) -> &Value {
        &self.status
    }

    pub(super) fn silence(&self) -> Option<&str> {
        self.silence.as_deref()
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_held
    }

    /// Returns the visible flows, and the number of flows above them.
    pub(super) fn flows(&self) -> (&[Flow], usize) {
        (&self.flows[self.first_flow..], self.first_flow)
    }

    /// The rates of a line, the newest first.
    pub(super) fn rates(&self, name: &str) -> impl Iterator<Item = Rates> {
        self.rates.get(name).into_iter().flatten().rev().copied()
    }
}

fn rates(line: &Line<'_>) -> Rates {
    let of = |key: &str| line.figures.map_or(0, |figures| number(&figures[key]));
    Rates {
        up: of("send_bps"),
        down: of("receive_bps"),
    }
}

fn flow(flow: &Value) -> Flow {
    let over = match flow["network"].as_str() {
        Some(network) => network.to_owned(),
        None => {
            let paths = list(&flow["paths"]).iter();
            let shares = paths.map(|path| {
                let share = path["share"].as_f64().unwrap_or(0.0) * 100.0;
                format!("{share:.0} % {}", text(&path["network"]))
            });
            shares.collect::<Vec<_>>().join(", ")
        }
    };
    Flow {
        name: text(&flow["flow"]).to_owned(),
        class: text(&flow["class"]).to_owned(),
        sent_bytes: number(&flow["sent_bytes"]),
        over,
        why: text(&flow["why"]).to_owned(),
    }
}

/// Number of stored rates of a line: as wide as the widest terminal. Source: our choice; more only
/// take memory.
const MAX_RATES: usize = 300;

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A client with two networks, the first of which receives at so much.
    pub(crate) fn status(down_bps: u64) -> Value {
        json!({
            "role": "client", "state": "up", "interface": "hawser0", "inner": ["100.96.0.2"],
            "hub": ["hub:443"], "uptime_s": 61, "notice": null,
            "networks": [
                { "name": "fiber", "used": true, "path": 0, "control": true },
                { "name": "docker0", "used": false, "path": null, "control": false },
            ],
            "sessions": [{ "paths": [{ "path": 0, "name": "fiber", "state": "active", "rtt_ms": 8.25,
                "loss": 0.01, "send_bps": 1_500, "receive_bps": down_bps }] }],
        })
    }

    pub(crate) fn flows(count: u64) -> Value {
        let flow = |number: u64| {
            json!({
                "flow": format!("tcp to 203.0.113.{number}:443"), "class": "bulk", "why": "it sends without a pause",
                "sent_bytes": number * 1_000,
                "paths": [{ "network": "fiber", "share": 0.75 }, { "network": "lte", "share": 0.25 }],
            })
        };
        json!({ "flows": (0..count).map(flow).collect::<Vec<_>>() })
    }

    #[test]
    fn retains_rates_while_a_network_is_present() {
        let mut model = Model::default();
        for number in 0..400 {
            model.handle_status(status(number), &flows(0));
        }
        let kept: Vec<_> = model.rates("fiber").map(|rates| rates.down).collect();
        assert_eq!(kept.len(), MAX_RATES);
        assert_eq!(kept[..3], [399, 398, 397]);
        assert_eq!(model.rates("docker0").next(), Some(Rates::default()));
        model.handle_status(json!({ "role": "client", "networks": [] }), &flows(0));
        assert_eq!(model.rates("fiber").next(), None);
    }

    #[test]
    fn retains_a_paused_picture_and_reports_silence() {
        let mut model = Model::default();
        model.handle_status(status(1), &flows(1));
        model.hold();
        model.handle_status(status(2), &flows(3));
        assert_eq!((model.flows().0.len(), model.silence()), (1, None));
        model.hold();
        model.handle_silence("no answer".to_owned());
        assert_eq!(model.silence(), Some("no answer"));
        model.handle_status(status(2), &flows(3));
        assert_eq!((model.flows().0.len(), model.silence()), (3, None));
    }

    #[test]
    fn the_busiest_flow_is_first_and_the_last_stays_in_sight() {
        let mut model = Model::default();
        model.handle_status(status(1), &flows(12));
        assert_eq!(model.flows().0[0].sent_bytes, 11_000);
        assert_eq!(model.flows().0[0].over, "75 % fiber, 25 % lte");
        model.scroll(100);
        assert_eq!((model.flows().0.len(), model.flows().1), (1, 11));
        model.handle_status(status(1), &flows(2));
        assert_eq!((model.flows().0.len(), model.flows().1), (1, 1));
        model.scroll(-5);
        assert_eq!(model.flows().1, 0);
    }
}
