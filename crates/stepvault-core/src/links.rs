//! Symbolic links of a checkpoint: none of them may lead out of it, alone or combined.

use std::collections::HashSet;

use crate::entries::{SymlinkEntry, check_link_target};
use crate::error::{Error, ErrorKind, Result};

/// Checks that every link stays inside the checkpoint, including through other links.
///
/// The `..` components of a target are checked against the directories in its text, but the kernel resolves them from
/// where a link leads: `up -> ../..` and `out -> a/b/up/../x` stay inside by their texts, but the second leaves the
/// checkpoint.
pub fn check_links(links: &[SymlinkEntry]) -> Result<()> {
    let mut places = HashSet::new();
    for link in links {
        check_link_target(&link.path, &link.target)?;
        places.insert(link.path.as_str());
    }
    for link in links {
        if let Some(other) = climbs_out_of(link, &places) {
            return Err(Error::new(ErrorKind::Usage, "cannot store a symbolic link")
                .on(format!("{} -> {}", link.path, link.target))
                .because(format!("its target leads through the link {other} and then up again"))
                .hint("replace the link with the file it points to, or use a target without '..'"));
        }
    }
    Ok(())
}

/// Returns the link after which the target goes up.
fn climbs_out_of(link: &SymlinkEntry, places: &HashSet<&str>) -> Option<String> {
    let mut place: Vec<&str> = link.path.components().collect();
    place.pop();
    let mut through = None;
    for component in link.target.split('/') {
        match component {
            "" | "." => {}
            ".." if through.is_some() => return through,
            ".." => {
                place.pop();
            }
            name => {
                place.push(name);
                through =
                    through.or_else(|| Some(place.join("/")).filter(|here| places.contains(here.as_str())));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::RelativePath;

    fn check(links: &[(&str, &str)]) -> Result<()> {
        let links: Vec<SymlinkEntry> = links
            .iter()
            .map(|(path, target)| SymlinkEntry {
                path: RelativePath::new(*path).unwrap(),
                target: (*target).to_owned(),
            })
            .collect();
        check_links(&links)
    }

    #[test]
    fn links_that_stay_inside_are_kept() {
        for good in [
            &[("latest", "step_1")][..],
            &[("a/b/up", "../.."), ("in", "a/b/up/x")],
            &[("a/b/up", "../.."), ("in", "a/b/../c")],
            &[("a/l", "../b"), ("b/m", "../a/l"), ("c", "./a/l/m")],
        ] {
            check(good).unwrap();
        }
    }

    #[test]
    fn a_link_that_leaves_through_another_one_is_refused() {
        for bad in [
            &[("a/b/up", "../.."), ("out", "a/b/up/../x")][..],
            &[("a/b/up", "../.."), ("a/b/out", "up/..")],
            &[("a/b/up", "../.."), ("c/out", ".././a/b/up/./../etc/passwd")],
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.to_string().contains("leads through the link a/b/up and then up again"), "{error}");
        }
        check(&[("out", "../x")]).unwrap_err();
    }
}
