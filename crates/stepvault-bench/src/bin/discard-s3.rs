//! Runs the discarding S3 server for benchmarks until it is killed.

use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use stepvault_testkit::discard::{Delays, DiscardStore, pattern, serve};
use stepvault_testkit::tls::{Acceptor, Authority, Validity};
use tokio::net::TcpListener;
use tokio::runtime::Builder;

const USAGE: &str = "\
usage: discard-s3 [--threads N] [--port P] [--tls FILE] [--latency-ms N] [--rate-mib N] [--seed BUCKET/KEY=BYTES]... [--seed-many BUCKET/PREFIX=COUNTxBYTES]... [--load BUCKET=DIRECTORY]
       discard-s3 --emit-pattern BYTES

Serves S3 on loopback and throws bodies away. Seeded objects can be read at once. --load puts the
small files of a directory into a bucket, with their bytes. --emit-pattern writes the bytes
that generated objects consist of, for source files whose downloads can be verified.
--tls serves HTTPS with a certificate of an authority of its own, whose certificate it writes to FILE.
--latency-ms and --rate-mib delay each answer, as a network of that latency and that rate per connection would.
GET /.counts answers with the requests, connections, TLS handshakes and resumed sessions since it was last read.
After GET /.forget the connections that are open are silent, as if a NAT had forgotten them; new ones work.";

struct Arguments {
    threads: usize,
    port: u16,
    store: DiscardStore,
    emit_bytes: Option<u64>,
    delays: Delays,
    acceptor: Acceptor,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        threads: 1,
        port: 0,
        store: DiscardStore::default(),
        emit_bytes: None,
        delays: Delays::default(),
        acceptor: Acceptor::default(),
    };
    while let Some(option) = words.next() {
        let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
        let wrong = || format!("{option} does not take {value:?}");
        match option.as_str() {
            "--threads" => arguments.threads = value.parse().map_err(|_| wrong())?,
            "--port" => arguments.port = value.parse().map_err(|_| wrong())?,
            "--tls" => {
                let authority = Authority::new();
                authority.write(Path::new(&value));
                arguments.acceptor = authority.acceptor(Validity::Valid);
            }
            "--latency-ms" => {
                arguments.delays.latency = Duration::from_millis(value.parse().map_err(|_| wrong())?);
            }
            "--rate-mib" => {
                let rate: u64 = value.parse().map_err(|_| wrong())?;
                arguments.delays.bytes_per_second = Some(rate << 20);
            }
            "--emit-pattern" => arguments.emit_bytes = Some(value.parse().map_err(|_| wrong())?),
            "--seed" => {
                let (path, bytes) = value.split_once('=').ok_or_else(wrong)?;
                arguments.store.seed(path, bytes.parse().map_err(|_| wrong())?);
            }
            "--seed-many" => {
                let (prefix, sizes) = value.split_once('=').ok_or_else(wrong)?;
                let (count, bytes) = sizes.split_once('x').ok_or_else(wrong)?;
                let bytes = bytes.parse().map_err(|_| wrong())?;
                for number in 0..count.parse::<u32>().map_err(|_| wrong())? {
                    arguments.store.seed(&format!("{prefix}{number:06}"), bytes);
                }
            }
            "--load" => {
                let (bucket, directory) = value.split_once('=').ok_or_else(wrong)?;
                let loaded = arguments.store.load(bucket, Path::new(directory));
                loaded.map_err(|error| format!("cannot load {directory}: {error}"))?;
            }
            _ => return Err(format!("unknown option {option}")),
        }
    }
    Ok(arguments)
}

fn emit(mut remaining_bytes: u64) -> io::Result<()> {
    let mut output = io::stdout().lock();
    while remaining_bytes > 0 {
        let chunk = pattern();
        let length = usize::try_from(remaining_bytes).unwrap_or(chunk.len()).min(chunk.len());
        output.write_all(&chunk[..length])?;
        remaining_bytes -= length as u64;
    }
    output.flush()
}

fn run(arguments: Arguments) -> io::Result<()> {
    if let Some(bytes) = arguments.emit_bytes {
        return emit(bytes);
    }
    // One thread needs no scheduler between its tasks.
    let runtime = if arguments.threads <= 1 {
        Builder::new_current_thread().enable_all().build()?
    } else {
        Builder::new_multi_thread().worker_threads(arguments.threads).enable_all().build()?
    };
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, arguments.port)).await?;
        println!("listening on {}://{}", arguments.acceptor.scheme(), listener.local_addr()?);
        io::stdout().flush()?;
        serve(listener, arguments.acceptor, arguments.store, arguments.delays).await;
        Ok(())
    })
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("{problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("discard-s3: {error}");
            ExitCode::FAILURE
        }
    }
}
