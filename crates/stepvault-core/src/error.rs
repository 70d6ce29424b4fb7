//! The error type of all crates: the operation, its subject, the cause and a hint.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use strum::{EnumString, IntoStaticStr, VariantNames};

/// The result of every fallible operation in stepvault.
pub type Result<T> = std::result::Result<T, Error>;

/// Kinds of failure. A kind exists only if a user or a caller would act differently on it. Their names are part of the
/// contract of JSON documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// A failure of no more specific kind.
    Failed,
    /// The command line or the configuration is invalid.
    Usage,
    /// The requested object does not exist.
    NotFound,
    /// Checkpoints exist and none of them is valid.
    NoneValid,
    /// A tier cannot be reached, or did not answer in time.
    Unreachable,
    /// An object is in an archive: it can be read hours after that was requested.
    Archived,
    /// Another process holds the lock or the lease.
    Held,
    /// Bytes or records differ from what was written.
    Damaged,
    /// Something else has the name; a create-if-absent was refused.
    Conflict,
    /// A file changed, vanished or grew while it was read.
    SourceChanged,
    /// Credentials are missing, wrong or expired, or lack permission.
    Denied,
    /// The disk is full, its inodes are used up, or a quota is reached.
    NoSpace,
    /// The data was written in a newer format than this program reads.
    NewerFormat,
    /// A guard refused to delete.
    Refused,
    /// Ended by a signal or by the caller.
    Interrupted,
}

impl ErrorKind {
    /// Returns the kind's name for programs, in kebab-case.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the kind of this name; `Failed` for a name that this version does not know.
    pub fn from_name(name: &str) -> Self {
        name.parse().unwrap_or(Self::Failed)
    }
}

/// An error. `Display` prints `what: subject: why`; the caller prints the hint separately.
#[derive(Debug, Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Debug, Clone)]
struct Inner {
    kind: ErrorKind,
    what: String,
    subject: Option<String>,
    why: Option<String>,
    hint: Option<String>,
    /// `None` while the kind tells.
    retry: Option<Retry>,
    /// What became of the step, where that is the failure.
    step: Option<StepFate>,
    inconclusive: bool,
    needs_operator: bool,
}

/// When a retry may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    Soon,
    After(Duration),
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepFate {
    NameTaken,
    Pruned,
}

impl Error {
    /// Returns an error of `kind`; `what` names the failed operation: "cannot read the manifest".
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self {
            inner: Box::new(Inner {
                kind,
                what: what.into(),
                subject: None,
                why: None,
                hint: None,
                retry: None,
                step: None,
                inconclusive: false,
                needs_operator: false,
            }),
        }
    }

    /// Returns an error of `kind` about a file or directory.
    pub fn at(kind: ErrorKind, what: impl Into<String>, path: &Path) -> Self {
        Self::new(kind, what).on(path.display())
    }

    /// Sets the path, object or setting on which it failed.
    #[must_use]
    pub fn on(mut self, subject: impl fmt::Display) -> Self {
        self.inner.subject = Some(subject.to_string());
        self
    }

    /// Sets the cause.
    #[must_use]
    pub fn because(mut self, why: impl fmt::Display) -> Self {
        self.inner.why = Some(why.to_string());
        self
    }

    /// Sets the hint: what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.inner.hint = Some(hint.to_string());
        self
    }

    /// Sets the text of the underlying error as the cause, unless one was set.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let text = || chain_text(source.into().as_ref());
        self.inner.why.get_or_insert_with(text);
        self
    }

    /// Returns the same error with another kind.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.inner.kind = kind;
        self
    }

    /// Marks an error as transient although its kind does not imply it: a conditional write that collided with another
    /// one, or credentials that are about to be renewed.
    #[must_use]
    pub fn transient(mut self) -> Self {
        self.inner.retry = Some(Retry::Soon);
        self
    }

    /// Marks an error that says nothing about the object that was to be read. It concerns this process, such as too
    /// many open files, or the path to the object, such as a failing disk or network filesystem. The object must not
    /// be considered damaged or absent because of it.
    #[must_use]
    pub fn inconclusive(mut self) -> Self {
        self.inner.inconclusive = true;
        self
    }

    /// Returns whether it says nothing about the object that was to be read.
    pub fn is_inconclusive(&self) -> bool {
        self.inner.inconclusive
    }

    /// Marks an error that does not resolve by itself within the time of a retry, although its kind may: a filesystem
    /// that is not mounted, a sync that failed.
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.inner.retry = Some(Retry::Never);
        self
    }

    /// Returns whether it does not resolve by itself.
    pub fn is_lasting(&self) -> bool {
        self.inner.retry == Some(Retry::Never)
    }

    /// Removes the mark set by [`lasting`](Self::lasting), because the caller knows that the request may be retried.
    #[must_use]
    pub fn passing(mut self) -> Self {
        self.inner.retry = self.inner.retry.filter(|retry| *retry != Retry::Never);
        self
    }

    /// Marks a conflict over a step and attempt: something else has the name, and the step needs another attempt.
    #[must_use]
    pub fn name_taken(mut self) -> Self {
        self.inner.step = Some(StepFate::NameTaken);
        self
    }

    /// Returns whether the step can only be uploaded under another attempt.
    pub fn is_name_taken(&self) -> bool {
        self.inner.step == Some(StepFate::NameTaken)
    }

    /// Marks the failure as one of a step that was durable until retention removed it.
    #[must_use]
    pub fn pruned(mut self) -> Self {
        self.inner.step = Some(StepFate::Pruned);
        self
    }

    /// Returns whether the step was durable until retention removed it: nothing of it is needed any more.
    pub fn is_pruned(&self) -> bool {
        self.inner.step == Some(StepFate::Pruned)
    }

    /// Marks an error that only the operator can fix although its kind does not imply it: a certificate that is not
    /// trusted.
    #[must_use]
    pub fn for_operator(mut self) -> Self {
        self.inner.needs_operator = true;
        self
    }

    /// Returns whether only the operator can fix it: wrong credentials, a missing bucket, a certificate that is not
    /// trusted, a name that other data has. Such an operation is still retried, at long intervals.
    pub fn needs_operator(&self) -> bool {
        let by_kind = matches!(
            self.inner.kind,
            ErrorKind::Usage
                | ErrorKind::Conflict
                | ErrorKind::SourceChanged
                | ErrorKind::Denied
                | ErrorKind::NewerFormat
                | ErrorKind::Refused
        );
        self.inner.needs_operator || by_kind && !self.is_marked_transient()
    }

    /// Sets how long the other side asked to wait before a retry, and marks the error as transient.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.inner.retry = Some(Retry::After(wait));
        self
    }

    /// Returns whether a retry may succeed: true for every `Unreachable` that is not lasting, and for errors marked as
    /// transient.
    pub fn is_transient(&self) -> bool {
        self.is_marked_transient() || self.inner.kind == ErrorKind::Unreachable && !self.is_lasting()
    }

    fn is_marked_transient(&self) -> bool {
        matches!(self.inner.retry, Some(Retry::Soon | Retry::After(_)))
    }

    /// Returns how long the other side asked to wait before a retry, if it did.
    pub fn retry_after_wait(&self) -> Option<Duration> {
        match self.inner.retry {
            Some(Retry::After(wait)) => Some(wait),
            _ => None,
        }
    }

    /// Returns the kind, on which callers decide.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Returns the cause without the subject: it is the same for every object that fails for one reason.
    pub fn why_text(&self) -> Option<&str> {
        self.inner.why.as_deref()
    }

    /// Returns the hint, if there is one.
    pub fn hint_text(&self) -> Option<&str> {
        self.inner.hint.as_deref().filter(|hint| !hint.is_empty())
    }

    /// Returns the whole message in one line, with the hint in parentheses: for logs and reports.
    pub fn text_with_hint(&self) -> String {
        match self.hint_text() {
            Some(hint) => format!("{self} ({hint})"),
            None => self.to_string(),
        }
    }
}

