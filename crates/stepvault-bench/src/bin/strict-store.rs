//! Runs the strict server of one kind of store until it is killed: `strict-store s3|gcs BUCKET`. It keeps the objects in
//! memory and compares every checksum that it is sent. The key of the S3 server is `access` with `secret-secret`.

use std::io::{self, Write as _};

use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["s3", bucket] => {
            let server = StrictS3::start();
            server.create_bucket(bucket);
            server.issue_key("access", "secret-secret");
            serve(&server.endpoint())
        }
        ["gcs", bucket] => {
            let server = StrictGcs::start();
            server.create_bucket(bucket);
            serve(&server.endpoint())
        }
        _ => Err(io::Error::other("usage: strict-store s3|gcs BUCKET")),
    }
}

fn serve(endpoint: &str) -> io::Result<()> {
    println!("listening on {endpoint}");
    io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}
