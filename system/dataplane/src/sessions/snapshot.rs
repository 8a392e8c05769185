//! Snapshot of the sending thread's sessions.

use std::collections::BTreeMap;

use hawser_proto::flow::Flow;
use hawser_proto::path::policing;
use hawser_units::{Duration, Instant, Rate};
use hawser_wire::data::Class;
use hawser_wire::frame::NOT_IP;
use hawser_wire::inner::{FlowKey, protocol};

use super::Session;
use crate::lane::Lane;
use crate::{AirSnapshot, DeclaredSnapshot, FlowSnapshot, PathSnapshot, SessionId, SessionSnapshot};

/// Maximum number of reported flows of a session. Source: our choice, more lines than a terminal
/// has; each costs time of the thread that sends.
const FLOWS: usize = 32;
/// Time without a packet after which a UDP flow counts as ended. Source: the timeout of Linux's
/// connection tracking (`nf_conntrack_udp_timeout`, linux/net/netfilter/nf_conntrack_proto_udp.c),
/// after which no answer would arrive.
const RECENT: Duration = Duration::from_secs(30);

/// `why`: the reason for which a connection is a stream, or none.
pub(crate) fn of_session(
    name: SessionId,
    session: &mut Session,
    received: &BTreeMap<(u64, u16), (u32, u64)>,
    why: impl Fn(&FlowKey) -> Option<&'static str>,
    at: Instant,
) -> SessionSnapshot {
    let schedulers = Class::ALL
        .map(|class| (class.name(), session.tunnel.egress().scheduler(class)))
        .to_vec();
    // Only the flows that are shown are formatted, because the thread sends no packets meanwhile.
    let mut busiest: Vec<_> = session
        .tunnel
        .egress()
        .flows()
        .iter()
        .map(|(_, flow)| flow)
        .collect();
    let sent = |flow: &&Flow<_>| std::cmp::Reverse(flow.sent);
    if busiest.len() > FLOWS {
        busiest.select_nth_unstable_by_key(FLOWS, sent);
        busiest.truncate(FLOWS);
    }
    busiest.sort_by_key(sent);
    let since = at - RECENT;
    let open_flows = session.tunnel.egress().flows().open_since(since) + session.streams.len();
    let deadline = |flow: &Flow<_>| session.tunnel.egress().deadline(flow);
    let show = |flow: &Flow<_>| FlowSnapshot {
        flow: words(&flow.key),
        class: flow.class.name(),
        why: flow.why,
        scheduler: session.tunnel.egress().scheduler(flow.class),
        tcp: if flow.is_stream() {
            Some("stream")
        } else {
            why(&flow.key)
        },
        tcp_why: why(&flow.key).filter(|_| flow.is_stream()),
        declared_bps: session
            .tunnel
            .egress()
            .declared(&flow.key)
            .map(|need| need.traffic.rate().as_bps()),
        deadline_ms: deadline(flow).map(|time| time.as_millis()),
        in_time_bps: session.tunnel.egress().rate_in_time(flow, at).map(Rate::as_bps),
        late: deadline(flow).or(flow.budget()).map(|_| late_share(flow)),
        sent_bytes: flow.sent,
        by_path: flow.by_path.clone(),
    };
    let flows = busiest.into_iter().map(show).collect();
    let declared = session.tunnel.egress().admissions();
    let declared = declared.map(|(declaration, verdict)| DeclaredSnapshot {
        flow: words(&declaration.key),
        declared_bps: declaration.need.traffic.rate().as_bps(),
        admission: verdict.name(),
        admission_why: verdict.reason(),
    });
    let declared = declared.collect();
    let mut paths = Vec::new();
    for path in session.tunnel.paths() {
        let Some(lane) = session.lanes.get_mut(&path.id) else {
            continue;
        };
        let received_bytes = received.get(&(name.0, path.id.0)).map_or(0, |(_, bytes)| *bytes);
        let (sent_bytes, _) = path.totals();
        let Lane {
            name, remote, meter, ..
        } = lane;
        let (send, receive) = meter.read(sent_bytes, received_bytes, at);
        let model = path.model();
        let preference = session.tunnel.egress().preference(path.id).unwrap_or_default();
        paths.push(PathSnapshot {
            path: path.id.0,
            name: name.clone(),
            remote: *remote,
            state: path.state().into(),
            rtt_ms: model.round_trip().as_secs_f64() * 1e3,
            min_rtt_ms: model.base_round_trip().as_secs_f64() * 1e3,
            delay_trend_ms_s: model.delay().trend() * 1e3,
            loss: path.loss(),
            rate_bps: model.rate().as_bps(),
            policed_bps: match model.policing() {
                policing::State::Policed(rate) => Some(rate.as_bps()),
                policing::State::Free | policing::State::Trial | policing::State::Rejected => None,
            },
            peer_is_policed: session.tunnel.egress().is_peer_policed(path.id),
            ecn: path.ecn().name(),
            starting: model.is_growing(),
            window_bytes: model.window(),
            in_flight_bytes: path.in_flight(),
            air: session
                .tunnel
                .egress()
                .airtime(path.id, at)
                .map(|air| AirSnapshot {
                    frequency_mhz: air.channel,
                    packet_ms: air.full.as_secs_f64() * 1e3,
                    others: air.others(),
                }),
            cap_bps: path.cap().map(|cap| cap.as_bps()),
            priority: preference.priority.name(),
            takes_bulk: preference.takes_bulk,
            send_bps: send.as_bps(),
            receive_bps: receive.as_bps(),
            sent_bytes,
            received_bytes,
            pmtu: path.outer_mtu(),
        });
    }
    SessionSnapshot {
        session: name.0,
        schedulers,
        controller: session.tunnel.egress().control().name(),
        paths,
        open_flows,
        declared,
        flows,
    }
}

fn late_share(flow: &Flow<impl Copy>) -> f64 {
    let (sent, late) = flow.sent_and_late();
    late as f64 / (sent + late).max(1) as f64
}

fn words(key: &FlowKey) -> String {
    let name = match key.protocol {
        protocol::TCP => "tcp".to_owned(),
        protocol::UDP => "udp".to_owned(),
        protocol::ICMP | protocol::ICMPV6 => "icmp".to_owned(),
        NOT_IP => {
            let vlan = match key.source_port {
                0 => String::new(),
                vlan => format!(" of VLAN {vlan}"),
            };
            return format!("frames 0x{:04x}{vlan}", key.destination_port);
        }
        other => format!("protocol {other}"),
    };
    let is_icmp = matches!(key.protocol, protocol::ICMP | protocol::ICMPV6);
    if is_icmp || key.source_port == 0 && key.destination_port == 0 {
        return format!("{name} {} -> {}", key.source, key.destination);
    }
    let source = std::net::SocketAddr::new(key.source, key.source_port);
    let destination = std::net::SocketAddr::new(key.destination, key.destination_port);
    format!("{name} {source} -> {destination}")
}
