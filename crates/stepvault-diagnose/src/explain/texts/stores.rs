//! Texts about stores: credentials, permissions, uploads without progress.

use super::recogniser::{Recogniser, text};
use crate::explain::Cause;

pub(super) const TEXTS: &[Recogniser] = &[
    text(Cause::CredentialsExpired, 60, "AWS")
        .pattern(r"ExpiredToken|TokenRefreshRequired|[Tt]he provided token has expired|security token included in the request is expired")
        .example("botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the UploadPart operation: The provided token has expired."),
    text(Cause::CredentialsExpired, 60, "AWS, single sign-on")
        .pattern(r"SSO session associated with this profile has expired|Token has expired and refresh failed")
        .example("Error when retrieving token from sso: Token has expired and refresh failed"),
    text(Cause::CredentialsExpired, 55, "Google")
        .pattern(r"Reauthentication is needed|Token has been expired or revoked|invalid_grant")
        .example("google.auth.exceptions.RefreshError: Reauthentication is needed. Please run `gcloud auth application-default login` to reauthenticate."),
    text(Cause::CredentialsExpired, 60, "stepvault")
        .pattern(r"the credentials have expired")
        .example("cannot write: s3://bucket/x: the credentials have expired"),
    text(Cause::AccessRefused, 50, "S3")
        .pattern(r"\(AccessDenied\)|<Code>AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|\(403\) when calling")
        .example("botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the PutObject operation: Access Denied"),
    text(Cause::AccessRefused, 50, "Google Cloud Storage")
        .pattern(r"does not have storage\.\S+ access|Anonymous caller does not have")
        .example("google.api_core.exceptions.Forbidden: 403 trainer@project.iam.gserviceaccount.com does not have storage.objects.create access to the Google Cloud Storage object."),
    text(Cause::AccessRefused, 50, "AWS and Google SDKs")
        .pattern(r"Unable to locate credentials|NoCredentialsError|DefaultCredentialsError|default credentials were not found")
        .example("botocore.exceptions.NoCredentialsError: Unable to locate credentials"),
    text(Cause::AccessRefused, 50, "stepvault")
        .pattern(r"the credentials do not allow this|does not know this access key|secret key does not (fit|match)|session token is not valid")
        .example("cannot write: s3://bucket/x: the credentials do not allow this"),
    text(Cause::UploadStalled, 40, "AWS SDKs")
        .pattern(r"Could not connect to the endpoint URL|Read timeout on endpoint URL|Connect timeout on endpoint URL")
        .example("botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: \"https://bucket.s3.amazonaws.com/x\""),
    text(Cause::UploadStalled, 35, "S3, Google Cloud Storage and stepvault")
        .pattern(r"\(SlowDown\)|Please reduce your request rate|rateLimitExceeded|the store asks to slow down")
        .example("An error occurred (SlowDown) when calling the UploadPart operation: Please reduce your request rate."),
    text(Cause::UploadStalled, 45, "stepvault")
        .pattern(r"is not durable on \S+:")
        .example("warning: step 5 (attempt 1) of 'demo/a' is not durable on main: connection refused"),
];
