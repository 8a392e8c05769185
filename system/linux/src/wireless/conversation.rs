//! Control interface of hostapd and wpa_supplicant: datagrams on a local socket, with one line of
//! text in each direction.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as Socket};
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::time::timeout;

/// A connected socket to one of them. Must be used within a tokio runtime.
#[derive(Debug)]
pub struct Conversation {
    socket: UnixDatagram,
}

impl Conversation {
    /// Uses a bound socket; the other end may be connected later ([`connect`](Self::connect)).
    #[must_use]
    pub fn new(socket: UnixDatagram) -> Self {
        Self { socket }
    }

    /// Opens a conversation with the program that listens at that path. Our own end has no file:
    /// `name` is its abstract name in this network namespace, in which the other end must be, too.
    ///
    /// # Errors
    /// No program listens there, privileges are missing, or the name is taken.
    pub fn with(path: &Path, name: &str) -> io::Result<Self> {
        let socket = Socket::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        socket.connect(path)?;
        socket.set_nonblocking(true)?;
        Ok(Self::new(UnixDatagram::from_std(socket)?))
    }

    /// Connects to the other end.
    ///
    /// # Errors
    /// No program listens there, or privileges are missing.
    pub fn connect(&self, path: &Path) -> io::Result<()> {
        self.socket.connect(path)
    }

    /// Sends a request, and waits for the answer. Unsolicited messages meanwhile are passed to
    /// `unasked`.
    ///
    /// # Errors
    /// The error of the socket; `TimedOut`: no answer within 2 s.
    pub async fn ask(&self, request: &str, mut unasked: impl FnMut(&str)) -> io::Result<String> {
        let talk = async {
            self.socket.send(request.as_bytes()).await?;
            let mut answer = vec![0; LONGEST_ANSWER];
            loop {
                let length = self.socket.recv(&mut answer).await?;
                let said = String::from_utf8_lossy(&answer[..length]);
                // An unsolicited message begins with a level.
                if !said.starts_with('<') {
                    break Ok(said.into_owned());
                }
                unasked(&said);
            }
        };
        timeout(TIMEOUT, talk)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Maximum answer. Source: wpa_supplicant and hostapd write an answer into a buffer of 4,096 bytes.
const LONGEST_ANSWER: usize = 4096;
/// Timeout of an answer: the programs answer at once or not at all. Source: our choice; a longer
/// one blocks the other radios for longer when a program hangs.
const TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_said_unasked_is_no_answer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wlan0");
        let name = format!("hawser-test-conversation-{}", std::process::id());
        assert!(Conversation::with(&path, &name).is_err(), "nobody listens");
        let other = UnixDatagram::bind(&path).unwrap();
        let conversation = Conversation::with(&path, &name).unwrap();
        assert!(Conversation::with(&path, &name).is_err(), "the name is taken");
        let answering = async {
            let mut asked = [0; 64];
            let (length, from) = other.recv_from(&mut asked).await.unwrap();
            let from: SocketAddr = from.into();
            let other = other.into_std().unwrap();
            for said in ["<3>AP-STA-CONNECTED", "OK\n"] {
                other.send_to_addr(said.as_bytes(), &from).unwrap();
            }
            asked[..length].to_owned()
        };
        let mut heard = Vec::new();
        let asking = conversation.ask("PING", |said| heard.push(said.to_owned()));
        let (answer, asked) = tokio::join!(asking, answering);
        assert_eq!((answer.unwrap().as_str(), asked), ("OK\n", b"PING".to_vec()));
        assert_eq!(heard, ["<3>AP-STA-CONNECTED"]);
    }
}
