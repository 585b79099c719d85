//! Outputs with `--json` are as docs/json.md describes them.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

mod cell;
mod testbed_rights;

use cell::{Cell, code, kill, said, zonal};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Shapes by command, as the page has them.
fn shapes() -> BTreeMap<String, Vec<Value>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let text = fs::read_to_string(page).unwrap();
    let mut shapes: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for section in text.split("\n## `zonal ").skip(1) {
        let (command, rest) = section.split_once('`').unwrap();
        for block in rest.split("```json\n").skip(1) {
            let (shape, _) = block.split_once("```").unwrap();
            let shape = serde_json::from_str(shape);
            let shape = shape.unwrap_or_else(|error| panic!("{command}: {error}"));
            shapes.entry(command.to_owned()).or_default().push(shape);
        }
    }
    shapes
}

/// Finds the first difference between a value and its shape.
fn misfit(shape: &Value, value: &Value, at: &str) -> Option<String> {
    match (shape, value) {
        (Value::String(types), value) => {
            let name = match value {
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            };
            let fits = types == "any" || types.split('|').any(|of| of == name);
            (!fits).then(|| format!("{at} is a {name}, not {types}"))
        }
        (Value::Array(of), Value::Array(values)) => {
            let mut values = values.iter().zip(0..);
            values.find_map(|(value, index)| misfit(&of[0], value, &format!("{at}[{index}]")))
        }
        (Value::Object(shapes), Value::Object(values)) => {
            let of = |key: &str| {
                let optional = format!("{key}?");
                let named = shapes.get(key).or_else(|| shapes.get(&optional));
                named.or_else(|| shapes.get("*"))
            };
            let missing = shapes
                .keys()
                .filter(|key| *key != "*" && !key.ends_with('?'))
                .find(|key| !values.contains_key(*key))
                .map(|key| format!("{at}.{key} is missing"));
            let wrong = values.iter().find_map(|(key, value)| match of(key) {
                Some(shape) => misfit(shape, value, &format!("{at}.{key}")),
                None => Some(format!("{at}.{key} is not described")),
            });
            missing.or(wrong)
        }
        (shape, value) => Some(format!("{at} is {value}, not {shape}")),
    }
}

struct Page {
    shapes: BTreeMap<String, Vec<Value>>,
    shown: BTreeSet<String>,
}

impl Page {
    /// Runs a command with `--json` and compares each document or line that it prints.
    fn compare(&mut self, name: &str, command: &mut Command) -> Vec<Value> {
        let output = command.arg("--json").output().unwrap();
        // A check that found something says so by its exit code.
        // So does a testbed whose rates are off, as on a machine that is busy with other work.
        let expected: &[i32] = match name {
            "fsck" => &[4],
            "files" => &[0, 9],
            "testbed check" => &[0, 1],
            _ => &[0],
        };
        assert!(
            expected.contains(&code(&output)),
            "{name}: {}",
            said(&output)
        );
        let shapes = &self.shapes[name];
        let text = String::from_utf8(output.stdout).unwrap();
        let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let values: Vec<Value> = values.map(Result::unwrap).collect();
        assert!(!values.is_empty(), "{name} prints nothing");
        for value in &values {
            let misfits: Vec<_> = shapes
                .iter()
                .map(|shape| misfit(shape, value, name))
                .collect();
            assert!(misfits.iter().any(Option::is_none), "{misfits:?}: {value}");
        }
        self.shown.insert(name.to_owned());
        values
    }
}