/// Returns the error and its causes in one line; omits a cause that the text already contains.
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

// `why` already contains the text of the source; returning that here would print it twice.
impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_subject_why_in_that_order() {
        let error = Error::new(ErrorKind::NoSpace, "cannot seal the step")
            .on("/data/step_100/model.pt")
            .caused_by(std::io::Error::other("no space left"))
            .hint("free some space");
        assert_eq!(error.to_string(), "cannot seal the step: /data/step_100/model.pt: no space left");
        assert_eq!(error.hint_text(), Some("free some space"));
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(!error.is_transient());
    }

    #[test]
    fn what_only_a_person_can_mend_is_told_from_what_may_pass() {
        let of = |kind| Error::new(kind, "cannot upload");
        for kind in [ErrorKind::Denied, ErrorKind::Usage, ErrorKind::Conflict, ErrorKind::Refused] {
            assert!(of(kind).needs_operator(), "{kind:?}");
            assert!(!of(kind).transient().needs_operator(), "{kind:?}");
        }
        for kind in [ErrorKind::Unreachable, ErrorKind::NoSpace, ErrorKind::Damaged, ErrorKind::Failed] {
            assert!(!of(kind).needs_operator(), "{kind:?}");
        }
        let certificate = of(ErrorKind::Unreachable).for_operator();
        assert!(certificate.needs_operator() && certificate.is_transient());
        assert!(certificate.clone().needs_operator());
    }

    #[test]
    fn every_kind_is_found_by_its_name() {
        assert_eq!((ErrorKind::VARIANTS.len(), ErrorKind::NoneValid.name()), (15, "none-valid"));
        for name in ErrorKind::VARIANTS {
            assert_eq!(ErrorKind::from_name(name).name(), *name);
        }
        assert_eq!(ErrorKind::from_name("of a later version"), ErrorKind::Failed);
    }

    #[test]
    fn what_may_pass_says_so_and_a_copy_says_the_same() {
        assert!(Error::new(ErrorKind::Unreachable, "cannot read").is_transient());
        let lasting = Error::new(ErrorKind::Unreachable, "not mounted").lasting();
        assert!(!lasting.is_transient() && !lasting.clone().is_transient());
        let busy =
            Error::new(ErrorKind::Conflict, "cannot write").retry_after(Duration::from_secs(3)).clone();
        assert!(busy.is_transient());
        assert_eq!(busy.retry_after_wait(), Some(Duration::from_secs(3)));
    }
}
