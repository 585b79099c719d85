//! `zonal-sim`: runs seeds of the simulator.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that talks to people"
)]

use std::process::ExitCode;
use zonal_sim::{Options, Plant, Scenario, run};

const HELP: &str = "usage: zonal-sim [--seed N] [--count N] [--steps N] [--scenario any|kill|power]
                 [--no-faults] [--plant none|truncation|replies|sync|deletions|events] [--quiet] [--log]

Runs seeds N, N+1, ... and prints what is broken. Exit status 1 where something is.\n--log prints every message to standard error.";

struct Arguments {
    seed: u64,
    count: u64,
    quiet: bool,
    options: Options,
}

fn parse() -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments {
        seed: 1,
        count: 1,
        quiet: false,
        options: Options::default(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| {
            text.parse::<u64>()
                .map_err(|_error| format!("not a number: {text}"))
        };
        match word.as_str() {
            "--seed" => arguments.seed = number(value()?)?,
            "--count" => arguments.count = number(value()?)?,
            "--steps" => arguments.options.steps = number(value()?)?,
            "--no-faults" => arguments.options.faults = false,
            "--log" => arguments.options.log = true,
            "--quiet" => arguments.quiet = true,
            "--scenario" => {
                arguments.options.scenario = match value()?.as_str() {
                    "any" => Scenario::Any,
                    "kill" => Scenario::Kill,
                    "power" => Scenario::Power,
                    other => return Err(format!("unknown scenario {other}")),
                };
            }
            "--plant" => {
                arguments.options.plant = match value()?.as_str() {
                    "none" => Plant::None,
                    "truncation" => Plant::TargetIgnoresTruncation,
                    "replies" => Plant::ShardForgetsReplies,
                    "sync" => Plant::SyncDoesNothing,
                    "events" => Plant::EventsAreIgnored,
                    "deletions" => Plant::DeletionsAreLost,
                    other => return Err(format!("unknown bug {other}")),
                };
            }
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(Some(arguments))
}

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(what) => {
            eprintln!("{what}\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let mut bad = 0;
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.count) {
        let report = run(seed, arguments.options);
        if !report.is_good() || !arguments.quiet {
            print!("{report}");
        }
        bad += u64::from(!report.is_good());
    }
    println!(
        "{} of {} seeds good",
        arguments.count - bad,
        arguments.count
    );
    if bad == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
