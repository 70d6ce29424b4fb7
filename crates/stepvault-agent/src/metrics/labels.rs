//! Labels of samples, and durations by labels.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use stepvault_core::{RemoteName, RunName};

pub(crate) type Labels<const N: usize> = [(&'static str, String); N];

/// How long something took, by these labels.
pub(crate) type Durations<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// Creates durations with buckets from half a second to 18 hours: a small file, and a step over a slow link.
pub(crate) fn durations<const N: usize>() -> Durations<N> {
    Durations::new_with_constructor(|| Histogram::new(exponential_buckets(0.5, 2.0, 18)))
}

pub(crate) fn of_both(run: &RunName, remote: &RemoteName) -> Labels<2> {
    [("run", run.to_string()), ("remote", remote.to_string())]
}
