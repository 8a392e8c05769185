//! TCP download from the server to the client, checked to the last byte. It continues until its end
//! is requested, so that changes during it cannot come too late on a busy machine.

use std::hash::Hasher;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_linux::netns::Namespace;

/// Minimum length of the download. Units: bytes.
const LENGTH: u64 = 48 << 20;
const CHUNK: usize = 64 << 10;
/// Pause between two chunks: at most 12 MB/s, so that the download takes at least 4 s.
const PAUSE: Duration = Duration::from_millis(5);
/// Timeout of a hanging transfer, which fails the test.
const TIMEOUT: Duration = hawser_testing::GIVE_UP;
const SERVER: &str = "203.0.113.2:9000";

pub(crate) struct Transfer {
    received: Arc<AtomicU64>,
    /// Longest time without data. Units: microseconds.
    longest_gap: Arc<AtomicU64>,
    /// Hash and length of the sent bytes.
    sending: JoinHandle<(u64, u64)>,
    receiving: JoinHandle<u64>,
    end: End,
}

/// Requests the end of the download when it is dropped.
struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Transfer {
    pub(crate) fn start(server: &Namespace, client: &Namespace) -> Self {
        let received = Arc::new(AtomicU64::new(0));
        let listener = server.run(|| TcpListener::bind(SERVER)).unwrap();
        let end = End(Arc::default());
        let is_enough = Arc::clone(&end.0);
        let sending = std::thread::spawn(move || send(listener.accept().unwrap().0, &is_enough));
        let longest_gap = Arc::new(AtomicU64::new(0));
        let (namespace, count, gap) = (client.clone(), Arc::clone(&received), Arc::clone(&longest_gap));
        let receiving = std::thread::spawn(move || {
            let server: SocketAddr = SERVER.parse().unwrap();
            let stream = namespace.run(|| TcpStream::connect_timeout(&server, TIMEOUT));
            receive(stream.unwrap(), &count, &gap)
        });
        Self {
            received,
            longest_gap,
            sending,
            receiving,
            end,
        }
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns the longest time without data since the last call.
    #[allow(dead_code, reason = "not every program that shares this looks")]
    pub(crate) fn take_longest_gap(&self) -> Duration {
        Duration::from_micros(self.longest_gap.swap(0, Ordering::Relaxed))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.sending.is_finished()
    }

    /// Ends the download, and checks that all bytes arrived in order and unchanged.
    pub(crate) fn finish(self) {
        drop(self.end);
        let (sent, length) = self.sending.join().unwrap();
        let received = self.receiving.join().unwrap();
        assert_eq!(self.received.load(Ordering::Relaxed), length);
        assert_eq!(received, sent, "the hash of what came and of what was sent");
    }
}

/// Sends bytes without repetitions, at least [`LENGTH`]. Returns their hash and number.
fn send(mut stream: TcpStream, is_enough: &AtomicBool) -> (u64, u64) {
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let mut hash = std::hash::DefaultHasher::new();
    let mut state = 1_u64;
    let mut chunk = vec![0; CHUNK];
    let mut length = 0;
    while length < LENGTH || !is_enough.load(Ordering::Relaxed) {
        for word in chunk.chunks_exact_mut(8) {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&state.to_le_bytes());
        }
        hash.write(&chunk);
        stream.write_all(&chunk).unwrap();
        length += CHUNK as u64;
        std::thread::sleep(PAUSE);
    }
    (hash.finish(), length)
}

fn receive(mut stream: TcpStream, count: &AtomicU64, longest_gap: &AtomicU64) -> u64 {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut hash = std::hash::DefaultHasher::new();
    let mut buffer = vec![0; CHUNK];
    let mut before = std::time::Instant::now();
    loop {
        let len = stream.read(&mut buffer).unwrap();
        let now = std::time::Instant::now();
        let gap = now
            .duration_since(std::mem::replace(&mut before, now))
            .as_micros() as u64;
        longest_gap.fetch_max(gap, Ordering::Relaxed);
        match len {
            0 => return hash.finish(),
            len => {
                hash.write(&buffer[..len]);
                count.fetch_add(len as u64, Ordering::Relaxed);
            }
        }
    }
}
