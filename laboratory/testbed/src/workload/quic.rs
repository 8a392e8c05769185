//! Bulk QUIC: one stream per connection, at the networks' full rate until the end of the run.
//!
//! Scope: quinn with its defaults, CUBIC and the standard's fixed reordering threshold of three
//! packets (RFC 9002 section 6.1.1), with a certificate made for the run; only the flow control
//! windows are larger, so that they do not limit the measurement.

use std::future::{Future, IntoFuture as _};
use std::sync::Arc;

use anyhow::Context as _;
use hawser_linux::clock;
use hawser_netem::scenario::Direction;
use quinn::{Connection, Endpoint, RecvStream, SendStream, TokioRuntime, VarInt};
use rustls::RootCertStore;

use super::{Context, Finding, TIMEOUT, Threads, datagram_socket, server_address, spawn, wait_for};

/// Starts the server and `streams` connections.
pub(super) fn start(context: Context, direction: Direction, streams: u32) -> anyhow::Result<Threads> {
    let identity = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let mut roots = RootCertStore::empty();
    roots.add(identity.cert.der().clone())?;
    let mut server_config = quinn::ServerConfig::with_single_cert(
        vec![identity.cert.der().clone()],
        identity
            .signing_key
            .serialize_der()
            .try_into()
            .map_err(anyhow::Error::msg)?,
    )?;
    server_config.transport_config(Arc::new(transport()));
    let port = context.port;
    let socket = context
        .server
        .run(|| datagram_socket(port).map_err(std::io::Error::other))?;
    let (at_server, namespace) = (context.clone(), context.server.clone());
    let server = spawn(&namespace, "quic-server", move || {
        block_on(async {
            let endpoint = endpoint(socket, Some(server_config))?;
            accept(&at_server, &endpoint, direction).await;
            Ok(())
        })
    })?;
    let namespace = context.client.clone();
    let client = spawn(&namespace, "quic-client", move || {
        let socket = datagram_socket(0)?;
        wait_for(context.period.start);
        block_on(async {
            let mut endpoint = endpoint(socket, None)?;
            let mut config = quinn::ClientConfig::with_root_certificates(Arc::new(roots))?;
            config.transport_config(Arc::new(transport()));
            endpoint.set_default_client_config(config);
            connect_all(&context, &endpoint, direction, streams).await
        })
    })?;
    Ok((client, server))
}

fn transport() -> quinn::TransportConfig {
    let mut config = quinn::TransportConfig::default();
    config
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(u64::from(WINDOW));
    config
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

fn endpoint(socket: std::net::UdpSocket, server: Option<quinn::ServerConfig>) -> anyhow::Result<Endpoint> {
    let config = quinn::EndpointConfig::default();
    Endpoint::new(config, server, socket, Arc::new(TokioRuntime)).context("cannot open an endpoint")
}

/// Waits for `work`, at most until the end of the run.
async fn while_running<T>(context: &Context, work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    while !context.period.is_over() {
        if let Ok(done) = tokio::time::timeout(TIMEOUT, work.as_mut()).await {
            return Some(done);
        }
    }
    None
}

async fn accept(context: &Context, endpoint: &Endpoint, direction: Direction) {
    let mut tasks = tokio::task::JoinSet::new();
    while let Some(Some(incoming)) = while_running(context, endpoint.accept()).await {
        let context = context.clone();
        tasks.spawn(async move {
            // The client's side reports a failed connection.
            let Some(Ok(connection)) = while_running(&context, incoming.into_future()).await else {
                return;
            };
            if let Some(Ok((send, receive))) = while_running(&context, connection.accept_bi()).await {
                let outgoing = direction == Direction::Down;
                transfer(&context, (send, receive), outgoing).await;
            }
        });
    }
    tasks.join_all().await;
}

async fn connect_all(
    context: &Context,
    endpoint: &Endpoint,
    direction: Direction,
    streams: u32,
) -> anyhow::Result<Finding> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..streams {
        let connecting = endpoint.connect(server_address(context.port).into(), NAME)?;
        let context = context.clone();
        tasks.spawn(async move {
            let Some(connection) = while_running(&context, connecting).await else {
                anyhow::bail!("no connection within the run");
            };
            let connection: Connection = connection.context("cannot connect")?;
            let (mut send, receive) = connection.open_bi().await?;
            // The other side learns of a stream by its first byte.
            send.write_all(&[0]).await?;
            let outgoing = direction == Direction::Up;
            transfer(&context, (send, receive), outgoing).await;
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(Finding::Quic { streams })
}

/// Sends, or receives and records, until the end of the run or of the connection.
async fn transfer(context: &Context, (mut send, mut receive): (SendStream, RecvStream), outgoing: bool) {
    let block = vec![0; BLOCK];
    if outgoing {
        while let Some(Ok(())) = while_running(context, send.write_all(&block)).await {}
        return;
    }
    while let Some(Ok(Some(chunk))) = while_running(context, receive.read_chunk(BLOCK, true)).await {
        context.recorder.record(clock::now(), chunk.bytes.len() as u64);
    }
}

/// Name in the certificate.
const NAME: &str = "server";
/// Flow control window, larger than the capacity of any network here. Units: bytes. Source: our
/// choice, 2.7 s at 100 Mbit/s.
const WINDOW: u32 = 32 << 20;
/// Size of a write. Units: bytes. Source: our choice; smaller ones cost more calls, larger ones
/// only take memory.
const BLOCK: usize = 256 * 1024;
