//! Generation preconditions.

use std::collections::BTreeMap;

use http::HeaderMap;

use super::reply::Failure;
use crate::objects::StoredObject;

/// This server never changes metadata, so every object keeps its first metageneration.
pub(super) const METAGENERATION: i64 = 1;

/// The preconditions of one request.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_field_names, reason = "the API's own words")]
pub(super) struct Conditions {
    generation_match: Option<i64>,
    generation_not_match: Option<i64>,
    metageneration_match: Option<i64>,
    metageneration_not_match: Option<i64>,
}

impl Conditions {
    /// Reads the JSON API's query parameters.
    pub(super) fn from_query(query: &BTreeMap<String, String>) -> Result<Self, Failure> {
        let get = |name: &str| query.get(name).map(|value| number(name, value)).transpose();
        Ok(Self {
            generation_match: get("ifGenerationMatch")?,
            generation_not_match: get("ifGenerationNotMatch")?,
            metageneration_match: get("ifMetagenerationMatch")?,
            metageneration_not_match: get("ifMetagenerationNotMatch")?,
        })
    }

    /// Reads the JSON API's query parameters for the source of a rewrite.
    pub(super) fn of_source(query: &BTreeMap<String, String>) -> Result<Self, Failure> {
        let get = |name: &str| query.get(name).map(|value| number(name, value)).transpose();
        Ok(Self {
            generation_match: get("ifSourceGenerationMatch")?,
            generation_not_match: get("ifSourceGenerationNotMatch")?,
            metageneration_match: get("ifSourceMetagenerationMatch")?,
            metageneration_not_match: get("ifSourceMetagenerationNotMatch")?,
        })
    }

    /// Reads the XML API's headers.
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, Failure> {
        let get = |name: &str| match headers.get(name) {
            None => Ok(None),
            Some(value) => number(name, value.to_str().unwrap_or_default()).map(Some),
        };
        Ok(Self {
            generation_match: get("x-goog-if-generation-match")?,
            metageneration_match: get("x-goog-if-metageneration-match")?,
            ..Self::default()
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.generation_match.is_none()
            && self.generation_not_match.is_none()
            && self.metageneration_match.is_none()
            && self.metageneration_not_match.is_none()
    }

    /// Checks them for a read. The object that a client has already is not modified: 304.
    pub(super) fn check_read(&self, object: &StoredObject) -> Result<(), Failure> {
        let has_it = self.generation_not_match == Some(object.generation)
            || self.metageneration_not_match == Some(METAGENERATION);
        let others = Self { generation_not_match: None, metageneration_not_match: None, ..self.clone() };
        others.check(Some(object), false)?;
        if has_it {
            return Err(Failure::new(304, "NotModified", "The object has not changed."));
        }
        Ok(())
    }

    /// Checks them against the existing object, if any; a generation of 0 means that none exists.
    pub(super) fn check(
        &self,
        existing: Option<&StoredObject>,
        ignore_create_only: bool,
    ) -> Result<(), Failure> {
        let generation = existing.map_or(0, |object| object.generation);
        let metageneration = existing.map(|_| METAGENERATION);
        let skip = ignore_create_only && self.generation_match == Some(0);
        let holds = self.generation_match.is_none_or(|wanted| skip || wanted == generation)
            && self.generation_not_match.is_none_or(|unwanted| unwanted != generation)
            && self.metageneration_match.is_none_or(|wanted| Some(wanted) == metageneration)
            && self.metageneration_not_match.is_none_or(|unwanted| Some(unwanted) != metageneration);
        if holds { Ok(()) } else { Err(Failure::precondition()) }
    }
}

fn number(name: &str, value: &str) -> Result<i64, Failure> {
    value
        .parse()
        .map_err(|_| Failure::new(400, "InvalidArgument", &format!("Invalid value for {name}: {value}")))
}
