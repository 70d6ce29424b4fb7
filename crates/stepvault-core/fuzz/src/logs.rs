//! Logs that trainers, kernels and launchers wrote.

use std::io::{self, Read};

use stepvault_diagnose::explain::{LogScan, Scanner, evidence_of};

/// Longest quote as it is printed: some of its bytes become three each.
const MAX_QUOTED_BYTES: usize = 4 * 240;

/// Gives a few bytes at a time, as a pipe does.
struct Drops<'a>(&'a [u8], usize);

impl Read for Drops<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.1.min(self.0.len()).min(buffer.len());
        let (now, later) = self.0.split_at(length);
        buffer[..length].copy_from_slice(now);
        self.0 = later;
        Ok(length)
    }
}

thread_local! {
    /// Its patterns take long to compile.
    static SCANNER: Scanner = Scanner::default();
}

/// The bytes as one log, read in one go and in pieces.
pub fn check(bytes: &[u8]) {
    SCANNER.with(|scanner| {
        let whole = scanner.scan(bytes).unwrap();
        let pieces = 1 + bytes.first().map_or(0, |byte| usize::from(*byte));
        let scan = scanner.scan(Drops(bytes, pieces)).unwrap();
        assert_eq!(format!("{whole:?}"), format!("{scan:?}"), "however it comes");
        check_scan(&whole, bytes);
        let _ = scanner.recognise(&String::from_utf8_lossy(bytes));
    });
}

fn check_scan(scan: &LogScan, bytes: &[u8]) {
    assert_eq!(scan.bytes, bytes.len() as u64);
    assert!(scan.lines <= scan.bytes);
    for sighting in &scan.sightings {
        assert!(sighting.times >= 1 && sighting.times <= scan.lines.max(1));
        assert!(sighting.line >= 1 && sighting.line <= scan.lines.max(1));
        assert!(sighting.offset_bytes < scan.bytes);
        assert!(!sighting.quote.chars().any(char::is_control), "{:?}", sighting.quote);
        assert!(sighting.quote.len() <= MAX_QUOTED_BYTES, "{:?}", sighting.quote);
    }
    for evidence in evidence_of(scan, "a.log", u32::MAX, u64::from(bytes.len() as u32)) {
        assert!(evidence.recency <= 1000, "{evidence:?}");
    }
}

/// What failing trainers write.
pub fn seeds() -> Vec<Vec<u8>> {
    let long = format!("{}Disk quota exceeded{}\n", "\u{1b}[31mx".repeat(4000), "\u{fffd}".repeat(9000));
    [
        "one\nOSError: [Errno 28] No space left on device\r\n  1%|\r  2%|\rCUDA out of memory. Tried to allocate\n",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n",
        "Out of memory: Killed process 4711 (python) total-vm:1kB\nexceeded your quota\n",
        "fatal: destination path 'x' already exists and is not an empty directory.\n",
        "An error occurred (ExpiredToken) when calling the PutObject operation: The provided token has expired.\n",
        "botocore.exceptions.NoCredentialsError: Unable to locate credentials\nSlowDown 503\n",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n",
        &long,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
