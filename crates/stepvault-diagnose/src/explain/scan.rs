//! Reads a log of any size and content, line by line, in bounded memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use super::texts::{Recogniser, TEXTS};
use super::{Cause, Evidence, EvidenceSource, LogPosition};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// A longer line is examined in pieces of this length.
const PIECE_BYTES: usize = 16 << 10;
/// The overlap of the pieces of a long line, so that no text is split.
const OVERLAP_BYTES: usize = 1 << 10;
/// Maximum length of a quote, in bytes.
const QUOTE_BYTES: usize = 240;
/// A start that failed this often for the same reason in one log was repeated in a loop.
const LOOP_TIMES: u64 = 3;

/// A text that was recognised in a log.
#[derive(Debug, Clone)]
pub struct Sighting {
    /// The text of the table.
    pub recogniser: &'static Recogniser,
    /// Number of lines that contain it.
    pub times: u64,
    /// The last of these lines, from 1, counted from where the reading began.
    pub line: u64,
    /// The offset of that line, from where the reading began.
    pub offset_bytes: u64,
    /// The quoted text, shortened.
    pub quote: String,
}

/// What was found in a log.
#[derive(Debug, Clone, Default)]
pub struct LogScan {
    /// The recognized texts, each once.
    pub sightings: Vec<Sighting>,
    /// Lines that were read.
    pub lines: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

/// Recognizes texts of the table.
#[derive(Debug)]
pub struct Scanner {
    set: RegexSet,
}

impl Default for Scanner {
    fn default() -> Self {
        let patterns = TEXTS.iter().map(|recogniser| &recogniser.pattern);
        // A test compiles every pattern; a table that cannot be compiled recognizes nothing.
        let set = RegexSetBuilder::new(patterns).unicode(false).build().unwrap_or_else(|_| RegexSet::empty());
        Self { set }
    }
}

impl Scanner {
    /// Reads to the end. A carriage return ends a line too, as in progress bars, but is not counted as a line.
    ///
    /// # Errors
    /// The errors of `log`.
    pub fn scan(&self, mut log: impl Read) -> io::Result<LogScan> {
        let mut reading = Reading::new(self);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = match log.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            reading.take(buffer.get(..count).unwrap_or_default());
        }
        Ok(reading.end())
    }

    /// Returns the recognizers that match one text, such as the reason in a record.
    pub fn recognise(&self, text: &str) -> Vec<&'static Recogniser> {
        let matches = self.set.matches(text.as_bytes());
        matches.into_iter().filter_map(|index| TEXTS.get(index)).collect()
    }
}

/// A log that is being read.
struct Reading<'a> {
    scanner: &'a Scanner,
    sightings: BTreeMap<usize, Sighting>,
    windows: BTreeMap<usize, Regex>,
    /// The part of the line that was read.
    piece: Vec<u8>,
    line: u64,
    line_offset_bytes: u64,
    bytes: u64,
}

impl<'a> Reading<'a> {
    fn new(scanner: &'a Scanner) -> Self {
        Self {
            scanner,
            sightings: BTreeMap::new(),
            windows: BTreeMap::new(),
            piece: Vec::with_capacity(PIECE_BYTES),
            line: 1,
            line_offset_bytes: 0,
            bytes: 0,
        }
    }

    fn take(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let room = PIECE_BYTES - self.piece.len();
            let length = end.unwrap_or(rest.len());
            let (fitting, more) = rest.split_at(length.min(room));
            self.piece.extend_from_slice(fitting);
            self.bytes += fitting.len() as u64;
            rest = more;
            if length > room {
                self.look();
                self.piece.drain(..PIECE_BYTES - OVERLAP_BYTES);
            } else if let Some((ending, more)) = rest.split_first() {
                self.look();
                self.piece.clear();
                self.bytes += 1;
                if *ending == b'\n' {
                    self.line += 1;
                }
                self.line_offset_bytes = self.bytes;
                rest = more;
            }
        }
    }

    fn end(mut self) -> LogScan {
        let has_more = !self.piece.is_empty();
        self.look();
        LogScan {
            sightings: self.sightings.into_values().collect(),
            lines: self.line - u64::from(!has_more),
            bytes: self.bytes,
        }
    }

    fn look(&mut self) {
        if self.piece.is_empty() {
            return;
        }
        for index in self.scanner.set.matches(&self.piece) {
            let Some(recogniser) = TEXTS.get(index) else {
                continue;
            };
            let known = self.sightings.get(&index);
            // The pieces of one line, and the updates of a progress bar, count once.
            let is_new = known.is_none_or(|known| known.line != self.line);
            let times = known.map_or(0, |known| known.times) + u64::from(is_new);
            let quote = quote(&self.piece, &mut self.windows, index, recogniser);
            let sighting =
                Sighting { recogniser, times, line: self.line, offset_bytes: self.line_offset_bytes, quote };
            self.sightings.insert(index, sighting);
        }
    }
}

