//! Answers for MPI, Slurm, Kubernetes and YARN, compared with golden texts.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use zonal_placement::{JobFormat, JobNode, render};

fn node(host: &str, zone: &str) -> JobNode {
    JobNode {
        host: host.to_owned(),
        zone: zone.to_owned(),
    }
}

/// Two nodes of a zone on one host, and one on another.
fn of_job() -> Vec<JobNode> {
    ["10.0.1.1", "10.0.1.2", "10.0.1.1"]
        .map(|host| node(host, "leaf-1"))
        .to_vec()
}

fn of_cell() -> Vec<JobNode> {
    let mut nodes = of_job();
    nodes.push(node("10.0.2.1", "leaf-2"));
    nodes
}

#[test]
fn open_mpi_gets_hosts_with_slots() {
    let text = render(JobFormat::Hostfile, &of_job());
    assert_eq!(text, "10.0.1.1 slots=2\n10.0.1.2 slots=1\n");
}

#[test]
fn open_mpi_gets_a_host_and_slot_for_each_rank() {
    let text = render(JobFormat::Rankfile, &of_job());
    assert_eq!(
        text,
        "rank 0=10.0.1.1 slot=0\nrank 1=10.0.1.2 slot=0\nrank 2=10.0.1.1 slot=1\n"
    );
}

#[test]
fn slurm_gets_a_switch_for_each_zone_under_the_core() {
    let text = render(JobFormat::SlurmTopology, &of_cell());
    assert_eq!(
        text,
        "SwitchName=leaf-1 Nodes=10.0.1.1,10.0.1.2\nSwitchName=leaf-2 Nodes=10.0.2.1\n\
         SwitchName=zonal-core Switches=leaf-1,leaf-2\n"
    );
}

#[test]
fn slurm_gets_options_of_a_job() {
    let text = render(JobFormat::SlurmHints, &of_job());
    assert_eq!(
        text,
        "#ZONAL zone=leaf-1\n#SBATCH --nodes=2\n#SBATCH --nodelist=10.0.1.1,10.0.1.2\n\
         #SBATCH --switches=1\n"
    );
}

#[test]
fn kubernetes_gets_the_zone_as_a_must_and_the_hosts_as_a_wish() {
    let text = render(JobFormat::K8sAffinity, &of_job());
    let golden = "affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        - key: topology.kubernetes.io/zone
          operator: In
          values: [\"leaf-1\"]
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference:
        matchExpressions:
        - key: kubernetes.io/hostname
          operator: In
          values:
          - \"10.0.1.1\"
          - \"10.0.1.2\"
";
    assert_eq!(text, golden);
}

#[test]
fn kubernetes_nodes_are_labelled_with_their_zone() {
    let text = render(JobFormat::K8sLabels, &[node("n1", "leaf-1")]);
    assert_eq!(
        text,
        "kubectl label node n1 topology.kubernetes.io/zone=leaf-1 --overwrite\n"
    );
}

#[test]
fn yarn_gets_a_network_location_for_each_host() {
    let text = render(JobFormat::YarnTopology, &of_cell());
    assert_eq!(
        text,
        "10.0.1.1 /leaf-1\n10.0.1.2 /leaf-1\n10.0.2.1 /leaf-2\n"
    );
}

#[test]
fn a_name_cannot_add_a_line_or_a_command() {
    let evil = [node("h\nrank 1=x", "-z; rm -r /\"\n")];
    for (name, format) in JobFormat::NAMES {
        assert_eq!(JobFormat::named(name), Some(format));
        let plain = [node("h", "z")];
        let text = render(format, &evil);
        assert_eq!(text.lines().count(), render(format, &plain).lines().count());
        assert!(!text.contains(';') && !text.contains(" rm "), "{text}");
        assert_eq!(render(format, &[]), "");
    }
}
