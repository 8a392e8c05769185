//! Snapshot of the data plane as JSON: sessions with their paths, flows, counters.

use std::sync::Arc;

use anyhow::anyhow;
use hawser_dataplane::{Command, Orders, Snapshot};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// Receiver of an answer.
pub type Answer = oneshot::Sender<anyhow::Result<Value>>;

/// Requests a snapshot of the data plane and answers with the result of `render`.
pub fn with_snapshot(
    orders: &Orders,
    answer: Answer,
    render: impl FnOnce(Snapshot) -> Value + Send + 'static,
) {
    let (sender, receiver) = oneshot::channel();
    Arc::clone(orders)(Command::Snapshot(Box::new(move |snapshot| {
        let _ = sender.send(snapshot);
    })));
    hawser_linux::tasks::spawn(async move {
        let snapshot = tokio::time::timeout(TIMEOUT, receiver).await;
        let result = match snapshot {
            Ok(Ok(snapshot)) => Ok(render(snapshot)),
            Ok(Err(_)) | Err(_) => Err(anyhow!("the data plane does not answer: see the log")),
        };
        let _ = answer.send(result);
    });
}

/// Adds a snapshot to a status.
pub fn add_snapshot(status: &mut Value, snapshot: Snapshot) {
    let counters: serde_json::Map<_, _> = snapshot
        .counters
        .iter()
        .map(|(reason, count)| ((*reason).to_owned(), json!(count)))
        .collect();
    let sessions: Vec<_> = snapshot.sessions.iter().map(session).collect();
    status["sessions"] = Value::Array(sessions);
    match status["counters"].as_object_mut() {
        Some(present) => present.extend(counters),
        None => status["counters"] = Value::Object(counters),
    }
}

fn session(session: &hawser_dataplane::SessionSnapshot) -> Value {
    let mut value = serde_json::to_value(session).unwrap_or_default();
    // Pairs are shown as an object for readability.
    let pairs = session
        .schedulers
        .iter()
        .map(|(class, name)| ((*class).to_owned(), json!(name)));
    value["schedulers"] = Value::Object(pairs.collect());
    value
}

/// Returns the flows whose description contains the text, with their class, scheduler and share by
/// network.
pub fn explain(snapshot: &Snapshot, wanted: &str) -> Value {
    let mut flows = Vec::new();
    for session in &snapshot.sessions {
        for flow in session.flows.iter().filter(|flow| flow.flow.contains(wanted)) {
            let total: u64 = flow.by_path.iter().map(|(_, bytes)| bytes).sum();
            let shares: Vec<_> = flow
                .by_path
                .iter()
                .map(|(id, bytes)| {
                    let path = session.paths.iter().find(|path| path.path == *id);
                    json!({
                        "path": id,
                        "network": path.map(|path| path.name.clone()),
                        "state": path.map(|path| path.state),
                        "policed_bps": path.and_then(|path| path.policed_bps),
                        "bytes": bytes,
                        "share": if total == 0 { 0.0 } else { *bytes as f64 / total as f64 },
                    })
                })
                .collect();
            let admission = session.declared.iter().find(|one| one.flow == flow.flow);
            flows.push(json!({
                "flow": flow.flow,
                "class": flow.class,
                "why": flow.why,
                "scheduler": flow.scheduler,
                "tcp": flow.tcp,
                "tcp_why": flow.tcp_why,
                "declared_bps": flow.declared_bps,
                "admission": admission.map(|one| one.admission),
                "admission_why": admission.map(|one| one.admission_why),
                "deadline_ms": flow.deadline_ms,
                "in_time_bps": flow.in_time_bps,
                "late": flow.late,
                "sent_bytes": flow.sent_bytes,
                "paths": shares,
                "session": session.session,
            }));
        }
    }
    json!({ "flows": flows })
}

/// Timeout, in which the data plane polls its orders thousands of times. Source: our choice; a
/// longer one blocks `hawser status` for as long if a thread hangs.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);
/// Fatal error message.
pub const PLANE_ENDED: &str = "the data plane stopped: see the log";
