//! Single values: whether a value fits its key, and how text from the environment or a URL becomes a value.

use std::time::Duration;

use toml::Value;

use super::finding::{Fault, nearest};
use super::http_url::ServiceUrl;
use super::notify;
use crate::bandwidth::{BandwidthLimit, BandwidthPeriod};
use crate::retention::BestRule;
use crate::{Error, ErrorKind, NodeSet, RelativePath};

type Checked<T> = Result<T, Fault>;

/// The type of a key's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole number from this minimum to `i64::MAX`.
    Integer(i64),
    /// `true` or `false`.
    Boolean,
    /// Any non-empty string.
    Text,
    /// A local path. A relative path in the file starts at the file's directory.
    Path,
    /// A path inside a checkpoint.
    InnerPath,
    /// A number of nodes, or their names.
    Nodes,
    /// A number of bytes with a unit.
    Size,
    /// A duration with a unit.
    Duration,
    /// One of these words.
    Choice(Vec<&'static str>),
    /// A list of strings.
    Texts,
    /// A table of strings under names of the user's choice.
    TextMap,
    /// A list of rules for keeping the best.
    Best,
    /// A number of bytes per second with a unit, or a list of periods of the day with one each.
    Bandwidth,
    /// A list of targets of notifications.
    Notify,
    /// The URL of a service, which is a secret.
    ServiceUrl,
}

/// Checks that `value` is valid for `kind`.
pub(super) fn check(kind: &Kind, value: &Value) -> Checked<()> {
    match (kind, value) {
        (Kind::Integer(minimum), Value::Integer(number)) if number >= minimum => Ok(()),
        (Kind::Integer(minimum), Value::Integer(number)) => {
            Err(Fault::new(format!("{number} is too small"), format!("the smallest value is {minimum}")))
        }
        (Kind::Boolean, Value::Boolean(_)) => Ok(()),
        (Kind::Text, Value::String(text)) => not_empty(text),
        (Kind::Path, Value::String(text)) => not_empty(text).and_then(|()| check_path(text)),
        (Kind::InnerPath, Value::String(text)) => {
            RelativePath::new(text.as_str()).map(drop).map_err(|error| {
                Fault::new(error.to_string(), "write a path relative to the checkpoint's directory")
            })
        }
        (Kind::Nodes, Value::Integer(_) | Value::String(_) | Value::Array(_)) => {
            let text = nodes_text(value).ok_or_else(|| wrong_type(kind, value))?;
            Ok(text.parse::<NodeSet>().map(drop)?)
        }
        (Kind::Size, Value::String(text)) => size(text).map(drop),
        (Kind::Duration, Value::String(text)) => duration(text).map(drop),
        // The parsers of sizes and durations give the best hint for a bare number.
        (Kind::Size, Value::Integer(number)) => size(&number.to_string()).map(drop),
        (Kind::Duration, Value::Integer(number)) => duration(&number.to_string()).map(drop),
        (Kind::Choice(words), Value::String(text)) => check_choice(words, text),
        (Kind::Texts, Value::Array(items))
            if items.iter().all(|item| item.as_str().is_some_and(|text| !text.is_empty())) =>
        {
            Ok(())
        }
        (Kind::TextMap, Value::Table(table)) if table.values().all(Value::is_str) => Ok(()),
        (Kind::Best, Value::Array(_)) => best(value).map(drop),
        (Kind::Bandwidth, Value::String(_) | Value::Array(_) | Value::Integer(_)) => {
            bandwidth(value).map(drop)
        }
        (Kind::Notify, Value::Array(_)) => notify::targets(value).map(drop),
        (Kind::ServiceUrl, Value::String(text)) => match ServiceUrl::parse(text, true) {
            Ok(_) => Ok(()),
            Err(fault) => Err(Fault::new(format!("it {}", fault.why), fault.hint)),
        },
        _ => Err(wrong_type(kind, value)),
    }
}

/// Converts text from the environment, a URL's query or a default to a value.
pub(super) fn from_text(kind: &Kind, text: &str) -> Checked<Value> {
    let items = || text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let wrong = || wrong_type(kind, &Value::String(text.to_owned()));
    let value = match kind {
        Kind::Integer(_) => Value::Integer(text.parse().map_err(|_| wrong())?),
        Kind::Boolean => Value::Boolean(text.parse().map_err(|_| wrong())?),
        Kind::Texts => Value::Array(items().map(|item| Value::String(item.to_owned())).collect()),
        Kind::TextMap => {
            let pairs = items().map(|item| {
                let (name, value) = item.split_once('=').ok_or_else(|| {
                    Fault::new("it is not a list of names and values", "write name=value,name=value")
                })?;
                Ok((name.to_owned(), Value::String(value.to_owned())))
            });
            Value::Table(pairs.collect::<Checked<_>>()?)
        }
        Kind::Best => Value::Array(items().map(best_from_text).collect::<Checked<_>>()?),
        Kind::Bandwidth if text.contains('=') => {
            Value::Array(items().map(period_from_text).collect::<Checked<_>>()?)
        }
        Kind::Notify => notify::from_text(text)?,
        _ => Value::String(text.to_owned()),
    };
    check(kind, &value).map(|()| value)
}

