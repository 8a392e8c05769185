//! Exchange of one query and its answer with a resolver, over a socket that the caller has
//! connected.
//!
//! Answers are untrusted bytes: only a complete message that answers this question
//! ([`answer`](super::answer)) is accepted.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::answer::{Answer, Question};

/// Sends a query as a datagram, and waits for its answer; all other messages are skipped. The id of
/// `query` is ignored.
///
/// # Errors
/// The socket fails, or `query` has no question.
pub async fn by_datagram(socket: &UdpSocket, query: &[u8]) -> io::Result<Answer> {
    let (question, bytes) = with_fresh_id(query)?;
    socket.send(&bytes).await?;
    let mut buffer = vec![0; MAX_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(answer) = question.read(&buffer[..length]) {
            return Ok(answer);
        }
    }
}

/// Sends a query over a connection, and reads its answer. The id of `query` is ignored.
///
/// # Errors
/// The connection fails, `query` has no question, or the message is not its answer.
pub async fn by_stream(stream: &mut TcpStream, query: &[u8]) -> io::Result<Answer> {
    let (question, bytes) = with_fresh_id(query)?;
    write_framed(stream, &bytes).await?;
    let bytes = read_framed(stream).await?;
    question
        .read(&bytes)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reads a message with its length before it (RFC 1035 section 4.2.2).
pub(super) async fn read_framed(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Writes a message with its length before it (RFC 1035 section 4.2.2).
///
/// # Errors
/// The connection fails, or the message is longer than 65,535 bytes.
pub(super) async fn write_framed(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = u16::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut whole = length.to_be_bytes().to_vec();
    whole.extend(bytes);
    stream.write_all(&whole).await
}

/// Returns the query with an unpredictable id.
fn with_fresh_id(query: &[u8]) -> io::Result<(Question, Vec<u8>)> {
    let id: [u8; 2] = hawser_config::identity::random();
    let mut bytes = query.to_vec();
    let place = bytes.first_chunk_mut().ok_or(io::ErrorKind::InvalidInput)?;
    *place = id;
    let question = Question::parse(&bytes).ok_or(io::ErrorKind::InvalidInput)?;
    Ok((question, bytes))
}

/// Maximum length of a message: its length has 16 bits over TCP (RFC 1035 section 4.2.2). Units:
/// bytes.
const MAX_BYTES: usize = 65_535;