#[test]
fn outputs_have_the_shapes_that_the_page_describes() {
    let cell = Cell::with_key("json");
    let shapes = shapes();
    let shown = BTreeSet::new();
    let mut page = Page { shapes, shown };
    let here = |name: &str| cell.dir().join(name);
    let of_cell = |words: &[&str]| {
        let mut command = zonal();
        command.args(words).arg("--cell").arg(cell.dir());
        command
    };
    let ran = of_cell(&["fs", "mkdir", "/d"]).output().unwrap();
    assert_eq!(code(&ran), 0, "{}", said(&ran));
    fs::write(here("bytes"), [7; 100_000]).unwrap();
    let mut put = of_cell(&["fs", "put"]);
    page.compare("fs put", put.arg(here("bytes")).arg("/d/f"));
    let mut get = of_cell(&["fs", "get"]);
    page.compare("fs get", get.arg("/d/f").arg(here("got")));
    page.compare("fs ls", &mut of_cell(&["fs", "ls", "/d"]));
    page.compare("fs find", &mut of_cell(&["fs", "find", "/d"]));
    page.compare("fs stat", &mut of_cell(&["fs", "stat", "/d/f", "/d"]));
    page.compare("fs du", &mut of_cell(&["fs", "du", "/d"]));
    page.compare("place", &mut of_cell(&["place", "/d/f", "/d"]));
    page.compare("jobs", report_job(&cell, &mut of_cell(&["jobs"])));
    page.compare("status", &mut of_cell(&["status"]));
    lost_files(&mut page, &mut of_cell(&["files", "--if-lost", "zone:1"]));
    page.compare("top", &mut of_cell(&["top", "--interval", "1"]));
    page.compare("zone-map show", &mut of_cell(&["zone-map", "show"]));
    looks_at_cell(&mut page, &of_cell);
    page.compare("shard add", &mut of_cell(&["shard", "add", "1"]));
    page.compare("scrub status", &mut of_cell(&["scrub", "status"]));
    page.compare("key ls", &mut of_cell(&["key", "ls"]));
    page.compare(
        "key show",
        zonal().args(["key", "show"]).arg(here("cell.key")),
    );
    models(&mut page);
    page.compare(
        "target ls",
        &mut of_cell(&["target", "ls", "--target", "1"]),
    );
    let mut target = |verb: &str, flags: &[&str]| {
        let mut command = of_cell(&["target", verb, "--target", "1"]);
        command.args(flags).arg(here("objects"));
        page.compare(&format!("target {verb}"), &mut command);
    };
    target("export", &["--to"]);
    target("import", &["--force", "--from"]);
    page.compare(
        "meta backup",
        of_cell(&["meta", "backup"]).arg("--to").arg(here("backup")),
    );
    mounted(&cell, &mut page);
    plan_of_job(&mut page);
    let has_testbed = testbed(&here("testbed"), &mut page);

    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let mut restore = of_cell(&["meta", "restore", "--force"]);
    page.compare("meta restore", restore.arg("--from").arg(here("backup")));
    page.compare("dump", zonal().arg("dump").arg(here("storage1-1/target")));
    spoil(&here("storage1-1/target/segments"));
    let found = page.compare("fsck", of_cell(&["fsck"]).arg("--data"));
    assert!(found.len() > 1, "no finding: {found:?}");

    let described: BTreeSet<String> = page.shapes.keys().cloned().collect();
    let left: Vec<_> = described.difference(&page.shown).collect();
    assert!(
        left.is_empty() || !can_mount() || !has_testbed,
        "not shown: {left:?}"
    );
}

/// Looks at the parts of a cell.
fn looks_at_cell(page: &mut Page, of_cell: &dyn Fn(&[&str]) -> Command) {
    for noun in ["session", "shard", "node", "token", "zone"] {
        page.compare(&format!("{noun} ls"), &mut of_cell(&[noun, "ls"]));
    }
    page.compare("zone fail-back", &mut of_cell(&["zone", "fail-back", "1"]));
    let mut rebalance = of_cell(&["rebalance", "--follow"]);
    page.compare("rebalance --follow", &mut rebalance);
}

/// A command that lists files.
fn lost_files(page: &mut Page, command: &mut Command) {
    let found = page.compare("files", command);
    assert!(found.len() > 1, "no file would be lost: {found:?}");
}

/// Commands that need a mount.
fn mounted(cell: &Cell, page: &mut Page) {
    if !can_mount() {
        return;
    }
    let path = cell.dir().join("mount");
    fs::create_dir(&path).unwrap();
    let mut mount = zonal();
    let mounted = mount.arg("mount").arg("--cell").arg(cell.dir()).arg(&path);
    let mounted = mounted.output().unwrap();
    assert_eq!(code(&mounted), 0, "{}", said(&mounted));
    let (file, dir) = (path.join("d/f"), path.join("d"));
    page.compare("layout show", zonal().args(["layout", "show"]).arg(&file));
    page.compare("locate", zonal().arg("locate").arg(&file));
    page.compare("locate", zonal().args(["locate", "-r"]).arg(&dir));
    let mut matrix = zonal();
    matrix
        .args(["locate", "--matrix", "--cell"])
        .arg(cell.dir());
    page.compare("locate", matrix.arg(&file));
    page.compare("status", zonal().args(["status", "--cell"]).arg(cell.dir()));
    let gone = zonal().arg("umount").arg(&path).output().unwrap();
    assert_eq!(code(&gone), 0, "{}", said(&gone));
}

