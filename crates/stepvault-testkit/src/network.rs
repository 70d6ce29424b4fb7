//! A network between clients and a server that is slow, and fails where a test requires it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::serve::ServerHandle;

/// Receive buffer and segment size of the connections to clients, so that bytes wait at their sender as they do before
/// a slow link: loopback itself would take some 5 MB of each connection at once.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
const SEGMENT_BYTES: u32 = 1460;
/// Bytes read from a socket at once.
const PIECE_BYTES: usize = 16 << 10;

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
}

/// A fault of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// Bytes up to this point are delivered, then both sides see a reset.
    Reset,
    /// Bytes up to this point are delivered, then both sides see a normal end.
    Close,
    /// Bytes in transit are lost with the connection. Towards a client this loses an answer whose request took effect.
    Lose,
    /// No byte moves any more, and the connection stays open.
    Stall,
    /// No byte moves for this time; then the transfer continues.
    Pause(Duration),
    /// A number of pieces of 64 bytes arrive one by one at this interval; then the transfer continues.
    Trickle {
        /// Number of pieces.
        pieces: u32,
        /// Time between two.
        apart: Duration,
    },
}

impl Mishap {
    /// Returns whether it ends the transfer on the connection.
    pub fn cuts(self) -> bool {
        !matches!(self, Self::Pause(_) | Self::Trickle { .. })
    }
}

/// A fault and its position: it affects the connection that carries this byte, counted over all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    /// The direction in which bytes are counted.
    pub direction: Direction,
    /// Number of bytes carried before it.
    pub after_bytes: u64,
    /// The fault.
    pub mishap: Mishap,
}

/// What the network has done so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes taken from clients, delivered or lost.
    pub to_server_bytes: u64,
    /// Bytes taken from the server, delivered or lost.
    pub to_client_bytes: u64,
    /// Faults that occurred.
    pub struck: Vec<Mishap>,
}

#[derive(Debug, Default)]
struct State {
    carried: Carried,
    /// Pending faults, in the order in which they occur in each direction.
    to_server: Vec<Trouble>,
    to_client: Vec<Trouble>,
    bytes_per_second: Option<u64>,
    each_bytes_per_second: Option<u64>,
    /// When the next piece may be sent, on a network with a limit.
    free_at: Option<Instant>,
}

/// A network on a free loopback port; stops when dropped.
#[derive(Debug)]
pub struct Network {
    handle: ServerHandle,
    state: Arc<Mutex<State>>,
}

impl Network {
    /// Creates a fast network to `server` without faults.
    pub fn to(server: SocketAddr) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let handle = ServerHandle::start(move |listener| serve(listener, server, shared))
            .expect("a loopback port and a thread for the network");
        Self { handle, state }
    }

    /// Returns the address for clients.
    pub fn address(&self) -> SocketAddr {
        self.handle.address()
    }

    /// Sets the maximum bytes per second over all connections in both directions, and per connection and direction.
    pub fn limit(&self, over_all: Option<u64>, on_each: Option<u64>) {
        let mut state = lock(&self.state);
        (state.bytes_per_second, state.each_bytes_per_second) = (over_all, on_each);
    }

    /// Resets the counters and schedules these faults.
    pub fn prepare(&self, troubles: &[Trouble]) {
        let mut state = lock(&self.state);
        state.carried = Carried::default();
        let of = |direction| {
            let mut of: Vec<Trouble> =
                troubles.iter().copied().filter(|trouble| trouble.direction == direction).collect();
            // Sorted so that the next one is last.
            of.sort_by_key(|trouble| std::cmp::Reverse(trouble.after_bytes));
            of
        };
        (state.to_server, state.to_client) = (of(Direction::ToServer), of(Direction::ToClient));
    }

    /// Returns what it has done since it was prepared.
    pub fn carried(&self) -> Carried {
        lock(&self.state).carried.clone()
    }
}

async fn serve(listener: TcpListener, server: SocketAddr, state: Arc<Mutex<State>>) {
    // Accepted connections inherit both.
    let socket = socket2::SockRef::from(&listener);
    socket
        .set_recv_buffer_size(RECEIVE_BUFFER_BYTES)
        .and_then(|()| socket.set_tcp_mss(SEGMENT_BYTES))
        .expect("a small receive buffer and small segments");
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            if let Ok(server) = TcpStream::connect(server).await {
                connect(client, server, &state).await;
            }
        });
    }
}

/// How a connection ended.
enum End {
    Ordinary,
    Reset,
}

