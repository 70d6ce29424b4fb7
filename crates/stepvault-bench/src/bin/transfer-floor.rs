//! Measures the minimum cost of moving bytes on this machine: plain HTTP over a few blocking sockets, with or without a
//! hash. Benchmarks compare clients with it.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

const USAGE: &str = "\
usage: transfer-floor send    [--sha256|--blake3] HOST:PORT BUCKET/PREFIX FILE-OR-DIRECTORY
       transfer-floor receive [--sha256|--blake3] HOST:PORT BUCKET/PREFIX FILE-OR-DIRECTORY

Sends the file, or the files of the directory, in pieces of 8 MiB, each an object of its own, or receives as many bytes
into files of the same names and sizes, which have to be there. Over four connections; it verifies nothing.";

const PIECE_BYTES: u64 = 8 << 20;
/// Bytes that are received, hashed and written together, while they are in the cache.
const BLOCK_BYTES: usize = 256 << 10;
const CONNECTIONS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Send,
    Receive,
}

#[derive(Debug, Clone, Copy)]
enum Algorithm {
    Sha256,
    Blake3,
}

#[derive(Debug)]
enum Hasher {
    Sha256(Sha256),
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Blake3 => Self::Blake3(Box::default()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    /// Returns one byte of the digest: enough for the work to be done.
    fn finish(self) -> u8 {
        match self {
            Self::Sha256(hasher) => hasher.finalize()[0],
            Self::Blake3(hasher) => hasher.finalize().as_bytes()[0],
        }
    }
}

#[derive(Debug)]
struct Arguments {
    direction: Direction,
    hash: Option<Algorithm>,
    address: String,
    prefix: String,
    path: PathBuf,
}

/// A piece of a file.
#[derive(Debug)]
struct Piece {
    path: PathBuf,
    /// Held to write to the file: the kernel lets one writer in at a time, and the others would spin.
    turn: Arc<Mutex<()>>,
    /// The object's name.
    name: String,
    offset: u64,
    length: usize,
}

fn parse(words: impl Iterator<Item = String>) -> Option<Arguments> {
    let (options, words): (Vec<String>, Vec<String>) = words.partition(|word| word.starts_with("--"));
    let hash = match options.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["--sha256"] => Some(Algorithm::Sha256),
        ["--blake3"] => Some(Algorithm::Blake3),
        _ => return None,
    };
    let [direction, address, prefix, path] = <[String; 4]>::try_from(words).ok()?;
    Some(Arguments {
        direction: match direction.as_str() {
            "send" => Direction::Send,
            "receive" => Direction::Receive,
            _ => return None,
        },
        hash,
        address,
        prefix,
        path: path.into(),
    })
}

/// Returns the pieces of a file, or of all files in a directory.
fn pieces(path: &Path) -> io::Result<Vec<Piece>> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries: io::Result<Vec<_>> = path.read_dir()?.collect();
        files = entries?.iter().map(std::fs::DirEntry::path).collect();
        files.sort();
    }
    let mut pieces = Vec::new();
    for file in files {
        let size = file.metadata()?.len();
        let turn = Arc::default();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (number, offset) in (0..size.max(1)).step_by(8 << 20).enumerate() {
            let length = PIECE_BYTES.min(size - offset);
            pieces.push(Piece {
                path: file.clone(),
                turn: Arc::clone(&turn),
                name: format!("{name}.{number:05}"),
                offset,
                length: usize::try_from(length).map_err(io::Error::other)?,
            });
        }
    }
    Ok(pieces)
}

/// Transfers pieces over one connection until none is left.
fn work(arguments: &Arguments, pieces: &[Piece], next: &AtomicUsize) -> io::Result<()> {
    let stream = TcpStream::connect(&arguments.address)?;
    stream.set_nodelay(true)?;
    let mut answers = BufReader::with_capacity(256 << 10, stream.try_clone()?);
    let mut stream = stream;
    let mut buffer = Vec::new();
    let mut open: Option<(PathBuf, File)> = None;
    while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
        let file = match open.take() {
            Some((path, file)) if path == piece.path => file,
            _ => File::options()
                .read(true)
                .write(arguments.direction == Direction::Receive)
                .open(&piece.path)?,
        };
        let target = format!("/{}/{}", arguments.prefix, piece.name);
        match arguments.direction {
            Direction::Send => {
                buffer.resize(piece.length, 0);
                file.read_exact_at(&mut buffer, piece.offset)?;
                let checked = arguments.hash.map_or(0, |hash| {
                    let mut hasher = Hasher::new(hash);
                    hasher.update(&buffer);
                    hasher.finish()
                });
                write!(
                    stream,
                    "PUT {target} HTTP/1.1\r\nhost: {}\r\nx-checked: {checked}\r\ncontent-length: {}\r\n\r\n",
                    arguments.address, piece.length
                )?;
                stream.write_all(&buffer)?;
                let length = answer(&mut answers)?;
                io::copy(&mut answers.by_ref().take(length), &mut io::sink())?;
            }
            Direction::Receive => {
                write!(stream, "GET {target} HTTP/1.1\r\nhost: {}\r\n\r\n", arguments.address)?;
                let length = answer(&mut answers)?;
                if length != piece.length as u64 {
                    return Err(io::Error::other(format!("{target} has {length} bytes")));
                }
                let mut hasher = arguments.hash.map(Hasher::new);
                let mut received = 0;
                while received < piece.length {
                    buffer.resize(BLOCK_BYTES.min(piece.length - received), 0);
                    answers.read_exact(&mut buffer)?;
                    if let Some(hasher) = &mut hasher {
                        hasher.update(&buffer);
                    }
                    let _turn = piece.turn.lock().unwrap_or_else(PoisonError::into_inner);
                    file.write_all_at(&buffer, piece.offset + received as u64)?;
                    received += buffer.len();
                }
                std::hint::black_box(hasher.map(Hasher::finish));
            }
        }
        open = Some((piece.path.clone(), file));
    }
    Ok(())
}

/// Reads the head of an answer and returns the length of its body.
fn answer(answers: &mut BufReader<TcpStream>) -> io::Result<u64> {
    let mut line = String::new();
    answers.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other(format!("the server said {:?}", line.trim())));
    }
    let mut length = 0;
    loop {
        line.clear();
        answers.read_line(&mut line)?;
        if line.trim().is_empty() {
            return Ok(length);
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let pieces = pieces(&arguments.path)?;
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..CONNECTIONS).map(|_| scope.spawn(|| work(arguments, &pieces, &next))).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| io::Error::other("a thread panicked"))?)
    })
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfer-floor: {error}");
            ExitCode::FAILURE
        }
    }
}
