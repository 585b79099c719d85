//! Counters and latency histograms of one process, in Prometheus' text format.
//!
//! Recording is a few relaxed atomic additions and never allocates. Histograms have one bucket for
//! each power of two microseconds; the last one has all latencies above 2^26 us (67 s).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use zonal_wire::{OperationTimes, Service};

/// Buckets: up to 1 us, 2 us, ... 2^26 us, then the rest.
const BUCKETS: usize = 28;
/// Message tags are below this.
const TAGS: usize = 128;

/// Latencies of one operation.
struct Operation {
    name: OnceLock<&'static str>,
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
    failed: AtomicU64,
}

impl Operation {
    fn new() -> Self {
        Self {
            name: OnceLock::new(),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum_us: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }
}

/// A source of gauges, called when metrics are read: name (with labels) and value.
pub type GaugeSource = Box<dyn Fn() -> Vec<(String, u64)> + Send + Sync>;

/// All metrics of a process.
pub struct Metrics {
    operations: [Vec<Operation>; SERVICES.len()],
    gauges: Mutex<Vec<GaugeSource>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let tags = || (0..TAGS).map(|_| Operation::new()).collect();
        Self {
            operations: [tags(), tags(), tags(), tags(), tags(), tags()],
            gauges: Mutex::default(),
        }
    }
}

fn index(service: Service) -> Option<usize> {
    match service {
        Service::Meta => Some(0),
        Service::Storage => Some(1),
        Service::Manager => Some(2),
        Service::Admin => Some(3),
        Service::Agent => Some(4),
        Service::Replica => Some(5),
        Service::Connection => None,
    }
}

const SERVICES: [&str; 6] = ["meta", "storage", "manager", "admin", "agent", "replica"];

/// The bucket of a latency: the first one whose bound is not below it.
fn bucket(us: u64) -> usize {
    let bits = u64::BITS - us.saturating_sub(1).leading_zeros();
    (bits as usize).min(BUCKETS - 1)
}

