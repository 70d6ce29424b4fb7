//! A running agent, and the lines that it prints and logs.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::check::Harm;
use crate::world::{RUN, World};

/// A running agent; it is killed when dropped.
pub(crate) struct Agent {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

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
        let mut child = world.order(["agent", "--config", "agent.toml", "-vvv"]).start();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (said, stderr) = (Arc::clone(&lines), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                said.lock().unwrap().push(line);
            }
        });
        Self { child, lines }
    }

    /// Returns the number of lines that contain one of `parts`.
    pub(crate) fn count(&self, parts: &[&str]) -> usize {
        let lines = self.lines.lock().unwrap();
        let holds = |line: &&String| parts.iter().any(|part| line.contains(part));
        lines.iter().filter(holds).count()
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// What it said, if it does not.
    pub(crate) fn lives(&mut self) -> Result<(), Harm> {
        match self.child.try_wait().unwrap() {
            None => Ok(()),
            Some(ended) => {
                let lines = self.lines.lock().unwrap().join("\n");
                Err(Harm::Stuck(format!("the agent ended with {ended}: {lines}")))
            }
        }
    }

    /// Waits until a line contains one of `parts`, and returns how long it took.
    pub(crate) fn wait_for(&mut self, parts: &[&str], patience: Duration) -> Result<Duration, Harm> {
        let begun = Instant::now();
        while self.count(parts) == 0 {
            self.lives()?;
            if begun.elapsed() > patience {
                let lines = self.lines.lock().unwrap().join("\n");
                return Err(Harm::Stuck(format!("it never said {parts:?}: {lines}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(begun.elapsed())
    }

    /// Ends it in order.
    pub(crate) fn end(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
