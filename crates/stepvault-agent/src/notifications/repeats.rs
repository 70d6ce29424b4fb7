//! Remembers what was sent, so that the same is not sent again within an hour.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepvault_core::RunName;
use stepvault_core::config::NotifyEvent;
use stepvault_engine::blocking::blocking;
use stepvault_local::{Vault, clock};

/// The name of the note in the vault. A restart loop, or a restore that is repeated, is another process each time.
const NOTE: &str = "notifications.json";
/// The same is sent again after this time.
const AGAIN_AFTER_SECONDS: i64 = 3600;
/// Maximum number of causes stored for one event of a run; beyond that, some are repeated.
const MAX_CAUSES: usize = 16;
/// Maximum length of a stored cause, in characters.
const MAX_CAUSE: usize = 300;

/// What was sent of one run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Sent(BTreeMap<NotifyEvent, Vec<SentCause>>);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SentCause {
    cause: String,
    /// When it was sent, in seconds since 1970.
    seconds: i64,
}

impl Sent {
    /// Whether this is to be sent at `now`, in seconds since 1970; records it then.
    fn is_due(&mut self, event: NotifyEvent, cause: &str, now: i64) -> bool {
        let sent = self.0.entry(event).or_default();
        // A time in the future is of a clock that was set.
        sent.retain(|one| (0..AGAIN_AFTER_SECONDS).contains(&now.saturating_sub(one.seconds)));
        if sent.iter().any(|one| one.cause == cause) {
            return false;
        }
        if sent.len() >= MAX_CAUSES {
            sent.remove(0);
        }
        sent.push(SentCause { cause: cause.to_owned(), seconds: now });
        true
    }

    /// Forgets that this was sent; returns whether it was.
    fn forget(&mut self, event: NotifyEvent, cause: &str) -> bool {
        let sent = self.0.entry(event).or_default();
        let before = sent.len();
        sent.retain(|one| one.cause != cause);
        sent.len() < before
    }
}

/// The notifications that were sent of each run. They are kept in the vault; in memory where there is no vault, or it cannot be
/// written.
#[derive(Debug)]
pub(super) struct Repeats {
    vault: Option<Vault>,
    by_run: BTreeMap<RunName, Sent>,
}

impl Repeats {
    pub(super) fn new(vault: Option<Vault>) -> Self {
        Self { vault, by_run: BTreeMap::new() }
    }

    /// Whether this is to be sent: the same was not within the last hour.
    pub(super) async fn is_due(&mut self, event: NotifyEvent, run: &RunName, cause: &str) -> bool {
        let cause: String = cause.chars().take(MAX_CAUSE).collect();
        let mut sent = self.sent(run).await;
        let is_due = sent.is_due(event, &cause, clock::now().seconds);
        if is_due {
            self.note(run, &sent).await;
            self.by_run.insert(run.clone(), sent);
        }
        is_due
    }

    /// Forgets that this was sent.
    pub(super) async fn forget(&mut self, event: NotifyEvent, run: &RunName, cause: &str) {
        let cause: String = cause.chars().take(MAX_CAUSE).collect();
        let mut sent = self.sent(run).await;
        if sent.forget(event, &cause) {
            self.note(run, &sent).await;
            self.by_run.insert(run.clone(), sent);
        }
    }

    async fn sent(&self, run: &RunName) -> Sent {
        match self.noted(run).await {
            Some(noted) => noted,
            None => self.by_run.get(run).cloned().unwrap_or_default(),
        }
    }

    async fn noted(&self, run: &RunName) -> Option<Sent> {
        let (vault, run) = (self.vault.clone()?, run.clone());
        let read = blocking(move || vault.read_note(&run, NOTE)).await.ok()??;
        serde_json::from_slice(&read).ok()
    }

    async fn note(&self, run: &RunName, sent: &Sent) {
        let (Some(vault), Ok(bytes)) = (self.vault.clone(), serde_json::to_vec(sent)) else {
            return;
        };
        let run = run.clone();
        if let Err(error) = blocking(move || vault.write_note(&run, NOTE, &bytes)).await {
            tracing::debug!(%error, "cannot record in the vault that a notification was sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_sent_once_an_hour_and_a_change_at_once() {
        let mut sent = Sent::default();
        let (event, other) = (NotifyEvent::NotDurable, NotifyEvent::RestartLoop);
        assert!(sent.is_due(event, "a", 10_000) && sent.is_due(event, "b", 10_000));
        assert!(sent.is_due(other, "a", 10_001));
        assert!(!sent.is_due(event, "a", 10_001) && !sent.is_due(event, "a", 13_599));
        assert!(sent.is_due(event, "a", 13_600));
        assert!(!sent.is_due(event, "a", 13_601));
        // The clock was set back.
        assert!(sent.is_due(event, "a", 100));
        let read: Sent = serde_json::from_slice(&serde_json::to_vec(&sent).unwrap()).unwrap();
        assert!(!read.clone().is_due(event, "a", 101), "{read:?}");
    }
}
