//! DNS server over UDP and TCP: receives bounded numbers of questions, and sends the answers that
//! an [`Answer`] returns. It parses no messages and has no cache.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::exchange::{read_framed, write_framed};

/// Source of the answers of a [`Server`].
pub trait Answer: Clone + Send + Sync + 'static {
    /// Returns the answer to a message from an address; `None` for a message that is not a
    /// question. `is_stream` means that it arrived by TCP, so the answer may have up to 65,535
    /// bytes.
    fn answer(
        &self,
        query: &[u8],
        from: IpAddr,
        is_stream: bool,
    ) -> impl Future<Output = Option<Vec<u8>>> + Send;
}

/// Listener for questions at one address, by UDP and TCP.
pub struct Server {
    datagrams: UdpSocket,
    streams: TcpListener,
}

impl Server {
    /// Opens both sockets at an address. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The address is not present, or another program listens there.
    pub async fn bind(at: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            datagrams: UdpSocket::bind(at).await?,
            streams: TcpListener::bind(at).await?,
        })
    }

    /// Answers questions until it is dropped. `room` limits the questions in progress of several
    /// servers together; further ones are dropped, and repeated by their senders.
    pub async fn run(self, answers: impl Answer, room: Arc<Semaphore>) {
        let Self { datagrams, streams } = self;
        tokio::join!(
            receive_datagrams(Arc::new(datagrams), &answers, &room),
            accept_streams(streams, &answers, &room),
        );
    }
}

async fn receive_datagrams(socket: Arc<UdpSocket>, answers: &impl Answer, room: &Arc<Semaphore>) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "cannot receive a query");
                continue;
            }
        };
        let Ok(permit) = Arc::clone(room).try_acquire_owned() else {
            continue;
        };
        let (query, socket, answers) = (buffer[..length].to_vec(), Arc::clone(&socket), answers.clone());
        hawser_linux::tasks::spawn(async move {
            if let Some(answer) = answers.answer(&query, from.ip(), false).await {
                let _ = socket.send_to(&answer, from).await;
            }
            drop(permit);
        });
    }
}

async fn accept_streams(listener: TcpListener, answers: &impl Answer, room: &Arc<Semaphore>) {
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(ACCEPT_RETRY).await;
            continue;
        };
        let Ok(permit) = Arc::clone(room).try_acquire_owned() else {
            continue;
        };
        let answers = answers.clone();
        hawser_linux::tasks::spawn(async move {
            let _ = converse(stream, from.ip(), &answers).await;
            drop(permit);
        });
    }
}

/// Answers questions in sequence until the stream ends.
async fn converse(mut stream: TcpStream, from: IpAddr, answers: &impl Answer) -> io::Result<()> {
    loop {
        let query = timeout(IDLE, read_framed(&mut stream)).await??;
        let Some(answer) = answers.answer(&query, from, true).await else {
            return Ok(());
        };
        write_framed(&mut stream, &answer).await?;
    }
}

/// Port of DNS. Source: RFC 1035 section 4.2.
pub const PORT: u16 = 53;
/// Default bound of questions in progress. Source: each holds a socket for at most 4.5 s, of the
/// 1,024 descriptors that a process may have by default (`RLIMIT_NOFILE`, getrlimit(2)).
pub const MAX_QUESTIONS: usize = 256;
/// Maximum size of a datagram. Source: RFC 9715 recommends 1,232 bytes; a client may send more.
const MAX_DATAGRAM: usize = 4096;
/// Idle timeout of a stream. Source: RFC 7766 section 6.2.3, a few seconds.
const IDLE: Duration = Duration::from_secs(10);
/// Pause after a failed `accept`, such as without a free descriptor (accept(2)).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Returns the question followed by its sender's address, and nothing for an empty question.
    #[derive(Clone)]
    struct Echo;

    impl Answer for Echo {
        async fn answer(&self, query: &[u8], from: IpAddr, is_stream: bool) -> Option<Vec<u8>> {
            let mut answer = query.to_vec();
            answer.push(u8::from(is_stream));
            answer.push(u8::from(from == IpAddr::from(Ipv4Addr::LOCALHOST)));
            (!query.is_empty()).then_some(answer)
        }
    }

    /// Runs a test against a server on loopback with room for `questions` at once.
    fn with_server<F: Future<Output = ()>>(questions: usize, test: impl FnOnce(SocketAddr) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            // Find a port that is free for both protocols: UDP's choice is usually free for TCP
            // too.
            let server = loop {
                let port = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a socket");
                let at = port.local_addr().expect("an address");
                drop(port);
                if let Ok(server) = Server::bind(at).await {
                    break (at, server);
                }
            };
            let (at, server) = server;
            let room = Arc::new(Semaphore::new(questions));
            tokio::select! {
                () = server.run(Echo, room) => {}
                () = test(at) => {}
            }
        }));
    }

    #[test]
    fn answers_by_both_protocols_and_several_questions_of_a_stream() {
        with_server(4, async |at| {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a socket");
            socket.send_to(b"who", at).await.expect("it is sent");
            let mut buffer = [0; 16];
            let length = socket.recv(&mut buffer).await.expect("an answer");
            assert_eq!(&buffer[..length], b"who\x00\x01");
            let mut stream = TcpStream::connect(at).await.expect("a connection");
            for question in [b"one".as_slice(), b"three"] {
                write_framed(&mut stream, question).await.expect("it is sent");
                let answer = read_framed(&mut stream).await.expect("an answer");
                assert_eq!(answer, [question, b"\x01\x01"].concat());
            }
        });
    }

    #[test]
    fn drops_questions_beyond_its_room_and_serves_again_afterwards() {
        with_server(1, async |at| {
            // An answer shows that this stream occupies the only slot.
            let mut first = TcpStream::connect(at).await.expect("a connection");
            write_framed(&mut first, b"who").await.expect("it is sent");
            read_framed(&mut first).await.expect("an answer");
            let mut second = TcpStream::connect(at).await.expect("a connection");
            write_framed(&mut second, b"who").await.expect("it is sent");
            assert!(
                read_framed(&mut second).await.is_err(),
                "it was closed without an answer"
            );
            drop(first);
            let mut third = TcpStream::connect(at).await.expect("a connection");
            write_framed(&mut third, b"who").await.expect("it is sent");
            while read_framed(&mut third).await.is_err() {
                third = TcpStream::connect(at).await.expect("a connection");
                write_framed(&mut third, b"who").await.expect("it is sent");
            }
        });
    }
}
