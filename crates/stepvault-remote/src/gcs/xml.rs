//! Just enough XML to read the answers of Google's XML API: elements with text or with elements inside, none of which
//! contains another of its own name.

use stepvault_core::{Error, ErrorKind, Result};

/// One element's inside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Element<'a>(&'a str);

/// The inside of the document's root, which must be called `name` and be complete.
pub(super) fn root<'a>(document: &'a str, name: &str) -> Result<Element<'a>> {
    let fault =
        |why: String| Error::new(ErrorKind::Unreachable, "cannot read the store's answer").because(why);
    if document.contains("<![CDATA[") || document.contains("<!DOCTYPE") {
        return Err(fault("it uses XML that no answer of this store has".to_owned()));
    }
    // Anything else there is an answer of something in between, or one that was cut off.
    let found = Element(document).children(name).next();
    found.ok_or_else(|| fault(format!("it is not a whole <{name}> document")))
}

impl<'a> Element<'a> {
    /// The elements called `name` inside, in order.
    pub(super) fn children(self, name: &str) -> impl Iterator<Item = Element<'a>> {
        let open = format!("<{name}");
        let close = format!("</{name}>");
        let mut rest = self.0;
        std::iter::from_fn(move || {
            loop {
                let (_, after) = rest.split_once(open.as_str())?;
                rest = after;
                // Another element whose name begins the same.
                if !after.starts_with(['>', ' ', '\t', '\r', '\n', '/']) {
                    continue;
                }
                let (attributes, inside) = after.split_once('>')?;
                if attributes.ends_with('/') {
                    rest = inside;
                    return Some(Element(""));
                }
                let (inside, after) = inside.split_once(close.as_str())?;
                rest = after;
                return Some(Element(inside));
            }
        })
    }

    /// The text of the first element called `name`; `None` when there is none.
    pub(super) fn text(self, name: &str) -> Result<Option<String>> {
        self.children(name)
            .next()
            .map(|element| unescape(element.0))
            .transpose()
    }

    /// The text of an element that has to be there.
    pub(super) fn required(self, name: &str) -> Result<String> {
        self.text(name)?.ok_or_else(|| {
            Error::new(ErrorKind::Unreachable, "cannot read the store's answer")
                .because(format!("it lacks <{name}>"))
        })
    }
}

/// Text for an element.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn unescape(text: &str) -> Result<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let reference = after
            .split_once(';')
            .and_then(|(name, after)| Some((character(name)?, after)));
        let (character, after) = reference.ok_or_else(|| {
            Error::new(ErrorKind::Unreachable, "cannot read the store's answer")
                .because("it has an unknown reference")
        })?;
        plain.push(character);
        rest = after;
    }
    plain.push_str(rest);
    Ok(plain)
}

fn character(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)
        }
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
        let ups: Vec<_> = list
            .children("Up")
            .map(|up| up.required("Key").unwrap())
            .collect();
        assert_eq!(ups, ["a&b/é", ""]);
        assert_eq!(list.text("None").unwrap(), None);
        assert_eq!(
            list.required("None").unwrap_err().to_string(),
            "cannot read the store's answer: it lacks <None>"
        );
    }

    #[test]
    fn other_and_cut_documents_are_errors() {
        for bad in [
            "",
            "<html><body>502</body></html>",
            "<List><Key>a</Key>",
            "<List><![CDATA[x]]></List>",
        ] {
            assert_eq!(
                root(bad, "List").unwrap_err().kind(),
                ErrorKind::Unreachable,
                "{bad}"
            );
        }
        root("<List><Key>&bogus;</Key></List>", "List")
            .unwrap()
            .required("Key")
            .unwrap_err();
        root("<List><Key>a & b</Key></List>", "List")
            .unwrap()
            .required("Key")
            .unwrap_err();
    }

    proptest::proptest! {
        #[test]
        fn any_text_comes_back_and_any_document_is_read_or_refused(text in ".*", document in "[<>/&;ab#x0-9 \"]{0,80}") {
            proptest::prop_assert_eq!(unescape(&escape(&text)).unwrap(), text.clone());
            let whole = format!("<List><Key>{}</Key>{document}</List>", escape(&text));
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
        assert_eq!(unescape(&escape(odd)).unwrap(), odd);
    }
}
