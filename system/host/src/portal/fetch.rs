//! Requests a page over one network, and validates URLs that networks supply for display.

use std::io;

use hawser_config::Page;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::dns::NetworkAccess;

/// Opens a connection to the page's server, over that network only.
pub(crate) async fn connect(access: &NetworkAccess, page: &Page) -> io::Result<TcpStream> {
    let addresses = match page.host.trim_matches(['[', ']']).parse() {
        Ok(address) => vec![address],
        Err(_) => match access.addresses(&page.host, false).await {
            Ok(found) if !found.is_empty() => found,
            _ => access.addresses(&page.host, true).await?,
        },
    };
    let address = addresses.first().ok_or(io::ErrorKind::NotFound)?;
    access.connect(access.port(*address, page.port)).await
}

/// Returns the first `most` bytes of the response; `fields` are further header fields of the
/// request, each with its line end.
pub(crate) async fn get(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    page: &Page,
    fields: &str,
    most: u64,
) -> io::Result<Vec<u8>> {
    // HTTP/1.0: the body has no transfer coding, and ends with the connection.
    let request = format!(
        "GET {} HTTP/1.0\r\nHost: {}\r\nUser-Agent: hawser\r\n{fields}Connection: close\r\n\r\n",
        page.path, page.host
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut bytes = Vec::new();
    match stream.take(most).read_to_end(&mut bytes).await {
        // Some servers close TLS connections without a notification.
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        Ok(_) | Err(_) => Ok(bytes),
    }
}

/// Returns a URL if it consists of plain characters only, because an attacker may have written it
/// for users to open.
pub(super) fn safe(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let is_web = text.starts_with("http://") || text.starts_with("https://");
    let is_plain = text.len() <= 200
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"'\"`$\\;<>|".contains(&byte));
    (is_web && is_plain).then(|| text.to_owned())
}
