//! Measures rates of file-system operations in a directory: `rates DIR [threads] [seconds]`.
//!
//! Prints one line per operation with operations (or bytes) per second, summed over the threads.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Work = fn(&Path, &dyn Fn() -> bool) -> std::io::Result<u64>;

fn fstat(dir: &Path, more: &dyn Fn() -> bool) -> std::io::Result<u64> {
    let file = File::create(dir.join("fstat"))?;
    let mut count = 0;
    while more() {
        file.metadata()?;
        count += 1;
    }
    Ok(count)
}

fn stat(dir: &Path, more: &dyn Fn() -> bool) -> std::io::Result<u64> {
    let path = dir.join("stat");
    File::create(&path)?;
    let mut count = 0;
    while more() {
        fs::metadata(&path)?;
        count += 1;
    }
    Ok(count)
}

fn open(dir: &Path, more: &dyn Fn() -> bool) -> std::io::Result<u64> {
    let path = dir.join("open");
    File::create(&path)?;
    let mut count = 0;
    while more() {
        File::open(&path)?;
        count += 1;
    }
    Ok(count)
}

fn create(dir: &Path, more: &dyn Fn() -> bool) -> std::io::Result<u64> {
    let mut count = 0;
    while more() {
        File::create(dir.join(format!("c{count}")))?;
        count += 1;
    }
    Ok(count)
}

fn unlink(dir: &Path, more: &dyn Fn() -> bool) -> std::io::Result<u64> {
    let mut count = 0;
    while more() && fs::remove_file(dir.join(format!("c{count}"))).is_ok() {
        count += 1;
    }
    Ok(count)
}

fn list(dir: &Path, more: &dyn Fn() -> bool) -> std::io::Result<u64> {
    let dir = dir.join("list");
    fs::create_dir(&dir)?;
    for i in 0..2000 {
        File::create(dir.join(format!("entry{i}")))?;
    }
    let mut count = 0;
    while more() {
        for entry in fs::read_dir(&dir)? {
            entry?.metadata()?;
            count += 1;
        }
    }
    Ok(count)
}

const MIB: usize = 1 << 20;

fn write(dir: &Path, more: &dyn Fn() -> bool) -> std::io::Result<u64> {
    let file = File::create(dir.join("stream"))?;
    let data = vec![7; MIB];
    let mut count = 0;
    while more() {
        file.write_all_at(&data, (count % 512) << 20)?;
        count += 1;
    }
    Ok(count)
}

fn read(dir: &Path, more: &dyn Fn() -> bool) -> std::io::Result<u64> {
    let path = dir.join("read");
    File::create(&path)?.set_len(1 << 40)?;
    let file = File::open(&path)?;
    let mut data = vec![0; MIB];
    let mut count = 0;
    while more() {
        file.read_exact_at(&mut data, count << 20)?;
        count += 1;
    }
    Ok(count)
}

fn small(dir: &Path, more: &dyn Fn() -> bool) -> std::io::Result<u64> {
    let path = dir.join("small");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let data = [7; 4096];
    let mut count: u64 = 0;
    while more() {
        file.write_all_at(&data, (count * 7919 % 4096) << 12)?;
        count += 1;
    }
    Ok(count)
}

const WORKS: [(&str, Work); 9] = [
    ("fstat", fstat),
    ("stat", stat),
    ("open+close", open),
    ("create+close", create),
    ("unlink", unlink),
    ("list+stat", list),
    ("write MiB", write),
    ("read MiB", read),
    ("write 4 KiB", small),
];

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example's way to report"
)]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(base) = args.first().map(PathBuf::from) else {
        eprintln!("usage: rates DIR [threads] [seconds]");
        return ExitCode::FAILURE;
    };
    let threads: usize = args.get(1).and_then(|t| t.parse().ok()).unwrap_or(1);
    let seconds: f64 = args.get(2).and_then(|t| t.parse().ok()).unwrap_or(1.0);
    let base = base.join(format!("rates-{}", std::process::id()));
    for i in 0..threads {
        if let Err(error) = fs::create_dir_all(base.join(i.to_string())) {
            eprintln!("{}: {error}", base.display());
            return ExitCode::FAILURE;
        }
    }
    for (name, work) in WORKS {
        let total = AtomicU64::new(0);
        let barrier = Barrier::new(threads);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for i in 0..threads {
                let dir = base.join(i.to_string());
                let (total, barrier) = (&total, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    let end = Duration::from_secs_f64(seconds);
                    match work(&dir, &|| start.elapsed() < end) {
                        Ok(count) => drop(total.fetch_add(count, Ordering::Relaxed)),
                        Err(error) => eprintln!("{name}: {error}"),
                    }
                });
            }
        });
        let rate = total.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
        println!("{name:14} {rate:12.0} /s");
    }
    let _ = fs::remove_dir_all(&base);
    ExitCode::SUCCESS
}