/// Returns the rules in a checked value.
pub(super) fn best(value: &Value) -> Checked<Vec<BestRule>> {
    value.clone().try_into().map_err(|error: toml::de::Error| {
        Fault::new(
            error.message().trim().to_owned(),
            "write best = [{ metric = \"eval_loss\", count = 2, prefer = \"lowest\" }]",
        )
    })
}

fn best_from_text(text: &str) -> Checked<Value> {
    let fault = || {
        Fault::new(
            format!("'{text}' is not a rule for keeping the best"),
            "write metric:count:lowest or :highest",
        )
    };
    // Split from the right: the name of a metric may contain colons.
    let mut words = text.rsplitn(3, ':');
    let (Some(prefer), Some(count), Some(metric)) = (words.next(), words.next(), words.next()) else {
        return Err(fault());
    };
    let mut table = toml::Table::new();
    table.insert("metric".to_owned(), Value::String(metric.to_owned()));
    table.insert("count".to_owned(), Value::Integer(count.parse().map_err(|_| fault())?));
    table.insert("prefer".to_owned(), Value::String(prefer.to_owned()));
    Ok(Value::Table(table))
}

const BANDWIDTH_EXAMPLE: &str = "write bandwidth-limit = [{ from = \"08:00\", limit = \"20 MiB\" }, { from = \"20:00\", limit = \"none\" }]";

/// Returns the limit in a checked value.
pub(super) fn bandwidth(value: &Value) -> Checked<BandwidthLimit> {
    let Value::Array(items) = value else {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        return size(&text).map(BandwidthLimit::all_day);
    };
    let periods = items.iter().map(period).collect::<Checked<Vec<_>>>()?;
    let limit = BandwidthLimit::of(periods).filter(|limit| !limit.periods().is_empty());
    limit.ok_or_else(|| Fault::new("it has no period, or two that begin at the same time", BANDWIDTH_EXAMPLE))
}

fn period(value: &Value) -> Checked<BandwidthPeriod> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let has_both = value.as_table().is_some_and(|table| table.len() == 2);
    let (Some(from), Some(limit), true) = (text("from"), text("limit"), has_both) else {
        return Err(Fault::new("one of its periods has not 'from' and 'limit' alone", BANDWIDTH_EXAMPLE));
    };
    let minutes = from.split_once(':').and_then(|(hours, minutes)| {
        let is_time = hours.len() == 2 && minutes.len() == 2;
        let (hours, minutes) = (hours.parse::<u32>().ok()?, minutes.parse::<u32>().ok()?);
        (is_time && hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
    });
    let Some(minutes) = minutes else {
        return Err(Fault::new(
            format!("'{from}' is not a time of day"),
            "write hours and minutes: \"08:00\"",
        ));
    };
    let bytes_per_second = if limit == "none" { None } else { Some(size(limit)?) };
    Ok(BandwidthPeriod { from_seconds: minutes * 60, bytes_per_second })
}

fn period_from_text(text: &str) -> Checked<Value> {
    let (from, limit) = text.split_once('=').ok_or_else(|| {
        Fault::new(format!("'{text}' is not a period of the day"), "write 08:00=20MiB,20:00=none")
    })?;
    let pairs = [("from", from), ("limit", limit)];
    Ok(Value::Table(
        pairs.map(|(key, text)| (key.to_owned(), Value::String(text.to_owned()))).into_iter().collect(),
    ))
}

