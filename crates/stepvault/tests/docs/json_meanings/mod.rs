//! The meaning of each member of the JSON documents. A member without an entry here fails the test.

mod anywhere;
mod of_documents;
mod of_estimates;

use self::anywhere::ANYWHERE;
use self::of_documents::OF_DOCUMENTS;
use self::of_estimates::OF_ESTIMATES;

/// The meaning of the member at `path` of the document called `document`.
pub(crate) fn meaning(document: &str, path: &str) -> &'static str {
    let exact = OF_DOCUMENTS
        .iter()
        .chain(OF_ESTIMATES)
        .find(|(its_document, its_path, _)| *its_document == document && *its_path == path);
    let name = path.rsplit('.').next().unwrap_or(path);
    let anywhere = || ANYWHERE.iter().find(|(its_name, _)| *its_name == name);
    exact
        .map(|(.., meaning)| *meaning)
        .or_else(|| anywhere().map(|(_, meaning)| *meaning))
        .unwrap_or_else(|| panic!("nothing says what {path} means in the document of '{document}'"))
}
