//! What to do about a proxy that refuses a connection.

use url::Url;

/// The variables that name the proxy of an https endpoint, in the order in which the HTTP clients read them.
const VARIABLES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// Returns what to do if a connection failed because a proxy refused it, and `None` for any other failure.
pub(crate) fn proxy_hint(why: &str) -> Option<String> {
    why.contains("tunnel error").then(|| {
        let proxy = configured().map_or_else(String::new, |place| format!(" {place}"));
        format!(
            "the proxy{proxy} refuses the connection: check HTTPS_PROXY and its credentials, or name the host in NO_PROXY"
        )
    })
}

/// Returns whether a proxy refused a connection for lack of credentials, which no later request has either.
pub(crate) fn lacks_proxy_credentials(why: &str) -> bool {
    why.contains("tunnel error") && why.contains("proxy authorization required")
}

/// Returns host and port of the proxy in the environment, without its credentials.
fn configured() -> Option<String> {
    let texts = VARIABLES.iter().filter_map(|name| std::env::var(name).ok());
    let text = texts.into_iter().find(|text| !text.is_empty())?;
    let url = Url::parse(&text)
        .or_else(|_| Url::parse(&format!("http://{text}")))
        .ok()?;
    let host = url.host_str()?;
    Some(match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    })
}
