//! Targets of notifications: webhooks and commands.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::VariantNames as _;
use toml::Value;

use super::finding::{Fault, nearest};
use super::http_url::ServiceUrl;

/// An event of which targets are notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum NotifyEvent {
    /// Uploads to a required remote have failed for minutes, or the agent has ended with steps that are not durable.
    NotDurable,
    /// Bytes of a step differ from what was written.
    VerificationFailed,
    /// The agent or the trainer was started again and again.
    RestartLoop,
    /// An older step was restored, because newer ones are damaged.
    RestoredOlder,
    /// Somebody tries the target.
    Test,
}

impl NotifyEvent {
    /// Those that a target can be notified of, besides a test.
    pub const CONFIGURABLE: [Self; 4] =
        [Self::NotDurable, Self::VerificationFailed, Self::RestartLoop, Self::RestoredOlder];
}

/// The shape of the JSON that a webhook receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum WebhookFormat {
    /// The document `notification`.
    Json,
    /// `{"text": …}`
    Slack,
    /// `{"content": …}`
    Discord,
}

/// Parses a target's URL.
fn target_url(text: &str, allow_http: bool) -> Result<ServiceUrl, Fault> {
    ServiceUrl::parse(text, allow_http)
        .map_err(|fault| Fault::new(format!("a target's url {}", fault.why), fault.hint))
}

impl WebhookFormat {
    /// Returns the format that the host expects.
    fn of_host(url: &ServiceUrl) -> Self {
        match url.secret().host_str().unwrap_or_default() {
            "hooks.slack.com" | "hooks.slack-gov.com" => Self::Slack,
            "discord.com" | "discordapp.com" => Self::Discord,
            _ => Self::Json,
        }
    }
}

/// What receives notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotifySink {
    /// A POST to this URL.
    Webhook {
        /// The URL.
        url: ServiceUrl,
        /// The shape of the body.
        format: WebhookFormat,
    },
    /// A command, which gets the document on its standard input: the program, and its arguments.
    Command(Vec<String>),
}

/// The receiver as messages name it: the host of a webhook, or a program.
impl fmt::Display for NotifySink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Webhook { url, .. } => url.fmt(out),
            Self::Command(words) => out.write_str(words.first().map_or("", String::as_str)),
        }
    }
}

/// A target of notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotifyTarget {
    /// What receives them.
    pub sink: NotifySink,
    /// The events that it is notified of.
    pub on: Vec<NotifyEvent>,
}

/// A table of the list, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Table {
    url: Option<String>,
    command: Option<Vec<String>>,
    on: Option<Vec<String>>,
    format: Option<String>,
    #[serde(default)]
    allow_http: bool,
}

const EXAMPLE: &str = "write notify = [{ url = \"https://host/path\", on = [\"not-durable\"] }]";

/// Returns the targets in a value. No message contains a URL.
pub(super) fn targets(value: &Value) -> Result<Vec<NotifyTarget>, Fault> {
    let items = value.as_array().ok_or_else(|| Fault::new("it is not a list of tables", EXAMPLE))?;
    items.iter().map(target).collect()
}

fn target(value: &Value) -> Result<NotifyTarget, Fault> {
    let table: Table = value.clone().try_into().map_err(|error: toml::de::Error| {
        // A message about a type quotes the value.
        let why = error.message().trim().split(": string \"").next().unwrap_or_default();
        Fault::new(format!("a target is invalid: {why}"), EXAMPLE)
    })?;
    let sink = match (&table.url, &table.command) {
        (Some(url), None) => {
            let url = target_url(url, table.allow_http)?;
            let format = match &table.format {
                None => WebhookFormat::of_host(&url),
                Some(word) => word.parse().map_err(|_| unknown("format", word, WebhookFormat::VARIANTS))?,
            };
            NotifySink::Webhook { url, format }
        }
        (None, Some(words)) if words.first().is_some_and(|program| !program.is_empty()) => {
            NotifySink::Command(words.clone())
        }
        (None, Some(_)) => {
            return Err(Fault::new(
                "a target's command is empty",
                "write command = [\"program\", \"argument\"]",
            ));
        }
        _ => return Err(Fault::new("a target has not either a url or a command", EXAMPLE)),
    };
    if matches!(sink, NotifySink::Command(_)) && (table.format.is_some() || table.allow_http) {
        let why = "format and allow-http apply to a url alone";
        return Err(Fault::new(why, "remove them: a command gets the document 'notification'"));
    }
    let on = match &table.on {
        None => NotifyEvent::CONFIGURABLE.to_vec(),
        Some(words) => words.iter().map(|word| event(word)).collect::<Result<Vec<_>, _>>()?,
    };
    if on.is_empty() {
        return Err(Fault::new("a target is notified of nothing", "remove 'on' to notify it of every event"));
    }
    Ok(NotifyTarget { sink, on })
}

