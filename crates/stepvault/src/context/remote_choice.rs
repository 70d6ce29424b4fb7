//! Resolves `--remote`: a URL, a name with a URL, or the name of a configured remote.

use itertools::Itertools as _;
use stepvault_core::{Error, ErrorKind, RemoteName, RemoteSettings, RemoteUrl, Result};

/// Maximum length of a name derived from a URL. It is below the limit for names, to leave room for a number.
const MAX_DERIVED_NAME_BYTES: usize = 48;

/// A remote that the command line selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChosenRemote {
    /// The remote's name.
    pub(crate) name: RemoteName,
    /// The URL with its query; `None` to use the configured URL.
    pub(crate) url: Option<String>,
}

/// Resolves the given remotes. A configured URL keeps its configured name, because the vault's records of a remote go
/// by name.
pub(crate) fn choose_remotes(given: &[String], configured: &[RemoteSettings]) -> Result<Vec<ChosenRemote>> {
    let mut chosen: Vec<ChosenRemote> = Vec::new();
    for text in given {
        let remote = choose(text, configured, &chosen)?;
        if chosen.iter().any(|other| other.name == remote.name) {
            return Err(Error::new(ErrorKind::Usage, "the remote is given twice")
                .on(&remote.name)
                .hint("give each remote once, or give each its own name: --remote NAME=URL"));
        }
        chosen.push(remote);
    }
    Ok(chosen)
}

fn choose(text: &str, configured: &[RemoteSettings], chosen: &[ChosenRemote]) -> Result<ChosenRemote> {
    let named = text.split_once('=').filter(|(name, _)| !name.contains("://"));
    if let Some((name, url)) = named {
        let (place, options) = RemoteUrl::parse(url)?;
        let name = RemoteName::new(name)?;
        let is_new = configured.iter().all(|remote| remote.name != name);
        // A bucket of the same name at another endpoint is another place.
        let same = configured.iter().find(|remote| remote.url == place);
        let same = same.filter(|_| is_new && !options.iter().any(|(key, _)| key == "endpoint"));
        return Ok(ChosenRemote {
            name: same.map_or(name, |remote| remote.name.clone()),
            url: Some(url.to_owned()),
        });
    }
    if !text.contains(['/', ':']) {
        let remote = configured.iter().find(|remote| remote.name.as_str() == text);
        let remote = remote.ok_or_else(|| no_such_remote(text, configured))?;
        return Ok(ChosenRemote { name: remote.name.clone(), url: None });
    }
    let (url, options) = RemoteUrl::parse(text)?;
    match configured.iter().find(|remote| remote.url == url) {
        Some(remote) => Ok(ChosenRemote {
            name: remote.name.clone(),
            url: (!options.is_empty()).then(|| text.to_owned()),
        }),
        None => {
            Ok(ChosenRemote { name: derived_name(&url, configured, chosen)?, url: Some(text.to_owned()) })
        }
    }
}

fn no_such_remote(name: &str, configured: &[RemoteSettings]) -> Error {
    let error = Error::new(ErrorKind::Usage, "no such remote").on(name);
    if configured.is_empty() {
        return error
            .because("no remote is configured")
            .hint("give a URL, such as --remote s3://bucket/prefix, or a configuration with --config FILE");
    }
    let names = configured.iter().map(|remote| &remote.name).join(", ");
    error
        .because("it is not configured")
        .hint(format!("give one of the configured remotes ({names}) or a URL"))
}

/// Replaces the characters that a name may not contain.
pub(super) fn with_name_letters(text: &str) -> impl Iterator<Item = char> {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    text.chars().map(move |letter| if is_allowed(letter) { letter } else { '-' })
}

/// Derives a free name from the scheme and the bucket or directory name: `s3-my-bucket`, `file-checkpoints`.
fn derived_name(
    url: &RemoteUrl,
    configured: &[RemoteSettings],
    chosen: &[ChosenRemote],
) -> Result<RemoteName> {
    let place = if url.scheme.is_directory() {
        url.prefix.rsplit('/').next().unwrap_or_default()
    } else {
        &url.bucket
    };
    let stem = format!("{}-{place}", url.scheme.as_str());
    let stem: String = with_name_letters(&stem).take(MAX_DERIVED_NAME_BYTES).collect();
    let taken = |name: &str| {
        configured.iter().any(|remote| remote.name.as_str() == name)
            || chosen.iter().any(|remote| remote.name.as_str() == name)
    };
    let numbered = (2_u32..).map(|number| format!("{stem}-{number}"));
    let mut names = std::iter::once(stem.clone()).chain(numbered);
    RemoteName::new(names.find(|name| !taken(name)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured() -> Vec<RemoteSettings> {
        let url = "s3://bucket/prefix".parse().unwrap();
        vec![RemoteSettings::new(RemoteName::new("main").unwrap(), url)]
    }

    fn chosen(given: &[&str]) -> Vec<(String, Option<String>)> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        let chosen = choose_remotes(&given, &configured()).unwrap();
        chosen.into_iter().map(|remote| (remote.name.to_string(), remote.url)).collect()
    }

    fn refused(given: &[&str]) -> String {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        let error = choose_remotes(&given, &configured()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        crate::output::human::error(&error)
    }

    #[test]
    fn names_come_from_the_configuration_the_flag_or_the_url() {
        assert_eq!(chosen(&["main"]), [("main".to_owned(), None)]);
        assert_eq!(chosen(&["s3://bucket/prefix/"]), [("main".to_owned(), None)]);
        let with_option = "s3://bucket/prefix?region=x";
        assert_eq!(chosen(&[with_option]), [("main".to_owned(), Some(with_option.to_owned()))]);
        let with_name = chosen(&["copy=gs://other?endpoint=http://127.0.0.1:1"]);
        assert_eq!(
            with_name,
            [("copy".to_owned(), Some("gs://other?endpoint=http://127.0.0.1:1".to_owned()))]
        );
        // The same place under another name.
        let again = "s3://bucket/prefix?region=x".to_owned();
        assert_eq!(chosen(&[&format!("copy={again}")]), [("main".to_owned(), Some(again))]);
        let elsewhere = "s3://bucket/prefix?endpoint=http://127.0.0.1:1".to_owned();
        assert_eq!(chosen(&[&format!("copy={elsewhere}")]), [("copy".to_owned(), Some(elsewhere))]);
        let names = |given: &[&str]| chosen(given).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&["s3://b/one?a=b", "s3://b/two"]), ["s3-b", "s3-b-2"]);
        assert_eq!(names(&["file:///data/my vault", "memory://x"]), ["file-my-vault", "memory-x"]);
    }

    #[test]
    fn what_is_no_remote_says_what_to_write() {
        assert_eq!(
            refused(&["mian"]),
            "error: no such remote: mian: it is not configured\n  hint: give one of the configured remotes (main) or a URL"
        );
        assert!(refused(&["ftp://x/y"]).contains("the scheme 'ftp' is not supported\n  hint: write s3://"));
        assert!(refused(&["/data/remote"]).contains("it has no scheme"));
        assert!(refused(&["main", "main"]).starts_with("error: the remote is given twice: main"));
        assert!(refused(&["local=s3://b"]).starts_with("error: not a remote's name: \"local\""));
    }
}
