//! Texts about stores: credentials, permissions, uploads without progress.

use super::recogniser::{Recogniser, text};
use crate::explain::Cause;

pub(super) const TEXTS: &[Recogniser] = &[
    text(
        Cause::CredentialsExpired,
        60,
        r"ExpiredToken|TokenRefreshRequired|[Tt]he provided token has expired|security token included in the request is expired",
        "AWS",
        "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the UploadPart operation: The provided token has expired.",
    ),
    text(
        Cause::CredentialsExpired,
        60,
        r"SSO session associated with this profile has expired|Token has expired and refresh failed",
        "AWS, single sign-on",
        "Error when retrieving token from sso: Token has expired and refresh failed",
    ),
    text(
        Cause::CredentialsExpired,
        55,
        r"Reauthentication is needed|Token has been expired or revoked|invalid_grant",
        "Google",
        "google.auth.exceptions.RefreshError: Reauthentication is needed. Please run `gcloud auth application-default login` to reauthenticate.",
    ),
    text(
        Cause::CredentialsExpired,
        60,
        r"the credentials have expired",
        "stepvault",
        "cannot write: s3://bucket/x: the credentials have expired",
    ),
    text(
        Cause::AccessRefused,
        50,
        r"\(AccessDenied\)|<Code>AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|\(403\) when calling",
        "S3",
        "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the PutObject operation: Access Denied",
    ),
    text(
        Cause::AccessRefused,
        50,
        r"does not have storage\.\S+ access|Anonymous caller does not have",
        "Google Cloud Storage",
        "google.api_core.exceptions.Forbidden: 403 trainer@project.iam.gserviceaccount.com does not have storage.objects.create access to the Google Cloud Storage object.",
    ),
    text(
        Cause::AccessRefused,
        50,
        r"Unable to locate credentials|NoCredentialsError|DefaultCredentialsError|default credentials were not found",
        "AWS and Google SDKs",
        "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
    ),
    text(
        Cause::AccessRefused,
        50,
        r"the credentials do not allow this|does not know this access key|secret key does not (fit|match)|session token is not valid",
        "stepvault",
        "cannot write: s3://bucket/x: the credentials do not allow this",
    ),
    text(
        Cause::UploadStalled,
        40,
        r"Could not connect to the endpoint URL|Read timeout on endpoint URL|Connect timeout on endpoint URL",
        "AWS SDKs",
        "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: \"https://bucket.s3.amazonaws.com/x\"",
    ),
    text(
        Cause::UploadStalled,
        35,
        r"\(SlowDown\)|Please reduce your request rate|rateLimitExceeded|the store asks to slow down",
        "S3, Google Cloud Storage and stepvault",
        "An error occurred (SlowDown) when calling the UploadPart operation: Please reduce your request rate.",
    ),
    text(
        Cause::UploadStalled,
        45,
        r"is not durable on \S+:",
        "stepvault",
        "warning: step 5 (attempt 1) of 'demo/a' is not durable on main: connection refused",
    ),
];