impl Metrics {
    /// Counts one operation.
    pub fn record(
        &self,
        service: Service,
        tag: u8,
        name: &'static str,
        took: Duration,
        failed: bool,
    ) {
        let Some(operation) =
            index(service).and_then(|index| self.operations[index].get(usize::from(tag)))
        else {
            return;
        };
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        operation.name.get_or_init(|| name);
        operation.buckets[bucket(us)].fetch_add(1, Ordering::Relaxed);
        operation.sum_us.fetch_add(us, Ordering::Relaxed);
        if failed {
            operation.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds a source of gauges.
    pub fn add_gauges(&self, source: GaugeSource) {
        self.gauges
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(source);
    }

    /// The present values of all gauges.
    #[must_use]
    pub fn gauges(&self) -> Vec<(String, u64)> {
        let sources = self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().flat_map(|source| source()).collect()
    }

    /// Times of all operations that have ended at least once.
    #[must_use]
    pub fn operation_times(&self) -> Vec<OperationTimes> {
        let services = SERVICES.iter().zip(&self.operations);
        let operations = services.flat_map(|(service, operations)| {
            let named = operations.iter();
            named.filter_map(|operation| {
                Some(OperationTimes {
                    service: (*service).to_owned(),
                    operation: (*operation.name.get()?).to_owned(),
                    sum_us: operation.sum_us.load(Ordering::Relaxed),
                    buckets: (operation.buckets.iter())
                        .map(|bucket| bucket.load(Ordering::Relaxed))
                        .collect(),
                })
            })
        });
        operations.collect()
    }

    /// Number of ended operations of a service.
    #[must_use]
    pub fn count(&self, service: Service) -> u64 {
        let operations = index(service).map(|index| &self.operations[index]);
        let buckets = operations
            .into_iter()
            .flatten()
            .flat_map(|operation| &operation.buckets);
        buckets.map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// All metrics in Prometheus' text format.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        out.push_str("# HELP zonal_request_seconds Time from request to reply.\n");
        out.push_str("# TYPE zonal_request_seconds histogram\n");
        let mut failures = String::new();
        for (service, operations) in SERVICES.iter().zip(&self.operations) {
            for operation in operations {
                if let Some(name) = operation.name.get() {
                    print_operation(&mut out, &mut failures, service, name, operation);
                }
            }
        }
        out.push_str("# HELP zonal_request_failures_total Requests answered with an error.\n");
        out.push_str("# TYPE zonal_request_failures_total counter\n");
        out.push_str(&failures);
        print_gauges(&mut out, &self.gauges());
        if let Some(bytes) = resident_bytes() {
            out.push_str("# HELP process_resident_memory_bytes Resident memory size in bytes.\n");
            out.push_str("# TYPE process_resident_memory_bytes gauge\n");
            // Writing to a String cannot fail.
            let _ = writeln!(out, "process_resident_memory_bytes {bytes}");
        }
        out
    }
}

/// Prints gauges; samples of one name stand together, after its type.
fn print_gauges(out: &mut String, gauges: &[(String, u64)]) {
    let mut families: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
    for (name, value) in gauges {
        let family = name.split('{').next().unwrap_or_default();
        families.entry(family).or_default().push((name, *value));
    }
    for (family, samples) in families {
        let kind = match family.ends_with("_total") {
            true => "counter",
            false => "gauge",
        };
        let _ = writeln!(out, "# HELP zonal_{family} See docs/metrics.md.");
        let _ = writeln!(out, "# TYPE zonal_{family} {kind}");
        for (name, value) in samples {
            let _ = writeln!(out, "zonal_{name} {value}");
        }
    }
}

fn print_operation(
    out: &mut String,
    failures: &mut String,
    service: &str,
    name: &str,
    operation: &Operation,
) {
    let labels = format!("service=\"{service}\",operation=\"{name}\"");
    let mut count = 0;
    for (index, bucket) in operation.buckets.iter().enumerate() {
        let here = bucket.load(Ordering::Relaxed);
        count += here;
        // Empty buckets are left out (all are cumulative), except the last one.
        if index == BUCKETS - 1 {
            let _ = writeln!(
                out,
                "zonal_request_seconds_bucket{{{labels},le=\"+Inf\"}} {count}"
            );
        } else if here > 0 {
            let bound = (1_u64 << index) as f64 / 1e6;
            let _ = writeln!(
                out,
                "zonal_request_seconds_bucket{{{labels},le=\"{bound}\"}} {count}"
            );
        }
    }
    let sum = operation.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
    let _ = writeln!(out, "zonal_request_seconds_sum{{{labels}}} {sum}");
    let _ = writeln!(out, "zonal_request_seconds_count{{{labels}}} {count}");
    let failed = operation.failed.load(Ordering::Relaxed);
    if failed > 0 {
        let _ = writeln!(
            failures,
            "zonal_request_failures_total{{{labels}}} {failed}"
        );
    }
}

/// Resident memory of this process, in bytes.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_goes_into_the_bucket_of_its_bound() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(1), 0);
        assert_eq!(bucket(2), 1);
        assert_eq!(bucket(3), 2);
        assert_eq!(bucket(4), 2);
        assert_eq!(bucket(1 << 26), 26);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn recorded_operations_show_in_the_text() {
        let metrics = Metrics::default();
        let took = Duration::from_micros(100);
        metrics.record(Service::Storage, 1, "Read", took, false);
        metrics.record(Service::Storage, 1, "Read", took, true);
        metrics.add_gauges(Box::new(|| vec![("sessions".to_owned(), 7)]));
        let text = metrics.prometheus();
        let labels = "service=\"storage\",operation=\"Read\"";
        for line in [
            format!("zonal_request_seconds_bucket{{{labels},le=\"0.000128\"}} 2"),
            format!("zonal_request_seconds_bucket{{{labels},le=\"+Inf\"}} 2"),
            format!("zonal_request_seconds_count{{{labels}}} 2"),
            format!("zonal_request_failures_total{{{labels}}} 1"),
            "zonal_sessions 7".to_owned(),
        ] {
            assert!(text.contains(&line), "{line} is missing in\n{text}");
        }
        assert_eq!(metrics.count(Service::Storage), 2);
        let times = metrics.operation_times();
        assert_eq!(times.len(), 1);
        assert_eq!((times[0].sum_us, times[0].buckets[7]), (200, 2));
    }
}
