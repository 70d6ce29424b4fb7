//! A relay between a client and a server that damages bytes sent to the server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Listens on a free loopback port until the test's process ends.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    server: SocketAddr,
    needle: Vec<u8>,
    /// Number of occurrences still to be damaged.
    left: AtomicU64,
    /// Number of damaged occurrences.
    damaged: AtomicU64,
}

impl Relay {
    /// Starts a relay to `server` that flips one bit in each of the first `times` occurrences of `needle` in what
    /// clients send. The needle's first byte may occur in it only once.
    pub fn start(server: SocketAddr, needle: &[u8], times: u64) -> Self {
        assert!(!needle.is_empty(), "there is nothing to look for");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("its address");
        let state = Arc::new(State {
            server,
            needle: needle.to_vec(),
            left: AtomicU64::new(times),
            damaged: AtomicU64::new(0),
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || state.serve(&client));
            }
        });
        Self { address, state }
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of occurrences damaged so far.
    pub fn damaged(&self) -> u64 {
        self.state.damaged.load(Ordering::SeqCst)
    }
}

impl State {
    fn serve(&self, client: &TcpStream) {
        let Ok(server) = TcpStream::connect(self.server) else {
            return;
        };
        let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
        thread::scope(|scope| {
            scope.spawn(|| {
                pump(&server, client, |_| {});
                let _ = client.shutdown(Shutdown::Both);
                let _ = server.shutdown(Shutdown::Both);
            });
            let mut matched = 0;
            pump(client, &server, |bytes| self.damage(bytes, &mut matched));
            let _ = server.shutdown(Shutdown::Write);
        });
    }

    /// Damages occurrences; `matched` bytes of the needle are at the end of the preceding bytes.
    fn damage(&self, bytes: &mut [u8], matched: &mut usize) {
        for byte in bytes {
            if *byte == self.needle[*matched] {
                *matched += 1;
            } else {
                *matched = usize::from(*byte == self.needle[0]);
            }
            if *matched == self.needle.len() {
                *matched = 0;
                let took =
                    self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                if took.is_ok() {
                    *byte ^= 1;
                    self.damaged.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, change: impl FnMut(&mut [u8])) {
    let mut change = change;
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 {
            return;
        }
        change(&mut buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}
