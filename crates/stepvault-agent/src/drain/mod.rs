//! Drains in time: what is still sent when time is short, and the record of what was left.

mod hurry;
mod outlook;
mod word;

pub(crate) use hurry::Hurry;
pub(crate) use outlook::{Found, NotForNow, Outlook, announce, look};
pub use word::read_drain;
pub(crate) use word::{leave_word, say_what_was_left};