fn event(word: &str) -> Result<NotifyEvent, Fault> {
    let known = word.parse().ok().filter(|event| NotifyEvent::CONFIGURABLE.contains(event));
    known.ok_or_else(|| {
        let names = NotifyEvent::CONFIGURABLE.map(|event| event.to_string());
        unknown("event", word, &names.each_ref().map(String::as_str))
    })
}

fn unknown(what: &str, word: &str, known: &[&str]) -> Fault {
    let hint = match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("valid values are {}", known.join(", ")),
    };
    Fault::new(format!("\"{word}\" is not a valid {what}"), hint)
}

/// Returns the list that a variable contains: as in the file, or URLs that are notified of every event.
pub(super) fn from_text(text: &str) -> Result<Value, Fault> {
    if text.trim_start().starts_with('[') {
        let parsed: Result<toml::Table, _> = format!("notify = {text}").parse();
        let fault = || Fault::new("it is not a list in the notation of the file", EXAMPLE);
        return parsed.ok().and_then(|mut table| table.remove("notify")).ok_or_else(fault);
    }
    let urls = text.split_whitespace();
    let table = |url: &str| {
        let pair = ("url".to_owned(), Value::String(url.to_owned()));
        Value::Table([pair].into_iter().collect())
    };
    Ok(Value::Array(urls.map(table).collect()))
}

/// Replaces the URLs of targets by what may be shown of them.
pub(super) fn mask_urls(mut value: Value) -> Value {
    let tables = value.as_array_mut().into_iter().flatten().filter_map(Value::as_table_mut);
    for url in tables.filter_map(|table| table.get_mut("url")) {
        *url = mask_url(url);
    }
    value
}

/// Returns what may be shown of a service's URL.
pub(super) fn mask_url(url: &Value) -> Value {
    let shown = url.as_str().and_then(|text| text.parse::<ServiceUrl>().ok());
    Value::String(shown.map_or_else(|| "…".to_owned(), |url| url.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<NotifyTarget>, Fault> {
        targets(&from_text(text).unwrap())
    }

    #[test]
    fn the_host_decides_the_format_and_every_event_counts() {
        for (host, format) in [
            ("hooks.slack.com", WebhookFormat::Slack),
            ("discord.com", WebhookFormat::Discord),
            ("example.com", WebhookFormat::Json),
        ] {
            let [target] = read(&format!("https://{host}/T0/s3cr3t")).unwrap().try_into().unwrap();
            assert_eq!(target.on, NotifyEvent::CONFIGURABLE);
            let NotifySink::Webhook { url, format: found } = &target.sink else { panic!("{target:?}") };
            assert_eq!((*found, url.to_string()), (format, format!("https://{host}/…")));
            assert!(!format!("{target:?}").contains("s3cr3t"));
        }
        let [one, other] = read(
            "[{ url = \"http://127.0.0.1:9/x\", format = \"slack\", on = [\"restart-loop\"] }, { command = [\"mail\"] }]",
        )
        .unwrap()
        .try_into()
        .unwrap();
        assert_eq!(
            (one.sink.to_string().as_str(), one.on),
            ("http://127.0.0.1:9/…", vec![NotifyEvent::RestartLoop])
        );
        assert_eq!(other.sink, NotifySink::Command(vec!["mail".to_owned()]));
        assert!(read("[{ url = \"http://chat.lan/x\", allow-http = true }]").is_ok());
    }

    #[test]
    fn a_fault_of_a_target_is_told_without_its_url() {
        for (text, why) in [
            ("http://chat.lan/s3cr3t", "a target's url is refused: plain http"),
            ("ftp://chat.lan/s3cr3t", "a target's url is refused: its scheme is 'ftp'"),
            ("https://user:s3cr3t@chat.lan/", "a target's url contains a user"),
            ("s3cr3t", "a target's url is not a URL"),
            ("[{ url = \"https://a/s3cr3t\", on = [\"restarts\"] }]", "\"restarts\" is not a valid event"),
            ("[{ url = \"https://a/s3cr3t\", on = [\"test\"] }]", "\"test\" is not a valid event"),
            ("[{ url = \"https://a/s3cr3t\", on = [] }]", "a target is notified of nothing"),
            ("[{ url = \"https://a/s3cr3t\", format = \"teams\" }]", "\"teams\" is not a valid format"),
            ("[{ url = \"https://a/s3cr3t\", command = [\"a\"] }]", "a target has not either"),
            ("[{ url = \"https://a/s3cr3t\", token = 1 }]", "a target is invalid: unknown field `token`"),
            ("[{ command = [] }]", "a target's command is empty"),
            ("[{ command = [\"a\"], format = \"slack\" }]", "format and allow-http apply to a url alone"),
            ("[{ command = \"curl https://a/s3cr3t\" }]", "a target is invalid: invalid type"),
            ("[1]", "a target is invalid: invalid type"),
        ] {
            let fault = read(text).unwrap_err();
            assert!(fault.why.starts_with(why), "{text}: {}", fault.why);
            assert!(!format!("{fault:?}").contains("s3cr3t"), "{fault:?}");
        }
    }
}
