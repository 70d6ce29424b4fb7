//! Where traces are sent: the configured URL, or what OpenTelemetry's variables say.

use std::fmt;

use stepvault_core::config::ServiceUrl;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::outbound::Outbound;

const WHAT: &str = "cannot send traces";

/// A collector of traces.
#[derive(Debug, Clone)]
pub struct TraceTarget {
    pub(super) outbound: Outbound,
}

/// The collector as messages name it.
impl fmt::Display for TraceTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outbound.url.fmt(out)
    }
}

impl TraceTarget {
    /// Returns the collector; `None` if neither the configuration nor a variable names one.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for variables that cannot be used, or a program without traces.
    pub fn find(
        configured: Option<&ServiceUrl>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        // What is for traces alone goes before what is for every signal.
        let signal = |suffix: &str| {
            let names =
                ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"].map(|name| format!("{name}{suffix}"));
            names.into_iter().find_map(|name| Some((given(&name)?, name)))
        };
        let url = match configured {
            Some(url) => url.clone(),
            None => match signal("ENDPOINT").filter(|_| is_wanted(&given)) {
                None => return Ok(None),
                Some((text, name)) => of_variable(&text, &name)?,
            },
        };
        if !cfg!(feature = "opentelemetry") {
            return Err(Error::new(ErrorKind::Usage, WHAT)
                .because("this program was built without traces")
                .hint("build it with the feature opentelemetry"));
        }
        let headers = signal("HEADERS").map(|(text, name)| headers(&text, &name)).transpose()?;
        let headers = headers.unwrap_or_default();
        if url.is_exposed() && !headers.is_empty() {
            return Err(Error::new(ErrorKind::Usage, WHAT)
                .on(&url)
                .because("plain http to another machine would expose the headers on the network")
                .hint("use https, or unset OTEL_EXPORTER_OTLP_HEADERS"));
        }
        let hint = "check the URL: that of a collector's OTLP over HTTP ends with /v1/traces";
        Ok(Some(Self { outbound: Outbound { what: WHAT, headers, hint, ..Outbound::to(url) } }))
    }
}

/// Returns whether the variables, which may be meant for the trainer, want what can be sent here.
fn is_wanted(given: &dyn Fn(&str) -> Option<String>) -> bool {
    let is = |name: &str, wanted: fn(&str) -> bool| given(name).is_none_or(|value| wanted(&value));
    let protocol =
        given("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL").or_else(|| given("OTEL_EXPORTER_OTLP_PROTOCOL"));
    if protocol.is_some_and(|protocol| protocol == "grpc") {
        tracing::info!(
            "no traces are sent: OTEL_EXPORTER_OTLP_PROTOCOL is grpc, and stepvault sends them over HTTP"
        );
        return false;
    }
    is("OTEL_SDK_DISABLED", |value| !value.eq_ignore_ascii_case("true"))
        && is("OTEL_TRACES_EXPORTER", |value| value.split(',').any(|name| name.trim() == "otlp"))
}

fn of_variable(text: &str, name: &str) -> Result<ServiceUrl> {
    let url: ServiceUrl = text.parse().map_err(|error: Error| error.on(name))?;
    // Only the variable of traces names their URL itself.
    Ok(if name.contains("TRACES") { url } else { url.below(["v1", "traces"]) })
}

/// Reads `name=value,name=value` with values in percent-encoding. No error contains a value.
fn headers(text: &str, variable: &str) -> Result<Vec<(String, String)>> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let header = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        Some((name.trim().to_owned(), decoded(value.trim())?))
    };
    pairs.map(header).collect::<Option<Vec<_>>>().ok_or_else(|| {
        Error::new(ErrorKind::Usage, WHAT)
            .on(variable)
            .because("it is not a list of names and values")
            .hint("write name=value,name=value with %2C for a comma in a value")
    })
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn find(configured: &str, variables: &[(&str, &str)]) -> Result<Option<TraceTarget>> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let configured = (!configured.is_empty()).then(|| configured.parse().unwrap());
        TraceTarget::find(configured.as_ref(), &|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    fn url(configured: &str, variables: &[(&str, &str)]) -> Option<String> {
        find(configured, variables).unwrap().map(|target| target.outbound.url.secret().to_string())
    }

    const ALL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

    #[test]
    fn the_configuration_goes_before_the_variables() {
        assert_eq!(url("", &[]), None);
        assert_eq!(url("", &[ALL]).unwrap(), "http://collector:4318/v1/traces");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/otlp");
        assert_eq!(url("", &[ALL, traces]).unwrap(), traces.1);
        assert_eq!(url("https://host/x", &[ALL, ("OTEL_SDK_DISABLED", "true")]).unwrap(), "https://host/x");
    }

    #[test]
    fn variables_for_another_exporter_send_nothing() {
        for (name, value) in [
            ("OTEL_SDK_DISABLED", "true"),
            ("OTEL_TRACES_EXPORTER", "none"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ] {
            assert_eq!(url("", &[ALL, (name, value)]), None, "{name}");
        }
        let sent = [("OTEL_SDK_DISABLED", "false"), ("OTEL_TRACES_EXPORTER", "console,otlp")];
        assert!(url("", &[&[ALL], &sent[..]].concat()).is_some());
    }

    #[test]
    fn headers_are_decoded_and_not_sent_in_plain_text() {
        let header = ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20s3cr3t=, x-scope = a%2Cb");
        let target = find("https://host/x", &[header]).unwrap().unwrap();
        let expected = [("authorization", "Basic s3cr3t="), ("x-scope", "a,b")];
        assert_eq!(
            target.outbound.headers,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert!(!format!("{target:?}").contains("s3cr3t"));
        let error = find("", &[ALL, header]).unwrap_err();
        assert!(error.to_string().contains("would expose the headers"), "{error}");
        assert!(find("http://127.0.0.1:4318/x", &[header]).is_ok());
        for wrong in ["s3cr3t", "a=s3cr3t%2", "a=%ff"] {
            let error = find("https://host/x", &[("OTEL_EXPORTER_OTLP_HEADERS", wrong)]).unwrap_err();
            assert!(!error.text_with_hint().contains("s3cr3t"), "{error}");
        }
    }
}
