//! Reports to the observer, without repetition.

use std::sync::Arc;

use stepvault_core::observe::Observer;

use crate::agent_status::AgentStatus;

/// Reports to the observer, and records in the agent's status what was reported. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Reporter {
    pub(crate) status: Arc<AgentStatus>,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Reporter {
    /// Reports information that is worth a log line.
    pub(crate) fn info(&self, message: &str) {
        self.observer.info(message);
    }

    /// Warns.
    pub(crate) fn warn(&self, message: &str) {
        self.observer.warn(message);
    }

    /// Warns, unless the same was said about the subject lately.
    pub(crate) fn warn_once(&self, subject: &str, message: &str) {
        self.warn_of_cause(subject, message, message);
    }

    /// Warns, unless the same cause was reported about the subject lately: the text may differ each time.
    pub(crate) fn warn_of_cause(&self, subject: &str, cause: &str, message: &str) {
        if self.status.is_new_warning(subject, cause) {
            self.warn(message);
        }
    }

    /// Records that there is nothing to warn of any more: the next warning about the subject is new.
    pub(crate) fn resolved(&self, subject: &str) {
        self.status.forget_warnings(subject);
    }
}