/// Returns the matching part of a line as printable text.
fn quote(
    piece: &[u8],
    windows: &mut BTreeMap<usize, Regex>,
    index: usize,
    recogniser: &'static Recogniser,
) -> String {
    if piece.len() <= QUOTE_BYTES {
        return plain(piece);
    }
    if let std::collections::btree_map::Entry::Vacant(entry) = windows.entry(index)
        && let Ok(regex) = RegexBuilder::new(&recogniser.pattern).unicode(false).build()
    {
        entry.insert(regex);
    }
    let found = windows.get(&index).and_then(|regex| regex.find(piece));
    let found = found.map_or(0..0, |found| found.range());
    // A third of the quote precedes the match.
    let start = found.start.saturating_sub(QUOTE_BYTES / 3);
    let end = (start + QUOTE_BYTES).min(piece.len());
    let start = end.saturating_sub(QUOTE_BYTES).min(start);
    let text = plain(piece.get(start..end).unwrap_or_default());
    let before = if start > 0 { "…" } else { "" };
    let after = if end < piece.len() { "…" } else { "" };
    format!("{before}{text}{after}")
}

/// Returns bytes as one printable line: without escape sequences and control characters, at most as long as a quote.
fn plain(bytes: &[u8]) -> String {
    let mut text = String::new();
    let lossy = String::from_utf8_lossy(bytes);
    let mut characters = lossy.chars().peekable();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            // Escape sequences, such as colours, end at a letter.
            if characters.next_if_eq(&'[').is_some() {
                while characters.next_if(|next| !next.is_ascii_alphabetic()).is_some() {}
                characters.next();
            }
        } else if character == '\t' {
            text.push(' ');
        } else if !character.is_control() {
            text.push(character);
        }
    }
    text.trim().to_owned()
}

