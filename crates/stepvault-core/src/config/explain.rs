//! The effective configuration and the source of each value.

use super::finding::Explained;
use super::merge::Merged;

/// Replaces a secret in the output.
const MASK: &str = "****";

/// Returns every value that is set, in the order of the schema.
pub(super) fn explain(merged: &Merged) -> Vec<Explained> {
    let explained = merged.read.iter().filter_map(|key| {
        let entry = merged.get(&key.path)?;
        Some(Explained {
            key: key.path.to_string(),
            value: mask(entry.value.clone()).to_string(),
            source: entry.source.clone(),
        })
    });
    explained.collect()
}

/// Masks secrets. No key is meant for a secret; this covers one that was pasted by mistake.
fn mask(value: toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) => toml::Value::String(mask_text(text)),
        toml::Value::Array(items) => toml::Value::Array(items.into_iter().map(mask).collect()),
        toml::Value::Table(table) => {
            let masked = table.into_iter().map(|(name, value)| match value {
                toml::Value::String(_) if is_secret_name(&name) => {
                    (name, toml::Value::String(MASK.to_owned()))
                }
                other => (name, mask(other)),
            });
            toml::Value::Table(masked.collect())
        }
        other => other,
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    [
        "secret",
        "token",
        "password",
        "passwd",
        "credential",
        "signature",
        "access-key",
        "access_key",
        "accesskey",
    ]
    .iter()
    .any(|word| name.contains(word))
        || name == "sig"
}

/// Masks the user information of a URL and the values of query members that look like secrets.
fn mask_text(text: String) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text;
    };
    let (place, query) = match rest.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (rest, None),
    };
    let authority_end = place.find('/').unwrap_or(place.len());
    let has_user = place[..authority_end].contains(['@', ':']);
    // A password may contain a slash: the text before the last '@' is then not the path.
    let place = match place.rfind('@').filter(|_| has_user) {
        Some(at) => format!("{MASK}{}", &place[at..]),
        None => place.to_owned(),
    };
    let Some(query) = query else {
        return format!("{scheme}://{place}");
    };
    let members = query.split('&').map(|member| match member.split_once('=') {
        Some((name, _)) if is_secret_name(name) => format!("{name}={MASK}"),
        _ => member.to_owned(),
    });
    format!("{scheme}://{place}?{}", members.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_masked() {
        let masked = |text: &str| mask_text(text.to_owned());
        assert_eq!(masked("http://user:s3cr3t@host/p"), "http://****@host/p");
        assert_eq!(masked("http://user:s3/cr3t@host/p"), "http://****@host/p");
        assert_eq!(
            masked("https://h/p?a=1&token=s3cr3t&X-Amz-Signature=x"),
            "https://h/p?a=1&token=****&X-Amz-Signature=****"
        );
        assert_eq!(masked("s3://bucket/p@x"), "s3://bucket/p@x");
        assert_eq!(masked("plain text"), "plain text");
        let table = toml::toml! { team = "a"
        api-token = "s3cr3t" };
        assert!(!mask(toml::Value::Table(table)).to_string().contains("s3cr3t"));
    }
}
