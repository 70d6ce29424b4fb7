//! Resumable sessions of the JSON API.

use std::collections::BTreeMap;
use std::num::ParseIntError;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::Bytes;
use uuid::Uuid;

use super::checksums::{Checksums, Claims};
use super::conditions::Conditions;
use super::json::{attributes_of, object_name, parse_resource, resource_of, set_content_type};
use super::reply::{Failure, Reply};
use super::request::{Request, flip_first_bit};
use super::server::{Dropped, Intake, Outcome};
use super::state::{Core, NewObject, lock};
use super::{PendingKind, PendingUpload};
use crate::objects::StoredObject;

/// Chunks other than the last are multiples of this, and so are the bytes that survive a broken connection.
const QUANTUM_BYTES: usize = 256 * 1024;

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    bucket: String,
    key: String,
    initiated: SystemTime,
    attributes: BTreeMap<String, String>,
    claims: Claims,
    conditions: Conditions,
    total_bytes: Option<usize>,
    received: Vec<u8>,
    /// Number of PUTs with data: an abandoned connection must not add bytes to those of a later one.
    turn: u64,
    end: Option<End>,
}

#[derive(Debug, Clone)]
enum End {
    Finished(StoredObject),
    Failed(Failure),
}

impl Session {
    fn persisted_bytes(&self) -> usize {
        self.received.len() / QUANTUM_BYTES * QUANTUM_BYTES
    }

    /// Returns 308 with the persisted range; no `Range` when nothing is persisted. A client whose HTTP library would
    /// follow a redirection asks for 200 instead.
    fn incomplete(&self, request: &Request) -> Reply {
        let reply = if request.header("x-guploader-no-308") == Some("yes") {
            Reply::new(200).header("x-http-status-code-override", "308")
        } else {
            Reply::new(308)
        };
        match self.persisted_bytes() {
            0 => reply,
            bytes => reply.header("range", format!("bytes=0-{}", bytes - 1)),
        }
    }
}

/// `POST …?uploadType=resumable`: opens a session and returns its URI.
pub(super) fn start(core: &Core, request: &Request, bucket: &str, body: &Bytes) -> Outcome {
    let resource = parse_resource(body)?;
    let key = object_name(request, &resource)?;
    let conditions = Conditions::from_query(&request.query)?;
    core.check(bucket, &key, &conditions)?;
    let total_bytes = match request.header("x-upload-content-length") {
        Some(value) => Some(value.parse().map_err(|_| invalid("Invalid X-Upload-Content-Length."))?),
        None => None,
    };
    let mut attributes = attributes_of(&resource);
    set_content_type(&mut attributes, request.header("x-upload-content-type"))?;
    let session = Session {
        bucket: bucket.to_owned(),
        key: key.clone(),
        initiated: SystemTime::now(),
        attributes,
        claims: Claims::from_headers(&request.headers)?.and(Claims::from_resource(&resource)?),
        conditions,
        total_bytes,
        received: Vec::new(),
        turn: 0,
        end: None,
    };
    let id = Uuid::new_v4().simple().to_string();
    lock(&core.sessions).insert(id.clone(), Arc::new(Mutex::new(session)));
    let query = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("uploadType", "resumable")
        .append_pair("name", &key)
        .append_pair("upload_id", &id)
        .finish();
    // Uses the listener's own address: a Host header without a port would send the client elsewhere.
    let location = format!("{}/upload/storage/v1/b/{bucket}/o?{query}", request.endpoint);
    Ok(Reply::new(200).header("location", location).header("x-guploader-uploadid", id))
}

/// `DELETE` on a session URI: ends the session without an object and answers 499.
pub(super) fn cancel(core: &Core, request: &Request) -> Outcome {
    let id = upload_id(request)?;
    if lock(&core.sessions).remove(id).is_none() {
        return Err(missing(core, id));
    }
    lock(&core.ended_sessions).insert(id.to_owned());
    Ok(Reply::new(499))
}

