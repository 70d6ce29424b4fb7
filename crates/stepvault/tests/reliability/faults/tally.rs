//! The results of a sweep: a row of the table that `scripts/fault` prints.

use std::io::Write as _;

use serde_json::json;

use crate::faults::check::Harm;

/// The counts of one row.
#[derive(Debug)]
pub(crate) struct Tally {
    section: &'static str,
    what: String,
    seed: u64,
    pub(crate) runs: usize,
    /// The number of faults that took place: a run may end before its fault.
    pub(crate) faults: usize,
    /// The number of acknowledgements that had to hold.
    pub(crate) acknowledged: usize,
    lost: usize,
    torn: usize,
    stuck: usize,
    /// A note beside the counts.
    pub(crate) note: String,
    stories: Vec<String>,
}

/// Prints a line of these tests.
pub(crate) fn say(text: &str) {
    crate::say(&format!("faults: {text}"));
}

impl Tally {
    pub(crate) fn new(section: &'static str, what: &str, seed: u64) -> Self {
        Self {
            section,
            what: what.to_owned(),
            seed,
            runs: 0,
            faults: 0,
            acknowledged: 0,
            lost: 0,
            torn: 0,
            stuck: 0,
            note: String::new(),
            stories: Vec::new(),
        }
    }

    /// Records what a run did wrong.
    pub(crate) fn harmed(&mut self, at: &str, harm: Harm) {
        let (count, story) = match harm {
            Harm::Lost(story) => (&mut self.lost, story),
            Harm::Torn(story) => (&mut self.torn, story),
            Harm::Stuck(story) => (&mut self.stuck, story),
        };
        *count += 1;
        if self.stories.len() < 5 {
            self.stories.push(format!("{at}: {}", story.chars().take(1500).collect::<String>()));
        }
    }

    /// Records what a run did wrong, if anything; returns its result otherwise.
    pub(crate) fn record<T>(&mut self, at: &str, outcome: Result<T, Harm>) -> Option<T> {
        outcome.map_err(|harm| self.harmed(at, harm)).ok()
    }

    /// Returns an upper bound on the number of runs that did anything wrong.
    pub(crate) fn harms(&self) -> usize {
        self.lost + self.torn + self.stuck
    }

    /// Prints the row, and adds it to the report that `FAULTS_REPORT` names.
    pub(crate) fn report(&self) {
        say(&format!(
            "{}, {} (seed {}): {} runs, {} faults, {} acknowledged, {} lost, {} torn, {} stuck{}{}",
            self.section,
            self.what,
            self.seed,
            self.runs,
            self.faults,
            self.acknowledged,
            self.lost,
            self.torn,
            self.stuck,
            if self.note.is_empty() { "" } else { "; " },
            self.note,
        ));
        let Some(path) = std::env::var_os("FAULTS_REPORT") else {
            return;
        };
        let row = json!({
            "section": self.section, "what": self.what, "seed": self.seed, "runs": self.runs, "faults": self.faults,
            "acknowledged": self.acknowledged, "lost": self.lost, "torn": self.torn, "stuck": self.stuck,
            "note": self.note,
        });
        let mut report = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        report.write_all(format!("{row}\n").as_bytes()).unwrap();
    }

    /// Fails if anything went wrong.
    #[track_caller]
    pub(crate) fn assert_no_harm(&self) {
        assert!(self.harms() == 0, "{} {}:\n{}", self.section, self.what, self.stories.join("\n"));
        assert!(self.faults > 0, "nothing was injected");
    }
}
