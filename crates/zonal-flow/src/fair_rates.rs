//! Max-min fair rates by progressive filling, and the times at which flows end.
//!
//! A flow is a transfer that spreads its bytes over links in fixed parts: a stripe's columns go in
//! step. Rates rise together until a link is full; its flows keep their rate and the others rise.
//!
//! Invariants: 1. no link carries more than its rate. 2. Each flow crosses a full link on which no
//! flow is faster.

use crate::ModelError;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Flows that end within this part of the time passed so far end together.
const TOGETHER: f64 = 0.02;

/// Equal transfers: each has these parts and bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowClass {
    /// Links by number, with the part of the flow's bytes that crosses each. Empty: the flow ends
    /// at once.
    pub parts: Vec<(usize, f64)>,
    /// Transfers of this class.
    pub count: u32,
    /// Bytes of each.
    pub bytes: f64,
}

/// The course of all flows until the last one has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowTimes {
    /// Bytes a second of all flows together at the start.
    pub first_rate: f64,
    /// Sum of each flow's own mean rate.
    pub sum_of_rates: f64,
    /// Seconds until the last flow ends.
    pub seconds: f64,
}

#[derive(PartialEq)]
struct FullAt {
    level: f64,
    link: usize,
}

impl Eq for FullAt {}

impl Ord for FullAt {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap's greatest is the link that is full first.
        let by_level = other.level.total_cmp(&self.level);
        by_level.then(other.link.cmp(&self.link))
    }
}

impl PartialOrd for FullAt {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Merges equal flows into classes.
#[must_use]
pub fn merged(mut flows: Vec<FlowClass>) -> Vec<FlowClass> {
    let order = |a: &FlowClass, b: &FlowClass| {
        let parts = a.parts.iter().zip(&b.parts).map(|(a, b)| {
            let link = a.0.cmp(&b.0);
            link.then(a.1.total_cmp(&b.1))
        });
        let lengths = a.parts.len().cmp(&b.parts.len());
        let bytes = a.bytes.total_cmp(&b.bytes);
        lengths.then(parts.fold(Ordering::Equal, Ordering::then).then(bytes))
    };
    flows.sort_by(order);
    flows.dedup_by(|next, kept| {
        let is_equal = next.parts == kept.parts && next.bytes.total_cmp(&kept.bytes).is_eq();
        if is_equal {
            kept.count = kept.count.saturating_add(next.count);
        }
        is_equal
    });
    flows
}

/// Checks what the arithmetic relies on.
fn check(links: &[f64], flows: &[FlowClass]) -> Result<(), ModelError> {
    let is_positive = |number: f64| number.is_finite() && number > 0.0;
    let links_ok = links.iter().all(|rate| is_positive(*rate));
    let flows_ok = flows.iter().all(|flow| {
        let mut parts = flow.parts.iter();
        let parts_ok = parts.all(|(link, part)| *link < links.len() && is_positive(*part));
        parts_ok && is_positive(flow.bytes)
    });
    if links_ok && flows_ok {
        Ok(())
    } else {
        Err(ModelError::Rate)
    }
}

/// The max-min fair rate of each class of flows over links with these rates. Infinite for a flow
/// without links, 0 for a class without flows.
///
/// # Errors
/// `Rate` for a rate, a part or a size that is not above 0, or an unknown link.
pub fn fair_rates(links: &[f64], flows: &[FlowClass]) -> Result<Vec<f64>, ModelError> {
    check(links, flows)?;
    Ok(filled(links, flows))
}

fn filled(links: &[f64], flows: &[FlowClass]) -> Vec<f64> {
    let mut rates = vec![f64::INFINITY; flows.len()];
    let mut weight = vec![0.0; links.len()];
    let mut free = links.to_vec();
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); links.len()];
    let mut left = vec![0_u32; links.len()];
    for (index, flow) in flows.iter().enumerate() {
        if flow.count == 0 {
            if let Some(rate) = rates.get_mut(index) {
                *rate = 0.0;
            }
            continue;
        }
        for (link, part) in &flow.parts {
            weight[*link] += part * f64::from(flow.count);
            users[*link].push(index);
            left[*link] += 1;
        }
    }
    let used = (0..links.len()).filter(|link| left[*link] > 0);
    let mut heap: BinaryHeap<FullAt> = used
        .map(|link| FullAt {
            level: free[link] / weight[link],
            link,
        })
        .collect();
    let mut level: f64 = 0.0;
    while let Some(first) = heap.pop() {
        let link = first.link;
        if left[link] == 0 {
            continue;
        }
        // Flows that stopped since have left more to the others: the level only rises.
        let now = free[link] / weight[link];
        if now > first.level * (1.0 + 1e-12) {
            heap.push(FullAt { level: now, link });
            continue;
        }
        level = level.max(now);
        for index in std::mem::take(&mut users[link]) {
            if rates[index].is_finite() {
                continue;
            }
            rates[index] = level;
            let count = f64::from(flows[index].count);
            for (of, part) in &flows[index].parts {
                free[*of] = (free[*of] - level * part * count).max(0.0);
                weight[*of] = (weight[*of] - part * count).max(f64::MIN_POSITIVE);
                left[*of] -= 1;
            }
        }
    }
    rates
}

/// Lets all flows start together and fills anew whenever some have ended.
///
/// # Errors
/// As [`fair_rates`].
pub fn run_flows(links: &[f64], flows: &[FlowClass]) -> Result<FlowTimes, ModelError> {
    check(links, flows)?;
    let mut running: Vec<FlowClass> = flows.to_vec();
    running.retain(|flow| flow.count > 0 && !flow.parts.is_empty());
    let sizes: Vec<f64> = running.iter().map(|flow| flow.bytes).collect();
    let mut times = FlowTimes {
        first_rate: 0.0,
        sum_of_rates: 0.0,
        seconds: 0.0,
    };
    let mut is_first = true;
    while running.iter().any(|flow| flow.count > 0) {
        let rates = filled(links, &running);
        let active = || {
            running
                .iter()
                .zip(&rates)
                .filter(|(flow, _)| flow.count > 0)
        };
        if is_first {
            let sum = active().map(|(flow, rate)| rate * f64::from(flow.count));
            times.first_rate = sum.sum();
            is_first = false;
        }
        let ends = active().map(|(flow, rate)| flow.bytes / rate);
        let next = ends.fold(f64::INFINITY, f64::min);
        let until = next + TOGETHER * (times.seconds + next);
        let mut last = next;
        for ((flow, rate), size) in running.iter_mut().zip(&rates).zip(&sizes) {
            if flow.count == 0 {
                continue;
            }
            let end = flow.bytes / rate;
            if end <= until {
                times.sum_of_rates += f64::from(flow.count) * size / (times.seconds + end);
                flow.count = 0;
                last = last.max(end);
            }
        }
        for (flow, rate) in running.iter_mut().zip(&rates) {
            flow.bytes = (flow.bytes - last * rate).max(f64::MIN_POSITIVE);
        }
        times.seconds += last;
    }
    Ok(times)
}