/// `PUT` on a session URI: data, a status query, or the end. The URI itself is the credential, as documented.
pub(super) async fn put(core: &Core, request: &Request, intake: &mut Intake) -> Result<Outcome, Dropped> {
    let session = match find(core, request) {
        Ok(session) => session,
        Err(failure) => return refuse(intake, failure).await,
    };
    let plan = ContentRange::parse(request.header("content-range"))
        .and_then(|range| begin(core, request, &session, &range));
    let upload = match plan {
        Ok(Step::Answer(reply)) => {
            intake.drain().await?;
            return Ok(Ok(reply));
        }
        Ok(Step::Finish) => {
            intake.drain().await?;
            return Ok(finish(core, request, &mut lock(&session)));
        }
        Ok(Step::Receive(upload)) => upload,
        Err(failure) => return refuse(intake, failure).await,
    };

    let mut taken_bytes = 0;
    let mut damage = request.damage_upload;
    while let Some(data) = intake.next().await? {
        let repeated = upload.repeated_bytes.saturating_sub(taken_bytes).min(data.len());
        taken_bytes += data.len();
        let mut fresh = data.slice(repeated..);
        if damage && !fresh.is_empty() {
            fresh = flip_first_bit(&fresh);
            damage = false;
        }
        let mut session = lock(&session);
        if session.turn != upload.turn {
            return Err(Dropped);
        }
        session.received.extend_from_slice(&fresh);
    }
    Ok(receive_end(core, request, &mut lock(&session), &upload, taken_bytes))
}

/// The purpose of a PUT.
enum Step {
    Answer(Reply),
    Finish,
    Receive(Upload),
}

/// A PUT with data.
struct Upload {
    turn: u64,
    /// Leading bytes that are persisted already and are therefore ignored.
    repeated_bytes: usize,
    persisted_before: usize,
    expected_bytes: Option<usize>,
    last: bool,
}

fn begin(
    core: &Core,
    request: &Request,
    session: &Mutex<Session>,
    range: &ContentRange,
) -> Result<Step, Failure> {
    let mut session = lock(session);
    match session.end.clone() {
        Some(End::Finished(object)) => {
            let resource = resource_of(core, &request.endpoint, &session.bucket, &session.key, &object);
            return Ok(Step::Answer(Reply::json(200, &resource)));
        }
        Some(End::Failed(failure)) => return Err(failure),
        None => {}
    }
    if let Some(total) = range.total {
        if session.total_bytes.is_some_and(|known| known != total) {
            return Err(invalid("The total size differs from the one stated before."));
        }
        session.total_bytes = Some(total);
    }
    let Some(start) = range.start else {
        // A query ends an upload only when it states the total and all bytes are here.
        let complete = range.total == Some(session.received.len());
        return Ok(if complete { Step::Finish } else { Step::Answer(session.incomplete(request)) });
    };
    let persisted = session.persisted_bytes();
    if start > persisted {
        return Err(invalid(&format!(
            "According to the Content-Range header, the upload offset is {start} byte(s), which exceeds \
             already uploaded size of {persisted} byte(s)."
        )));
    }
    let expected_bytes = range.end.map(|end| end - start);
    let last = match (range.end, range.total) {
        (Some(end), Some(total)) if end > total => return Err(invalid("The range exceeds the total size.")),
        (Some(end), total) => Some(end) == total,
        (None, _) => true,
    };
    if !last && expected_bytes.is_some_and(|bytes| !bytes.is_multiple_of(QUANTUM_BYTES)) {
        return Err(invalid("Every chunk but the last must be a multiple of 262144 bytes."));
    }
    session.received.truncate(persisted);
    session.turn += 1;
    Ok(Step::Receive(Upload {
        turn: session.turn,
        repeated_bytes: persisted - start,
        persisted_before: persisted,
        expected_bytes,
        last,
    }))
}

fn receive_end(
    core: &Core,
    request: &Request,
    session: &mut Session,
    upload: &Upload,
    taken_bytes: usize,
) -> Outcome {
    if upload.expected_bytes.is_some_and(|expected| expected != taken_bytes) {
        session.received.truncate(upload.persisted_before);
        return Err(invalid("The body's length differs from the Content-Range header."));
    }
    if upload.last { finish(core, request, session) } else { Ok(session.incomplete(request)) }
}

/// Checks the complete upload and creates the object. A session fails permanently when a check fails.
fn finish(core: &Core, request: &Request, session: &mut Session) -> Outcome {
    let received = std::mem::take(&mut session.received);
    let result = commit(core, request, session, received);
    match result {
        Ok(object) => {
            let resource = resource_of(core, &request.endpoint, &session.bucket, &session.key, &object);
            session.end = Some(End::Finished(object));
            Ok(Reply::json(200, &resource))
        }
        Err(failure) => {
            session.end = Some(End::Failed(failure.clone()));
            Err(failure)
        }
    }
}