async fn connect(mut client: TcpStream, mut server: TcpStream, state: &Mutex<State>) {
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            end = pump(from_client, to_server, Direction::ToServer, state) => end,
            end = pump(from_server, to_client, Direction::ToClient, state) => end,
        }
    };
    if matches!(end, End::Reset) {
        let (_, _) = (client.set_zero_linger(), server.set_zero_linger());
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    direction: Direction,
    state: &Mutex<State>,
) -> End {
    let mut piece = vec![0; PIECE_BYTES];
    let mut own_turn = Instant::now();
    loop {
        let length = match from.read(&mut piece).await {
            Ok(0) | Err(_) => return End::Ordinary,
            Ok(length) => length,
        };
        let (turn, trouble) = take(state, direction, length);
        if let Some(Turn { at, takes }) = turn {
            own_turn = own_turn.max(at);
            tokio::time::sleep_until(own_turn).await;
            own_turn += takes;
        }
        let bytes = &piece[..length];
        let Some((delivered, mishap)) = trouble else {
            if to.write_all(bytes).await.is_err() {
                return End::Ordinary;
            }
            continue;
        };
        let (before, after) = bytes.split_at(delivered);
        if mishap != Mishap::Lose && to.write_all(before).await.is_err() {
            return End::Ordinary;
        }
        match mishap {
            Mishap::Reset | Mishap::Lose => return End::Reset,
            Mishap::Close => return End::Ordinary,
            Mishap::Stall => return std::future::pending().await,
            Mishap::Pause(time) => tokio::time::sleep(time).await,
            Mishap::Trickle { .. } => {}
        }
        let rest = match mishap {
            Mishap::Trickle { pieces, apart } => {
                let (slow, rest) = after.split_at(after.len().min(64 * pieces as usize));
                for few in slow.chunks(64) {
                    if to.write_all(few).await.is_err() {
                        return End::Ordinary;
                    }
                    tokio::time::sleep(apart).await;
                }
                rest
            }
            _ => after,
        };
        if to.write_all(rest).await.is_err() {
            return End::Ordinary;
        }
    }
}

/// When a piece may be sent, and how long it occupies its own connection.
struct Turn {
    at: Instant,
    takes: Duration,
}

/// Counts a piece. Returns when it may be sent, and which fault occurs after how many of its bytes.
fn take(
    state: &Mutex<State>,
    direction: Direction,
    length: usize,
) -> (Option<Turn>, Option<(usize, Mishap)>) {
    let mut state = lock(state);
    let now = Instant::now();
    let time_at = |rate: u64| Duration::from_nanos(length as u64 * 1_000_000_000 / rate.max(1));
    let over_all = state.bytes_per_second.map(time_at);
    let takes = state.each_bytes_per_second.map(time_at);
    let turn = over_all.or(takes).map(|_| {
        let at = state.free_at.map_or(now, |free| free.max(now));
        state.free_at = Some(at + over_all.unwrap_or_default());
        Turn { at, takes: takes.unwrap_or_default() }
    });
    let State { carried, to_server, to_client, .. } = &mut *state;
    let (count, troubles) = match direction {
        Direction::ToServer => (&mut carried.to_server_bytes, to_server),
        Direction::ToClient => (&mut carried.to_client_bytes, to_client),
    };
    let before = *count;
    *count += length as u64;
    let strikes = troubles.last().is_some_and(|next| next.after_bytes < *count);
    let trouble = strikes.then(|| troubles.pop()).flatten().map(|trouble| {
        carried.struck.push(trouble.mishap);
        let delivered = usize::try_from(trouble.after_bytes.saturating_sub(before)).unwrap_or(0);
        (delivered.min(length), trouble.mishap)
    });
    (turn, trouble)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    /// Sends 100,000 bytes to a server that counts them and answers. Returns what the server received and what came
    /// back.
    fn send(troubles: &[Trouble]) -> (usize, std::io::Result<Vec<u8>>, Carried) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let network = Network::to(listener.local_addr().unwrap());
        network.prepare(troubles);
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let (mut had, mut piece) = (0, [0; 4096]);
            while had < 100_000 {
                match client.read(&mut piece) {
                    Ok(0) | Err(_) => return had,
                    Ok(length) => had += length,
                }
            }
            client.write_all(b"answer").unwrap();
            had
        });
        let mut client = TcpStream::connect(network.address()).unwrap();
        let mut answer = Vec::new();
        let outcome = client
            .write_all(&vec![7; 100_000])
            .and_then(|()| client.read_to_end(&mut answer))
            .map(|_| answer);
        drop(client);
        (server.join().unwrap(), outcome, network.carried())
    }

    fn trouble(direction: Direction, after_bytes: u64, mishap: Mishap) -> Trouble {
        Trouble { direction, after_bytes, mishap }
    }

    #[test]
    fn without_trouble_everything_arrives() {
        let (had, answer, carried) = send(&[]);
        assert_eq!((had, answer.unwrap().as_slice()), (100_000, b"answer".as_slice()));
        assert_eq!((carried.to_server_bytes, carried.to_client_bytes), (100_000, 6));
    }

    #[test]
    fn a_pause_and_a_trickle_change_nothing() {
        let slow = Mishap::Trickle { pieces: 3, apart: Duration::from_millis(1) };
        let (had, answer, carried) = send(&[
            trouble(Direction::ToServer, 10, Mishap::Pause(Duration::from_millis(1))),
            trouble(Direction::ToServer, 70_000, slow),
        ]);
        assert_eq!((had, answer.unwrap().as_slice()), (100_000, b"answer".as_slice()));
        assert_eq!(carried.struck.len(), 2);
    }

    #[test]
    fn a_cut_delivers_no_byte_behind_it() {
        for mishap in [Mishap::Reset, Mishap::Close, Mishap::Lose] {
            let (had, answer, carried) = send(&[trouble(Direction::ToServer, 50_000, mishap)]);
            assert!(had <= 50_000, "{mishap:?}: {had}");
            assert!(answer.is_err() || answer.unwrap().is_empty(), "{mishap:?}");
            assert_eq!(carried.struck, [mishap]);
        }
    }

    #[test]
    fn a_lost_answer_is_one_to_a_request_that_arrived() {
        let (had, answer, _) = send(&[trouble(Direction::ToClient, 3, Mishap::Lose)]);
        assert_eq!(had, 100_000);
        assert!(answer.is_err() || answer.unwrap().is_empty());
    }
}
