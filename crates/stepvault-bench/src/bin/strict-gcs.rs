//! Runs the strict Google Cloud Storage server for benchmarks until it is killed. It keeps the objects in memory and compares
//! every checksum that it is sent.

use std::io::{self, Write as _};

use stepvault_testkit::gcs::StrictGcs;

fn main() -> io::Result<()> {
    let server = StrictGcs::start();
    server.create_bucket("bench");
    println!("listening on {}", server.endpoint());
    io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}