/// Returns the evidence from a log. `recency` is the recency of the log itself; later texts in it count more. If
/// `skipped_bytes` at its beginning were not read, its lines have no numbers.
pub fn evidence_of(scan: &LogScan, file: &str, recency: u32, skipped_bytes: u64) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    let mut told = BTreeSet::new();
    let mut sightings: Vec<&Sighting> = scan.sightings.iter().collect();
    sightings.sort_by_key(|sighting| Reverse(sighting.recogniser.weight));
    for sighting in sightings {
        // A line counts once for each cause, however many texts match.
        if !told.insert((sighting.recogniser.cause, sighting.line)) {
            continue;
        }
        let (recogniser, times) = (sighting.recogniser, sighting.times);
        let share = sighting.line.saturating_mul(1000) / scan.lines.max(1);
        let share = u32::try_from(share).unwrap_or(1000);
        let said = |cause: Cause, weight: u32| Evidence {
            cause,
            kind: EvidenceSource::Log,
            weight,
            recency: recency.min(1000) * share.min(1000) / 1000,
            open: recogniser.open,
            text: recogniser.source.clone(),
            position: LogPosition {
                file: Some(file.to_owned()),
                line: (skipped_bytes == 0).then_some(sighting.line),
                offset_bytes: Some(skipped_bytes + sighting.offset_bytes),
                times,
            },
            quote: Some(sighting.quote.clone()),
        };
        evidence.push(said(recogniser.cause, recogniser.weight));
        if recogniser.cause == Cause::PathExists && times >= LOOP_TIMES {
            evidence.push(Evidence {
                text: format!("the same start failed {times} times in one log"),
                ..said(Cause::RestartLoop, 50)
            });
        }
    }
    evidence
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn only(log: &[u8]) -> Sighting {
        let scan = Scanner::default().scan(log).unwrap();
        assert_eq!(scan.sightings.len(), 1, "{:?}", scan.sightings);
        scan.sightings[0].clone()
    }

    #[test]
    fn the_patterns_compile() {
        assert_eq!(Scanner::default().set.len(), TEXTS.len());
    }

    #[test]
    fn lines_are_counted_and_the_last_of_several_is_told() {
        let log =
            b"one\nOSError: [Errno 28] No space left on device\nthree\r\nNo space left on device: 'x'\n";
        for length in [1, 7, 1000] {
            let scan = Scanner::default().scan(Drops(log, length)).unwrap();
            assert_eq!((scan.lines, scan.bytes), (4, log.len() as u64));
            let found = &scan.sightings[0];
            assert_eq!((found.times, found.line), (2, 4));
            assert_eq!(found.quote, "No space left on device: 'x'");
            assert_eq!(found.offset_bytes, 55);
        }
    }

    #[test]
    fn progress_bars_are_one_line_of_many_looks() {
        let mut log = b"  1%| | 1/9\r  2%| | 2/9\r".to_vec();
        log.extend(b"CUDA out of memory. Tried\r  3%| |\n");
        let found = only(&log);
        assert_eq!((found.line, found.times), (1, 1));
        assert_eq!(found.quote, "CUDA out of memory. Tried");
    }

    #[test]
    fn a_line_of_any_length_and_any_bytes_is_read_in_pieces() {
        for before in [0, PIECE_BYTES - 10, PIECE_BYTES * 5 - 3, 1 << 20] {
            let mut log = vec![0xff_u8; before];
            log.extend(b"Disk quota exceeded");
            log.extend(vec![0x80_u8; PIECE_BYTES * 2]);
            let found = only(&log);
            assert_eq!((found.line, found.times), (1, 1), "{before}");
            assert!(found.quote.contains("Disk quota exceeded"), "{}", found.quote);
            assert!(found.quote.len() < 4 * QUOTE_BYTES, "{}", found.quote.len());
        }
    }

    #[test]
    fn a_quote_is_safe_to_print() {
        let found = only(b"\x1b[31mOSError\x1b[0m: \x07[Errno 30]\tRead-only file system\x00 \xc3\xbc\xff");
        assert_eq!(found.quote, "OSError: [Errno 30] Read-only file system \u{fc}\u{fffd}");
    }

    #[test]
    fn what_comes_later_counts_more_and_a_start_that_fails_again_and_again_is_a_loop() {
        let clone = "fatal: destination path 'AReaL' already exists and is not an empty directory.\n";
        let scan = Scanner::default().scan(clone.repeat(3).as_bytes()).unwrap();
        let evidence = evidence_of(&scan, "docker.log", 1000, 0);
        let causes: Vec<Cause> = evidence.iter().map(|piece| piece.cause).collect();
        assert_eq!(causes, [Cause::PathExists, Cause::RestartLoop]);
        let position = &evidence[0].position;
        assert_eq!((position.line, position.times), (Some(3), 3));
        assert_eq!(evidence[1].text, "the same start failed 3 times in one log");
        let log = "No space left on device\nx\nDisk quota exceeded\n";
        let scan = Scanner::default().scan(log.as_bytes()).unwrap();
        let evidence = evidence_of(&scan, "a.log", 1000, 512);
        let of = |cause| evidence.iter().find(|piece| piece.cause == cause).unwrap();
        assert!(of(Cause::QuotaReached).recency > of(Cause::DiskFull).recency);
        let position = &of(Cause::QuotaReached).position;
        assert_eq!((position.line, position.offset_bytes), (None, Some(512 + 26)));
    }

    #[test]
    fn a_line_that_is_recognised_twice_counts_once() {
        let line =
            "Checkpoint barrier timeout on rank 1: Ranks 0 failed to pass monitoredBarrier in 120000 ms";
        let scan = Scanner::default().scan(line.as_bytes()).unwrap();
        assert_eq!(scan.sightings.len(), 2);
        let evidence = evidence_of(&scan, "a.log", 1000, 0);
        assert_eq!((evidence.len(), evidence[0].weight), (1, 45));
    }

    #[test]
    fn a_reason_in_a_record_is_recognised_too() {
        let found = Scanner::default().recognise("cannot write: s3://b/x: the credentials have expired");
        assert_eq!(found[0].cause, Cause::CredentialsExpired);
        assert!(Scanner::default().recognise("all is well").is_empty());
    }
}
