//! Permanent TCP connections, one for each client, with verifiable data from a server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;

const SERVER: &str = "203.0.113.2:9000";
const CHUNK: usize = 16 << 10;
/// Time without data after which a connection has failed; events are reverted after 2 s.
const STILL: Duration = Duration::from_secs(60);

pub(crate) struct Streams {
    is_over: Arc<AtomicBool>,
    received: Vec<Arc<AtomicU64>>,
    failures: Arc<Mutex<Vec<String>>>,
    sending: Vec<JoinHandle<()>>,
    /// Receivers, each of which returns its longest pause in seconds.
    receiving: Vec<JoinHandle<f64>>,
}

impl Streams {
    /// Starts a connection for each client, with `rate_bps` of payload.
    pub(crate) fn start(server: &Namespace, clients: &[Namespace], rate_bps: u64) -> Self {
        let pause = Duration::from_secs_f64((CHUNK * 8) as f64 / rate_bps as f64);
        let listener = server.run(|| TcpListener::bind(SERVER)).unwrap();
        let (is_over, failures) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (mut received, mut sending, mut receiving) = (Vec::new(), Vec::new(), Vec::new());
        for (number, client) in clients.iter().enumerate() {
            let address: SocketAddr = SERVER.parse().unwrap();
            let stream = client
                .run(|| TcpStream::connect_timeout(&address, STILL))
                .unwrap();
            let accepted = listener.accept().unwrap().0;
            let count = Arc::new(AtomicU64::new(0));
            received.push(Arc::clone(&count));
            let over = Arc::clone(&is_over);
            sending.push(std::thread::spawn(move || send(accepted, pause, &over)));
            let failures = Arc::clone(&failures);
            receiving.push(std::thread::spawn(move || {
                let (gap, failure) = receive(stream, &count);
                if let Some(failure) = failure {
                    failures
                        .lock()
                        .unwrap()
                        .push(format!("client {number}: {failure}"));
                }
                gap
            }));
        }
        Self {
            is_over,
            received,
            failures,
            sending,
            receiving,
        }
    }

    /// Checks that no connection has ended or received wrong data.
    pub(crate) fn check(&self) {
        let failures = self.failures.lock().unwrap();
        assert!(failures.is_empty(), "{failures:?}");
    }

    /// Ends the connections. Returns the bytes and the longest pause of each, in seconds.
    pub(crate) fn end(self) -> (Vec<u64>, Vec<f64>) {
        self.is_over.store(true, Ordering::Relaxed);
        self.sending.into_iter().for_each(|thread| thread.join().unwrap());
        let gaps = self
            .receiving
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        let failures = self.failures.lock().unwrap();
        assert!(failures.is_empty(), "{failures:?}");
        let bytes = self.received.iter().map(|count| count.load(Ordering::Relaxed));
        (bytes.collect(), gaps)
    }
}

/// Sends consecutive numbers until `is_over` is set.
fn send(mut stream: TcpStream, pause: Duration, is_over: &AtomicBool) {
    let mut next = 0_u64;
    let mut chunk = vec![0; CHUNK];
    while !is_over.load(Ordering::Relaxed) {
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&next.to_be_bytes());
            next += 1;
        }
        if stream.write_all(&chunk).is_err() {
            // The receiver reports the reason.
            return;
        }
        std::thread::sleep(pause);
    }
}

/// Returns the longest pause in seconds, and the error if the connection failed early.
fn receive(mut stream: TcpStream, count: &AtomicU64) -> (f64, Option<String>) {
    stream.set_read_timeout(Some(STILL)).unwrap();
    let mut chunk = vec![0; CHUNK];
    let (mut next, mut longest) = (0_u64, 0.0_f64);
    loop {
        let before = Instant::now();
        let length = match stream.read(&mut chunk[..8]) {
            Ok(0) => return (longest, None),
            Ok(length) => length,
            Err(error) => return (longest, Some(error.to_string())),
        };
        longest = longest.max(before.elapsed().as_secs_f64());
        if let Err(error) = stream.read_exact(&mut chunk[length..]) {
            // The server ends only after a whole chunk.
            return (longest, Some(error.to_string()));
        }
        for word in chunk.chunks_exact(8) {
            if word != next.to_be_bytes() {
                return (longest, Some(format!("another word than {next}")));
            }
            next += 1;
        }
        count.fetch_add(CHUNK as u64, Ordering::Relaxed);
    }
}
