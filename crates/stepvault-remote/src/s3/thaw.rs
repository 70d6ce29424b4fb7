//! Requests objects from the archive classes.
//!
//! Source: the S3 API reference of `RestoreObject` and `HeadObject`, and "Archive retrieval options" in the user guide.

use aws_sdk_s3::types::{GlacierJobParameters, RestoreRequest, Tier};
use stepvault_core::{Error, ErrorKind, Result};

use super::errors::Fault;
use super::store::S3Store;
use crate::store::{ThawSpeed, Thawed};

const WHAT: &str = "cannot request the object from the archive";
/// How long the object stays readable.
const READABLE_DAYS: i32 = 3;

impl S3Store {
    /// Requests an archived object, unless it is readable, or was requested before.
    pub(super) async fn request_thaw(&self, key: &str, speed: ThawSpeed) -> Result<Thawed> {
        let head = self.head_output(key).await?;
        let class = head.storage_class().map(|class| class.as_str().to_owned()).unwrap_or_default();
        // Intelligent-Tiering has archive tiers of its own, from which an object returns for good.
        let is_tiered = head.archive_status().is_some();
        let is_archived = is_tiered || matches!(class.as_str(), "GLACIER" | "DEEP_ARCHIVE");
        let is_under_way = |restore: &str| restore.contains("ongoing-request=\"true\"");
        match head.restore() {
            _ if !is_archived => return Ok(Thawed::Readable),
            Some(restore) if is_under_way(restore) => return Ok(Thawed::Pending { class }),
            Some(_) => return Ok(Thawed::Readable),
            None => {}
        }
        let tier = match speed {
            ThawSpeed::Expedited => Tier::Expedited,
            ThawSpeed::Standard => Tier::Standard,
            ThawSpeed::Bulk => Tier::Bulk,
        };
        let job = GlacierJobParameters::builder().tier(tier).build();
        let job =
            job.map_err(|error| Error::new(ErrorKind::Failed, WHAT).on(self.name(key)).caused_by(error))?;
        let request = RestoreRequest::builder()
            .set_days((!is_tiered).then_some(READABLE_DAYS))
            .glacier_job_parameters(job)
            .build();
        let call = self.client().await?.restore_object().bucket(&self.bucket).key(self.full_key(key));
        let answer = call.restore_request(request).send().await;
        self.unless(WHAT, key, answer, Fault::is_thawing)?;
        Ok(Thawed::Pending { class })
    }
}
