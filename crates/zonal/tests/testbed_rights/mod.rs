//! Whether this machine can have a testbed.

use std::path::Path;
use std::process::Command;

fn works(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// The reason why no testbed can be made here.
pub fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return Some("no root, or no /dev/fuse");
    }
    if !works("ip", &["-V"]) || !works("tc", &["-V"]) {
        return Some("no iproute2");
    }
    let name = format!("zonal-probe-{}", std::process::id());
    let can = works("ip", &["netns", "add", &name]);
    works("ip", &["netns", "delete", &name]);
    (!can).then_some("no right to make network namespaces")
}
