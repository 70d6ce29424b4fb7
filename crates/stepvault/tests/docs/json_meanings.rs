//! What each member of a JSON document means. A member without a line here fails the test.
pub(crate) fn meaning(document: &str, path: &str) -> &'static str {
    println!("{document}\t{path}");
    ""
}
