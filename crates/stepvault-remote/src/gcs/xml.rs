//! The answers of Google's XML API as trees of elements, and text for the requests.

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesRef, Event};
use stepvault_core::{Error, ErrorKind, Result};

pub(super) use quick_xml::escape::escape;

/// The deepest nesting that is read; answers have three levels.
const MAX_DEPTH: usize = 16;

/// One element with the text and the elements inside it.
#[derive(Debug, Default)]
pub(super) struct Element {
    name: String,
    text: String,
    children: Vec<Element>,
}

/// Reads a document whose root must be called `name`.
///
/// # Errors
/// [`ErrorKind::Unreachable`] for any other document: the answer of something in between, or one that was cut off.
pub(super) fn root(document: &str, name: &str) -> Result<Element> {
    let fault = |why: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Unreachable, "cannot read the store's answer").because(why.to_string())
    };
    let mut reader = Reader::from_str(document);
    // The last one is being read; the first stands for the document.
    let mut open = vec![Element::default()];
    loop {
        let event = reader.read_event().map_err(|error| fault(&error))?;
        let Some(current) = open.last_mut() else {
            return Err(fault(&"it closes more elements than it opens"));
        };
        match event {
            Event::Start(start) => {
                if open.len() > MAX_DEPTH {
                    return Err(fault(&"its elements are nested too deep"));
                }
                open.push(Element::named(start.name().as_ref()));
            }
            Event::Empty(start) => current.children.push(Element::named(start.name().as_ref())),
            Event::End(_) => {
                if let Some(closed) = open.pop()
                    && let Some(parent) = open.last_mut()
                {
                    parent.children.push(closed);
                }
            }
            Event::Text(text) => current.text.push_str(&text.decode().map_err(|error| fault(&error))?),
            Event::GeneralRef(reference) => {
                let text = resolved(&reference).ok_or_else(|| fault(&"it has an unknown reference"))?;
                current.text.push_str(&text);
            }
            Event::Eof => break,
            Event::Decl(_) | Event::Comment(_) | Event::PI(_) => {}
            Event::CData(_) | Event::DocType(_) => {
                return Err(fault(&"it uses XML that no answer of this store has"));
            }
        }
    }
    let is_whole = open.len() == 1;
    let found = open
        .pop()
        .filter(|_| is_whole)
        .and_then(|document| document.children.into_iter().find(|element| element.name == name));
    found.ok_or_else(|| fault(&format!("it is not a whole <{name}> document")))
}

/// Returns the text that a character reference or one of XML's five entities stands for.
fn resolved(reference: &BytesRef<'_>) -> Option<String> {
    match reference.resolve_char_ref() {
        Ok(Some(character)) => Some(character.to_string()),
        Ok(None) => resolve_xml_entity(&reference.decode().ok()?).map(str::to_owned),
        Err(_) => None,
    }
}

impl Element {
    fn named(name: &[u8]) -> Self {
        Self { name: String::from_utf8_lossy(name).into_owned(), ..Self::default() }
    }

    /// Returns the elements called `name` inside, in order.
    pub(super) fn children(&self, name: &str) -> impl Iterator<Item = &Self> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// Returns the text of the first element called `name`; `None` when there is none.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.children(name).next().map(|element| element.text.clone())
    }

    /// Returns the text of an element that has to be there.
    pub(super) fn required(&self, name: &str) -> Result<String> {
        self.text(name).ok_or_else(|| {
            Error::new(ErrorKind::Unreachable, "cannot read the store's answer")
                .because(format!("it lacks <{name}>"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_store_writes() {
        let document = "<?xml version='1.0'?><List xmlns='http://x/'><Key>outer</Key><Up><Key>a&amp;b&#x2F;&#233;</Key>\
                        <UpId>1</UpId></Up><Up><Key/></Up></List>";
        let list = root(document, "List").unwrap();
        assert_eq!(list.required("Key").unwrap(), "outer");
        let ups: Vec<_> = list.children("Up").map(|up| up.required("Key").unwrap()).collect();
        assert_eq!(ups, ["a&b/é", ""]);
        assert_eq!(list.text("None"), None);
        assert_eq!(
            list.required("None").unwrap_err().to_string(),
            "cannot read the store's answer: it lacks <None>"
        );
    }

    #[test]
    fn other_and_cut_documents_are_errors() {
        for bad in ["", "<html><body>502</body></html>", "<List><Key>a</Key>", "<List><![CDATA[x]]></List>"] {
            assert_eq!(root(bad, "List").unwrap_err().kind(), ErrorKind::Unreachable, "{bad}");
        }
        root("<List><Key>&bogus;</Key></List>", "List").unwrap_err();
        root("<List><Key>a & b</Key></List>", "List").unwrap_err();
        let deep = format!("<List>{}{}</List>", "<a>".repeat(100), "</a>".repeat(100));
        root(&deep, "List").unwrap_err();
    }

    proptest::proptest! {
        #[test]
        fn any_text_comes_back_and_any_document_is_read_or_refused(
            text in "[^\\x00-\\x1f\\x7f\\u{fffe}\\u{ffff}]*",
            document in "[<>/&;ab#x0-9 \"]{0,80}",
        ) {
            let whole = format!("<List><Key>{}</Key></List>", escape(&text));
            proptest::prop_assert_eq!(root(&whole, "List").unwrap().required("Key").unwrap(), text);
            for document in [document.clone(), format!("<a>{document}</a>")] {
                if let Ok(list) = root(&document, "a") {
                    for inner in list.children("b") {
                        let _ = inner.text("a");
                    }
                }
            }
        }
    }

    #[test]
    fn escaping_comes_back() {
        let odd = "<a & \"b\">&amp;";
        let whole = format!("<List><Key>{}</Key></List>", escape(odd));
        assert_eq!(root(&whole, "List").unwrap().required("Key").unwrap(), odd);
    }
}
