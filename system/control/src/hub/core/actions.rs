//! Actions that a session's machine asks for, as orders to the data plane.

use std::collections::HashSet;

use hawser_dataplane::{Change, Orders, SessionId};
use hawser_proto::egress::Declaration;
use hawser_proto::scheduler;
use hawser_proto::session::HubAction;
use hawser_units::PathId;

use super::super::HUB_SOCKET;
use super::Session;

pub(super) fn carry_out(
    id: u64,
    action: HubAction,
    session: &mut Session,
    indices: &mut HashSet<u32>,
    (orders, mtu): (&Orders, u16),
) {
    let id = SessionId(id);
    match action {
        HubAction::OpenPath {
            path,
            local_index,
            peer_index,
        } => {
            session.indices.insert(path, local_index);
            orders(
                Change::OpenPath {
                    session: id,
                    path: PathId(path),
                    socket: HUB_SOCKET,
                    remote: None,
                    peer_index,
                    local_index,
                    name: format!("{}/{path}", session.name),
                    mtu,
                    cap: None,
                }
                .into(),
            );
        }
        HubAction::ClosePath { path } => {
            if let Some(index) = session.indices.remove(&path) {
                indices.remove(&index);
            }
            orders(
                Change::ClosePath {
                    session: id,
                    path: PathId(path),
                }
                .into(),
            );
        }
        HubAction::SetScheduler { class, scheduler } => {
            if scheduler::NAMES.contains(&scheduler.as_str()) {
                orders(
                    Change::SetScheduler {
                        session: id,
                        class,
                        scheduler,
                    }
                    .into(),
                );
            } else {
                tracing::debug!(session = id.0, scheduler, "client asks for an unknown scheduler");
            }
        }
        HubAction::SetDeadlines { rules } => orders(
            Change::SetDeadlines {
                session: id,
                rules,
                is_from_client: false,
            }
            .into(),
        ),
        HubAction::SetDeclared { flows } => {
            let flows = flows.iter().map(Declaration::from).collect();
            orders(Change::SetDeclared { session: id, flows }.into());
        }
        HubAction::SetCap { path, cap } => {
            tracing::debug!(
                session = id.0,
                path,
                cap_bps = cap.map(|cap| cap.as_bps()),
                "held to"
            );
            orders(
                Change::SetCap {
                    session: id,
                    path: PathId(path),
                    cap,
                }
                .into(),
            );
        }
        HubAction::SetPreference { path, preference } => orders(
            Change::SetPreference {
                session: id,
                path: PathId(path),
                preference,
            }
            .into(),
        ),
        HubAction::SetPause { path, pause } => orders(
            Change::SetPause {
                session: id,
                path: PathId(path),
                pause,
            }
            .into(),
        ),
        HubAction::SetAirtime { path, airtime } => orders(
            Change::SetAirtime {
                session: id,
                path: PathId(path),
                airtime,
            }
            .into(),
        ),
        HubAction::Closed(_) | HubAction::SignReceipts { .. } => {}
    }
}
