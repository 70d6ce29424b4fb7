//! Suggestions for mistyped words.

/// Length of the longest word that is compared with others.
const LONGEST_WORD_BYTES: usize = 200;

/// Returns the candidate nearest to `word`, if it is near enough to be a typing error.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Such a long word is not a typing error, and its distance would take long to compute.
    if word.len() > LONGEST_WORD_BYTES {
        return None;
    }
    let most = (word.chars().count() / 3).max(2);
    let measured = candidates.into_iter().map(|candidate| {
        (strsim::damerau_levenshtein(&word.to_lowercase(), &candidate.to_lowercase()), candidate)
    });
    let (distance, candidate) = measured.min_by_key(|(distance, _)| *distance)?;
    (distance <= most && distance < word.chars().count()).then_some(candidate)
}
