//! The same answer in the words of the program that starts the job.
//!
//! Names of zones and hosts come from the zone map. Each byte that a format could read as syntax is
//! replaced by `-`, so a name cannot add a line or a field.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The text that a scheduler or a launcher reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobFormat {
    /// Hosts with slots, for `mpirun --hostfile` of Open MPI.
    Hostfile,
    /// Ranks with hosts, for `mpirun --rankfile` of Open MPI.
    Rankfile,
    /// Switches with nodes: `topology.conf` of Slurm.
    SlurmTopology,
    /// Options of `sbatch` with nodes of the zone.
    SlurmHints,
    /// `nodeAffinity` of a pod, as YAML.
    K8sAffinity,
    /// Commands that label nodes with their zone.
    K8sLabels,
    /// Hosts with network locations: the table of Hadoop's `TableMapping`.
    YarnTopology,
}

impl JobFormat {
    /// All formats with their names in commands.
    pub const NAMES: [(&'static str, Self); 7] = [
        ("hostfile", Self::Hostfile),
        ("rankfile", Self::Rankfile),
        ("slurm-topology", Self::SlurmTopology),
        ("slurm-hints", Self::SlurmHints),
        ("k8s-affinity", Self::K8sAffinity),
        ("k8s-labels", Self::K8sLabels),
        ("yarn-topology", Self::YarnTopology),
    ];

    /// The format of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let mut names = Self::NAMES.iter();
        names.find(|(of, _)| *of == name).map(|(_, format)| *format)
    }

    /// Whether it describes all nodes of the cell, not those of one job.
    #[must_use]
    pub fn is_of_cell(self) -> bool {
        matches!(
            self,
            Self::SlurmTopology | Self::K8sLabels | Self::YarnTopology
        )
    }
}

/// A node as schedulers know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobNode {
    /// Its host's name or address, without a port.
    pub host: String,
    /// The name of its zone.
    pub zone: String,
}

/// Formats the nodes of a job, or of the cell for formats that describe it
/// ([`JobFormat::is_of_cell`]).
#[must_use]
pub fn render(format: JobFormat, nodes: &[JobNode]) -> String {
    match format {
        JobFormat::Hostfile => hostfile(nodes),
        JobFormat::Rankfile => rankfile(nodes),
        JobFormat::SlurmTopology => slurm_topology(nodes),
        JobFormat::SlurmHints => slurm_hints(nodes),
        JobFormat::K8sAffinity => k8s_affinity(nodes),
        JobFormat::K8sLabels => lines(nodes, |host, zone| {
            format!("kubectl label node {host} topology.kubernetes.io/zone={zone} --overwrite")
        }),
        JobFormat::YarnTopology => lines(nodes, |host, zone| format!("{host} /{zone}")),
    }
}

/// A name that no format reads as syntax. A colon stays only between hexadecimal digits of an IPv6
/// address, which begins with none of the other signs.
fn plain(name: &str) -> String {
    let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-');
    let text: String = name
        .chars()
        .map(|c| if kept(c) { c } else { '-' })
        .collect();
    // A leading dash would be an option.
    match text.strip_prefix('-') {
        Some(rest) => format!("x{rest}"),
        None if text.is_empty() => "x".to_owned(),
        None => text,
    }
}

/// Hosts in the order of their first node, with the number of their nodes.
fn hosts(nodes: &[JobNode]) -> Vec<(String, usize)> {
    let mut found: Vec<(String, usize)> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for node in nodes {
        let host = plain(&node.host);
        let place = *places.entry(host.clone()).or_insert(found.len());
        match found.get_mut(place) {
            Some((_, count)) => *count += 1,
            None => found.push((host, 1)),
        }
    }
    found
}

/// One line for each host, in order.
fn lines(nodes: &[JobNode], line: impl Fn(&str, &str) -> String) -> String {
    let zones: BTreeMap<String, String> = nodes
        .iter()
        .map(|node| (plain(&node.host), plain(&node.zone)))
        .collect();
    let mut text = String::new();
    for (host, zone) in &zones {
        text.push_str(&line(host, zone));
        text.push('\n');
    }
    text
}

fn hostfile(nodes: &[JobNode]) -> String {
    let mut text = String::new();
    for (host, slots) in hosts(nodes) {
        let _ = writeln!(text, "{host} slots={slots}");
    }
    text
}

fn rankfile(nodes: &[JobNode]) -> String {
    let mut text = String::new();
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    for (rank, node) in nodes.iter().enumerate() {
        let host = plain(&node.host);
        let slot = used.entry(host.clone()).or_default();
        let _ = writeln!(text, "rank {rank}={host} slot={slot}");
        *slot += 1;
    }
    text
}

fn slurm_topology(nodes: &[JobNode]) -> String {
    let mut zones: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in nodes {
        let hosts = zones.entry(plain(&node.zone)).or_default();
        let host = plain(&node.host);
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    let mut text = String::new();
    for (zone, hosts) in &zones {
        let _ = writeln!(text, "SwitchName={zone} Nodes={}", hosts.join(","));
    }
    let names: Vec<&str> = zones.keys().map(String::as_str).collect();
    if !names.is_empty() {
        let _ = writeln!(text, "SwitchName=zonal-core Switches={}", names.join(","));
    }
    text
}

fn slurm_hints(nodes: &[JobNode]) -> String {
    let hosts: Vec<String> = hosts(nodes).into_iter().map(|(host, _)| host).collect();
    let mut text = String::new();
    if let Some(first) = nodes.first() {
        let _ = writeln!(text, "#ZONAL zone={}", plain(&first.zone));
        let _ = writeln!(text, "#SBATCH --nodes={}", hosts.len());
        let _ = writeln!(text, "#SBATCH --nodelist={}", hosts.join(","));
        let _ = writeln!(text, "#SBATCH --switches=1");
    }
    text
}

fn k8s_affinity(nodes: &[JobNode]) -> String {
    let Some(first) = nodes.first() else {
        return String::new();
    };
    let mut text = format!(
        "affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        - key: topology.kubernetes.io/zone
          operator: In
          values: [\"{}\"]
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference:
        matchExpressions:
        - key: kubernetes.io/hostname
          operator: In
          values:
",
        plain(&first.zone)
    );
    for (host, _) in hosts(nodes) {
        let _ = writeln!(text, "          - \"{host}\"");
    }
    text
}
