//! `zonal-faultfs FOLDER MOUNT SOCKET`: mounts a disk with faults, takes orders at SOCKET, ends
//! when it is unmounted.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use zonal_faultfs::{FaultDisk, control, mount};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, point, socket] = arguments.as_slice() else {
        complain("usage: zonal-faultfs FOLDER MOUNT SOCKET");
        return ExitCode::from(2);
    };
    match run(Path::new(folder), Path::new(point), Path::new(socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            complain(&text);
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "a program of tests says what is wrong")]
fn complain(text: &str) {
    eprintln!("error: {text}");
}

fn run(folder: &Path, point: &Path, socket: &Path) -> Result<(), String> {
    let disk = FaultDisk::new(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let disk = Arc::new(disk);
    let listener = UnixListener::bind(socket).map_err(|error| format!("socket: {error}"))?;
    let session = mount(&disk, point).map_err(|error| error.to_string())?;
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || control::serve(&disk, &listener))
        .map_err(|error| error.to_string())?;
    session.wait();
    // This process created it; another one may have removed it meanwhile.
    let _ = std::fs::remove_file(socket);
    Ok(())
}