/// Returns a number of nodes, or their names in a string or a list, as a [`NodeSet`] is written.
pub(super) fn nodes_text(value: &Value) -> Option<String> {
    match value {
        Value::Array(items) => Some(items.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?.join(",")),
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn not_empty(text: &str) -> Checked<()> {
    if text.is_empty() {
        return Err(Fault::new("it is empty", "remove the key to use its default"));
    }
    Ok(())
}

fn check_path(text: &str) -> Checked<()> {
    if text == "~" || text.starts_with("~/") || text.contains('$') {
        return Err(Fault::new("it contains '~' or '$', which only a shell expands", "write the full path"));
    }
    if text.contains('\0') {
        return Err(Fault::new("it contains a NUL byte", "remove the byte"));
    }
    Ok(())
}

fn check_choice(words: &[&str], text: &str) -> Checked<()> {
    if words.contains(&text) {
        return Ok(());
    }
    let hint = match nearest(text, words.iter().copied()) {
        Some(word) => format!("did you mean \"{word}\"? Valid values are {}", listed(words)),
        None => format!("valid values are {}", listed(words)),
    };
    Err(Fault::new(format!("\"{text}\" is not a valid value"), hint))
}

fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

fn wrong_type(kind: &Kind, value: &Value) -> Fault {
    let wanted = match kind {
        Kind::Integer(_) => "a whole number",
        Kind::Boolean => "true or false",
        Kind::Text | Kind::Choice(_) => "a string in quotes",
        Kind::Path | Kind::InnerPath => "a path in quotes",
        Kind::Nodes => "a number of nodes, or a list of their names",
        Kind::Size => "a size with its unit, in quotes: \"8 MiB\"",
        Kind::Duration => "a duration with its unit, in quotes: \"30s\"",
        Kind::Texts => "a list of strings: [\"a\", \"b\"]",
        Kind::TextMap => "a table of strings: { name = \"value\" }",
        Kind::Best => "a list of rules: [{ metric = \"eval_loss\", count = 2, prefer = \"lowest\" }]",
        Kind::Bandwidth => "a size with its unit, in quotes: \"100 MiB\", or a list of periods of the day",
        Kind::ServiceUrl => "a URL in quotes: \"https://host/path\"",
        Kind::Notify => "a list of tables: [{ url = \"https://host/path\", on = [\"not-durable\"] }]",
    };
    let found = match value {
        Value::String(_) => "a string",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a time",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    };
    let why = if matches!((kind, value), (Kind::Texts, Value::Array(_)) | (Kind::TextMap, Value::Table(_))) {
        "one of its items is not a string".to_owned()
    } else {
        format!("it is {found}")
    };
    Fault::new(why, format!("write {wanted}"))
}

/// Reads a size in bytes: `8 MiB`, `100GB`, `512 B`.
///
/// # Errors
/// [`ErrorKind::Usage`], with the correct notation as the hint.
pub fn parse_size(text: &str) -> crate::Result<u64> {
    size(text).map_err(|fault| {
        Error::new(ErrorKind::Usage, "not a size").on(format!("{text:?}")).because(fault.why).hint(fault.hint)
    })
}

/// Reads a duration: `30s`, `10m`, `2d`, `1h 30m`.
///
/// # Errors
/// [`ErrorKind::Usage`], with the correct notation as the hint.
pub fn parse_duration(text: &str) -> crate::Result<Duration> {
    duration(text).map_err(|fault| {
        Error::new(ErrorKind::Usage, "not a duration")
            .on(format!("{text:?}"))
            .because(fault.why)
            .hint(fault.hint)
    })
}

pub(super) fn size(text: &str) -> Checked<u64> {
    const EXAMPLE: &str = "write a number and a unit: \"8 MiB\", \"500 GB\"";
    let text = text.trim();
    if let Ok(number) = text.parse::<u64>() {
        let hint = format!("write \"{number} B\", \"{number} MiB\" or \"{number} GiB\"");
        return Err(Fault::new("it has no unit", hint));
    }
    let number_end =
        text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let amount = number.parse::<f64>().map_err(|_| Fault::new("it is not a size", EXAMPLE))?;
    let size = text.parse::<bytesize::ByteSize>().map_err(|_| {
        let why = format!("'{}' is not a unit of size", unit.trim());
        Fault::new(why, "units are B, KiB, MiB, GiB, TiB, and kB, MB, GB, TB for powers of ten")
    })?;
    // The parser returns the largest number instead of an overflow error.
    if size.as_u64() == u64::MAX || (amount > 0.0 && size.as_u64() == 0) {
        return Err(Fault::new("it is out of range", EXAMPLE));
    }
    Ok(size.as_u64())
}

pub(super) fn duration(text: &str) -> Checked<Duration> {
    let text = text.trim();
    if let Ok(number) = text.parse::<u64>() {
        let hint = format!("write \"{number}s\", \"{number}m\" or \"{number}h\"");
        return Err(Fault::new("it has no unit", hint));
    }
    humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::UnknownUnit { unit, .. } if !unit.is_empty() => {
            Fault::new(format!("'{unit}' is not a unit of time"), "units are ms, s, m, h, d and w")
        }
        _ => Fault::new("it is not a duration", "write a number and a unit: \"30s\", \"10m\", \"2d\""),
    })
}
