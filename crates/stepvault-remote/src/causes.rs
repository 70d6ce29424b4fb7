//! Looks into errors: of a missing object, and of clients that wrap the one that matters in several layers.

use std::error;

use stepvault_core::{ErrorKind, Result};

/// Returns the answer, or `None` where the object or upload does not exist.
pub(crate) fn if_found<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        answer => answer.map(Some),
    }
}

/// Returns the answer, or `None` where a condition was not met.
pub(crate) fn unless_conflict<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(None),
        answer => answer.map(Some),
    }
}

/// Returns an error and its causes, the outermost first.
pub(crate) fn causes<'a>(
    error: &'a (dyn error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// Returns the first error of type `T` in the chain.
pub(crate) fn find<'a, T: error::Error + 'static>(error: &'a (dyn error::Error + 'static)) -> Option<&'a T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// Returns the texts of an error and its causes, without empty ones and those that an earlier one contains.
pub(crate) fn distinct_texts(error: &(dyn error::Error + 'static)) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for text in causes(error).map(ToString::to_string) {
        if !text.is_empty() && !texts.iter().any(|earlier| earlier.contains(&text)) {
            texts.push(text);
        }
    }
    texts
}
