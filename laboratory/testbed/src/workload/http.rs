//! A real HTTP download, and the server for it and for other HTTP clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context as _, bail};
use hawser_linux::clock;
use hawser_units::{Bytes, Duration};

use super::{
    Context, Finding, Threads, any_address, is_timeout, server_address, spawn, stream_socket, wait_for,
};

/// Starts client and server.
pub(super) fn start(context: Context, size: Bytes) -> anyhow::Result<Threads> {
    let listener = context
        .server
        .run(|| listen(&context).map_err(std::io::Error::other))?;
    let namespace = context.server.clone();
    let period = context.period.clone();
    let server = spawn(&namespace, "http-server", move || {
        serve(&listener, &|| period.is_over())?;
        Ok(())
    })?;
    let namespace = context.client.clone();
    let client = spawn(&namespace, "http-client", move || download(&context, size))?;
    Ok((client, server))
}

fn listen(context: &Context) -> anyhow::Result<TcpListener> {
    let socket = stream_socket(context.is_multipath)?;
    socket.bind(&any_address(context.port).into())?;
    socket.listen(64)?;
    Ok(socket.into())
}

/// Answers `GET /<n>` with `n` bytes, on connections of `listener`, until `is_over`.
///
/// # Errors
/// When the listener fails.
pub fn serve(listener: &TcpListener, is_over: &(dyn Fn() -> bool + Sync)) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    std::thread::scope(|scope| {
        while !is_over() {
            match listener.accept() {
                Ok((stream, _)) => {
                    scope.spawn(move || {
                        // A client that closes its connection is not an error of the server.
                        let _ = answer(&stream, is_over);
                    });
                }
                Err(error) if is_timeout(&error) => std::thread::sleep(Duration::from_millis(2)),
                Err(error) => return Err(error).context("cannot accept"),
            }
        }
        Ok(())
    })
}

fn answer(stream: &TcpStream, is_over: &dyn Fn() -> bool) -> anyhow::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(super::TIMEOUT * 100))?;
    stream.set_write_timeout(Some(super::TIMEOUT))?;
    let mut request = String::new();
    let mut reader = BufReader::new(stream).take(MAX_HEADER);
    reader.read_line(&mut request)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let size = request
        .split_whitespace()
        .nth(1)
        .and_then(|path| path.trim_start_matches('/').parse::<u64>().ok());
    let mut writer = stream;
    let Some(size) = size else {
        writer.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        return Ok(());
    };
    write!(
        writer,
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    )?;
    let block = vec![0u8; 256 * 1024];
    let mut left = size;
    while left > 0 && !is_over() {
        let length = block.len().min(usize::try_from(left)?);
        match writer.write(&block[..length]) {
            Ok(written) => left -= written as u64,
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn download(context: &Context, size: Bytes) -> anyhow::Result<Finding> {
    wait_for(context.period.start);
    let socket = stream_socket(context.is_multipath)?;
    let address = server_address(context.port);
    socket.set_write_timeout(Some(
        context
            .period
            .end
            .since(clock::now())
            .max(Duration::from_millis(1)),
    ))?;
    socket
        .connect(&address.into())
        .with_context(|| format!("cannot connect to {address}"))?;
    let mut stream: TcpStream = socket.into();
    write!(
        stream,
        "GET /{} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n",
        size.0
    )?;
    read_header(&mut stream, context)?;
    let mut bytes = 0;
    let mut block = vec![0; 256 * 1024];
    while !context.period.is_over() && bytes < size.0 {
        match stream.read(&mut block) {
            Ok(0) => bail!("the server closed after {bytes} of {} bytes", size.0),
            Ok(count) => {
                bytes += count as u64;
                context.recorder.record(clock::now(), count as u64);
            }
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error).context("the download ended early"),
        }
    }
    let is_complete = bytes >= size.0;
    if is_complete {
        context.recorder.finish();
    }
    let completed_s = is_complete.then(|| clock::now().since(context.period.start).as_secs_f64());
    Ok(Finding::Http { completed_s, bytes })
}

/// Reads byte by byte, so that the body stays in the socket.
fn read_header(stream: &mut TcpStream, context: &Context) -> anyhow::Result<()> {
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n\r\n") {
        if context.period.is_over() || header.len() as u64 > MAX_HEADER {
            bail!("no HTTP answer in time");
        }
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => bail!("the server closed without an answer"),
            Ok(_) => header.push(byte[0]),
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if header.starts_with(b"HTTP/1.1 200") {
        Ok(())
    } else {
        bail!("the server refused")
    }
}

/// Maximum length of a request, above that of any client. Source: our choice, twice the limit of
/// common servers (8 KB). Units: bytes.
const MAX_HEADER: u64 = 16 * 1024;
