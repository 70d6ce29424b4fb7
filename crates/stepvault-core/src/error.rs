//! The one error type: what failed, on what, why, and what to do about it.

use std::fmt;
use std::time::Duration;

/// The result of everything fallible in stepvault.
pub type Result<T> = std::result::Result<T, Error>;

/// Kinds of failure, kept coarse: one exists only where a user (or a caller) would act differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Anything without a more telling kind.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// What was asked for does not exist.
    NotFound,
    /// Checkpoints exist and none of them is valid.
    NoneValid,
    /// A tier cannot be reached, or did not answer in time.
    Unreachable,
    /// Somebody else holds the lock or the lease.
    Held,
    /// Bytes or records are not what they were when they were written.
    Damaged,
    /// A name is taken by something else; create-if-absent lost.
    Conflict,
    /// A file changed, vanished or grew while it was read.
    SourceChanged,
    /// Credentials are missing, wrong, expired or not allowed to do this.
    Denied,
    /// The disk or its inodes are full, or a quota is reached.
    NoSpace,
    /// Written by a newer format than this program reads.
    NewerFormat,
    /// A guard refused to delete.
    Refused,
    /// Ended by a signal or by the caller.
    Interrupted,
}

impl ErrorKind {
    /// Every kind with its name, which is part of the contract of JSON documents.
    const NAMES: [(Self, &str); 14] = [
        (Self::Failed, "failed"),
        (Self::Usage, "usage"),
        (Self::NotFound, "not-found"),
        (Self::NoneValid, "none-valid"),
        (Self::Unreachable, "unreachable"),
        (Self::Held, "held"),
        (Self::Damaged, "damaged"),
        (Self::Conflict, "conflict"),
        (Self::SourceChanged, "source-changed"),
        (Self::Denied, "denied"),
        (Self::NoSpace, "no-space"),
        (Self::NewerFormat, "newer-format"),
        (Self::Refused, "refused"),
        (Self::Interrupted, "interrupted"),
    ];

    /// The kind's name for programs, in kebab-case.
    pub fn name(self) -> &'static str {
        let entry = Self::NAMES.iter().find(|(kind, _)| *kind == self);
        entry.map_or("failed", |(_, name)| name)
    }

    /// The kind of this name; `Failed` for one that this version does not know.
    pub fn from_name(name: &str) -> Self {
        let entry = Self::NAMES.iter().find(|(_, known)| *known == name);
        entry.map_or(Self::Failed, |(kind, _)| *kind)
    }
}

/// An error. `Display` prints `what: subject: why`; the hint is printed apart, by the caller.
#[derive(Debug)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    what: String,
    subject: Option<String>,
    why: Option<String>,
    hint: Option<String>,
    transient: bool,
    about_itself: bool,
    retry_after: Option<Duration>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `what` names the operation that failed: "cannot read the manifest".
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self {
            inner: Box::new(Inner {
                kind,
                what: what.into(),
                subject: None,
                why: None,
                hint: None,
                transient: false,
                about_itself: false,
                retry_after: None,
                source: None,
            }),
        }
    }

    /// Names the path, object or setting it failed on.
    #[must_use]
    pub fn on(mut self, subject: impl fmt::Display) -> Self {
        self.inner.subject = Some(subject.to_string());
        self
    }

    /// Says why, in words.
    #[must_use]
    pub fn because(mut self, why: impl fmt::Display) -> Self {
        self.inner.why = Some(why.to_string());
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.inner.hint = Some(hint.to_string());
        self
    }

    /// Keeps the underlying error; its text is the 'why' unless one was given.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source = source.into();
        if self.inner.why.is_none() {
            self.inner.why = Some(chain_text(source.as_ref()));
        }
        self.inner.source = Some(source);
        self
    }

    /// The same error under another kind.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.inner.kind = kind;
        self
    }

    /// Marks an error that may pass although its kind does not say so: a conditional write that met another one,
    /// credentials that are about to be renewed.
    #[must_use]
    pub fn transient(mut self) -> Self {
        self.inner.transient = true;
        self
    }

    /// Marks an error of this very process, such as too many open files: it tells nothing of what was to be looked at.
    #[must_use]
    pub fn about_itself(mut self) -> Self {
        self.inner.about_itself = true;
        self
    }

    /// Whether it is about this process, and tells nothing of what was to be looked at.
    pub fn is_about_itself(&self) -> bool {
        self.inner.about_itself
    }

    /// Says how long the other side asked to be left alone; such an error may pass.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.inner.transient = true;
        self.inner.retry_after = Some(wait);
        self
    }

    /// Whether trying the same again may help: everything `Unreachable`, and what was marked so.
    pub fn is_transient(&self) -> bool {
        self.inner.transient || self.inner.kind == ErrorKind::Unreachable
    }

    /// How long the other side asked to be left alone, if it did.
    pub fn retry_after_wait(&self) -> Option<Duration> {
        self.inner.retry_after
    }

    /// What a caller would decide on.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// What to do about it, when there is something to say.
    pub fn hint_text(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    /// A copy for a second reader (an observer, a report); the source stays with the original.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        Self {
            inner: Box::new(Inner {
                kind: self.inner.kind,
                what: self.inner.what.clone(),
                subject: self.inner.subject.clone(),
                why: self.inner.why.clone(),
                hint: self.inner.hint.clone(),
                transient: self.inner.transient,
                about_itself: self.inner.about_itself,
                retry_after: self.inner.retry_after,
                source: None,
            }),
        }
    }
}

/// The error and its causes in one line, leaving out a cause that the line before already repeats.
fn chain_text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.inner.what)?;
        if let Some(subject) = &self.inner.subject {
            write!(out, ": {subject}")?;
        }
        if let Some(why) = &self.inner.why {
            write!(out, ": {why}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The cause's text already stands in `why`; handing it on as well would print it twice.
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_subject_why_in_that_order() {
        let error = Error::new(ErrorKind::NoSpace, "cannot seal the step")
            .on("/data/step_100/model.pt")
            .caused_by(std::io::Error::other("no space left"))
            .hint("free some space");
        assert_eq!(
            error.to_string(),
            "cannot seal the step: /data/step_100/model.pt: no space left"
        );
        assert_eq!(error.hint_text(), Some("free some space"));
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(!error.is_transient());
    }

    #[test]
    fn every_kind_is_found_by_its_name() {
        for (kind, name) in ErrorKind::NAMES {
            assert_eq!((kind.name(), ErrorKind::from_name(name)), (name, kind));
        }
        assert_eq!(ErrorKind::from_name("of a later version"), ErrorKind::Failed);
    }

    #[test]
    fn what_may_pass_says_so_and_a_copy_says_the_same() {
        assert!(Error::new(ErrorKind::Unreachable, "cannot read").is_transient());
        let busy = Error::new(ErrorKind::Conflict, "cannot write")
            .retry_after(Duration::from_secs(3))
            .duplicate();
        assert!(busy.is_transient());
        assert_eq!(busy.retry_after_wait(), Some(Duration::from_secs(3)));
    }
}
