//! A running agent, and the lines that it prints and logs.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stepvault_testkit::process::{TestProcess, wait_until};

use crate::faults::check::Harm;
use crate::faults::world::{RUN, World};

/// A running agent; it is killed when dropped.
pub(crate) struct Agent(TestProcess);

impl Agent {
    pub(crate) fn start(world: &World) -> Self {
        let url = world.remote();
        let configuration = format!(
            "format = 1\n[local]\ndirectory = {:?}\n[remote.store]\nurl = {:?}\n[run.{RUN:?}]\nwatch = \
             \"outputs\"\ncomplete = \"rename\"\npattern = \"step_*\"\n",
            world.vault.to_str().unwrap(),
            url.strip_prefix("store=").unwrap()
        );
        fs::write(world.root.join("agent.toml"), configuration).unwrap();
        Self(world.order(["agent", "--config", "agent.toml", "-vvv"]).start())
    }

    /// Returns the number of lines that contain one of `parts`.
    pub(crate) fn count(&self, parts: &[&str]) -> usize {
        let log = self.0.logged();
        let holds = |line: &&str| parts.iter().any(|part| line.contains(part));
        log.lines().filter(holds).count()
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// What it said, if it does not.
    pub(crate) fn lives(&mut self) -> Result<(), Harm> {
        self.0.ended().map_or(Ok(()), |ended| {
            let log = self.0.logged();
            Err(Harm::Stuck(format!("the agent ended with {ended}: {log}")))
        })
    }

    /// Waits until a line contains one of `parts`, and returns how long it took.
    pub(crate) fn wait_for(&mut self, parts: &[&str], patience: Duration) -> Result<Duration, Harm> {
        let begun = Instant::now();
        while self.count(parts) == 0 {
            self.lives()?;
            if begun.elapsed() > patience {
                let log = self.0.logged();
                return Err(Harm::Stuck(format!("it never said {parts:?}: {log}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(begun.elapsed())
    }

    /// Ends it in order.
    pub(crate) fn end(&mut self) {
        if self.0.ended().is_none() {
            self.0.signal(Signal::TERM);
        }
        wait_until("the agent ends", || self.0.ended().is_some());
    }
}