/// Commands that need no cell.
fn models(page: &mut Page) {
    page.compare("sim", zonal().args(["sim", "--seeds", "1"]));
    page.compare("simulate", zonal().args(["simulate", "--racks", "2"]));
}

/// The plan of a job, in a cell with agents.
fn plan_of_job(page: &mut Page) {
    let cell = Cell::with_shape("json-run", (1, 2), &["--agent"]);
    // One agent does not answer.
    kill(cell.pid("storage1-2"), "KILL");
    // The option that is added to the command belongs before the job's own words.
    let mut plan = Command::new("sh");
    plan.args(["-c", "exec \"$@\" -n 2 -- true", "sh"]);
    plan.arg(zonal().get_program());
    plan.args(["run", "--dry-run", "--cell"]).arg(cell.dir());
    let plans = page.compare("run", &mut plan);
    let events = || {
        let mut events = zonal();
        events.arg("events").arg("--cell").arg(cell.dir());
        events
    };
    let until = Instant::now() + Duration::from_secs(60);
    while events().output().unwrap().stdout.is_empty() {
        assert!(
            Instant::now() < until,
            "no event tells of the killed server"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    page.compare("events", &mut events());
    let mut recovery = zonal();
    recovery.arg("recovery").arg("--cell").arg(cell.dir());
    page.compare("recovery", &mut recovery);
    assert_eq!(plans[0]["left_out"].as_array().unwrap().len(), 1);
}

/// Has the placement service record a job with traffic, for `command`.
fn report_job<'a>(cell: &Cell, command: &'a mut Command) -> &'a mut Command {
    let ask = |line: &str| {
        let mut stream = TcpStream::connect(cell.address("manager", true)).unwrap();
        write!(stream, "{line} HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let value = text.split("\"job\": ").nth(1).unwrap().split(',').next();
        value.unwrap().to_owned()
    };
    let job = ask("POST /v1/jobs?name=j&user=u&zone=1&nodes=1");
    ask(&format!("PUT /v1/jobs/{job}?in_zone_bytes=1"));
    command
}

/// Commands of a testbed; false where this machine cannot have one.
fn testbed(dir: &Path, page: &mut Page) -> bool {
    if let Some(why) = testbed_rights::missing() {
        eprintln!("SKIPPED: testbed status, testbed check: {why}");
        return false;
    }
    let of_testbed = |word: &str| {
        let mut command = zonal();
        command.args(["testbed", word, "--dir"]).arg(dir);
        command
    };
    let mut up = of_testbed("up");
    up.args(["--racks", "1", "--nodes", "1"]);
    // Slow links are measured right on a busy machine too.
    up.args(["--node-rate", "10mbit", "--uplink-rate", "10mbit"]);
    let up = up.output().unwrap();
    assert_eq!(code(&up), 0, "{}", said(&up));
    page.compare("testbed status", &mut of_testbed("status"));
    page.compare("testbed check", &mut of_testbed("check"));
    let down = of_testbed("down").output().unwrap();
    assert_eq!(code(&down), 0, "{}", said(&down));
    true
}

/// Said visibly where this machine cannot mount.
fn can_mount() -> bool {
    let mut device = fs::OpenOptions::new();
    let can = device.read(true).write(true).open("/dev/fuse").is_ok()
        && rustix::process::geteuid().is_root();
    if !can {
        eprintln!("SKIPPED: layout show, locate: no mount without root and /dev/fuse");
    }
    can
}

/// Changes the first byte of each block of the file.
fn spoil(segments: &Path) {
    let files = fs::read_dir(segments).unwrap();
    let files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    for file in files {
        let mut bytes = fs::read(&file).unwrap();
        let used = bytes.iter_mut().step_by(4096).filter(|byte| **byte == 7);
        used.for_each(|byte| *byte = 8);
        fs::write(&file, bytes).unwrap();
    }
}