fn commit(
    core: &Core,
    request: &Request,
    session: &Session,
    received: Vec<u8>,
) -> Result<StoredObject, Failure> {
    if session.total_bytes.is_some_and(|total| total != received.len()) {
        return Err(invalid("The object's length differs from the total size stated."));
    }
    let checksums = Checksums::of(&received);
    let claims = session.claims.clone().and(Claims::from_headers(&request.headers)?);
    claims.check(&checksums, core)?;
    let new = NewObject {
        bucket: session.bucket.clone(),
        key: session.key.clone(),
        body: Bytes::from(received),
        checksums,
        attributes: session.attributes.clone(),
    };
    core.commit(new, &session.conditions)
}

/// `Content-Range` of an upload: `start` is `None` in a query, `end` (exclusive) where the body's end determines it.
#[derive(Debug, PartialEq, Eq)]
struct ContentRange {
    start: Option<usize>,
    end: Option<usize>,
    total: Option<usize>,
}

impl ContentRange {
    /// Without the header, the body is the whole object.
    fn parse(header: Option<&str>) -> Result<Self, Failure> {
        let Some(header) = header else {
            return Ok(Self { start: Some(0), end: None, total: None });
        };
        let parsed = || {
            let (range, total) = header.strip_prefix("bytes ")?.split_once('/')?;
            let total = optional(total).ok()?;
            if range == "*" {
                return Some(Self { start: None, end: None, total });
            }
            let (first, last) = range.split_once('-')?;
            let start: usize = first.parse().ok()?;
            let end = optional(last).ok()?.map(|last: usize| last.saturating_add(1));
            end.is_none_or(|end| end > start).then_some(Self { start: Some(start), end, total })
        };
        parsed().ok_or_else(|| invalid(&format!("Failed to parse Content-Range header: {header}")))
    }
}

/// Parses a number, or `*` as `None`.
fn optional(text: &str) -> Result<Option<usize>, ParseIntError> {
    if text == "*" { Ok(None) } else { text.parse().map(Some) }
}

fn find(core: &Core, request: &Request) -> Result<Arc<Mutex<Session>>, Failure> {
    let id = upload_id(request)?;
    let session = lock(&core.sessions).get(id).cloned();
    session.ok_or_else(|| missing(core, id))
}

fn upload_id(request: &Request) -> Result<&str, Failure> {
    request
        .parameter("upload_id")
        .ok_or_else(|| Failure::new(400, "required", "Required parameter: upload_id"))
}

async fn refuse(intake: &mut Intake, failure: Failure) -> Result<Outcome, Dropped> {
    intake.drain().await?;
    Ok(Err(failure))
}

/// Tells a session that was cancelled or has expired from one that never existed.
fn missing(core: &Core, id: &str) -> Failure {
    if lock(&core.ended_sessions).contains(id) {
        Failure::new(410, "gone", "The upload session was cancelled or has expired.")
    } else {
        Failure::new(404, "notFound", "The upload session does not exist.")
    }
}

fn invalid(message: &str) -> Failure {
    Failure::new(400, "InvalidArgument", &format!("Invalid request. {message}"))
}

pub(super) fn pending(core: &Core) -> Vec<PendingUpload> {
    let sessions = lock(&core.sessions).clone();
    let mut pending: Vec<_> = sessions
        .iter()
        .filter_map(|(id, session)| {
            let session = lock(session);
            session.end.is_none().then(|| PendingUpload {
                kind: PendingKind::Resumable,
                id: id.clone(),
                bucket: session.bucket.clone(),
                key: session.key.clone(),
                stored_bytes: session.persisted_bytes() as u64,
                initiated: session.initiated,
            })
        })
        .collect();
    pending
        .sort_by(|one, other| (&one.bucket, &one.key, &one.id).cmp(&(&other.bucket, &other.key, &other.id)));
    pending
}

pub(super) fn expire_all(core: &Core) {
    let expired = std::mem::take(&mut *lock(&core.sessions));
    lock(&core.ended_sessions).extend(expired.into_keys());
}
