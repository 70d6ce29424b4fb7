//! Links between documents lead somewhere.

use std::path::Path;

use crate::markdown::prose;
use crate::place::{documents, read, repository};

#[test]
fn every_relative_link_leads_to_a_file() {
    let mut faults = Vec::new();
    for document in documents() {
        let text = read(&document);
        for (number, line) in prose(&text) {
            // What stands between backticks is no link.
            let line: String = line.split('`').step_by(2).collect();
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let path = target.split('#').next().unwrap_or_default();
                if path.is_empty() || target.contains("://") {
                    continue;
                }
                let place = repository()
                    .join(document.parent().unwrap_or(Path::new("")))
                    .join(path);
                if !place.exists() {
                    faults.push(format!("{}:{number}: {target} leads nowhere", document.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
