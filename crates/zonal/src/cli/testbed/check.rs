//! `zonal testbed check`: measures the rate of each link.

use super::TestbedArgs;
use crate::console;
use crate::exit::{FAILED, Failure};
use crate::testbed::links::{self, LinkReport};
use crate::testbed::rate_check::{self, MeasuredLink};
use clap::Args;
use serde_json::{Value, json};

/// Measure the rate of each link in each direction, beside what was asked for
///
/// Sends a little more than a second's bytes over each link, both ways. Traffic of programs shares
/// the links, so run it while they rest. Exits with 1 if a rate is wrong by more than a tenth. A
/// link that is cut is left out.
#[derive(Debug, Args)]
pub struct TestbedCheck {
    #[command(flatten)]
    testbed: TestbedArgs,
    /// Measure this link only
    link: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl TestbedCheck {
    pub fn run(self) -> anyhow::Result<()> {
        let folder = self.testbed.open()?;
        let _lock = folder.lock()?;
        let state = folder.state()?;
        let mut links = links::report(&state)?;
        if let Some(name) = &self.link {
            let wanted = state.plan().find_link(name)?;
            links.retain(|report| report.link == wanted);
        }
        let all = links.len();
        let measured = rate_check::measure_all(&links, &|done| {
            console::note(format_args!("measured {done} of {all} links"));
        })?;
        if self.json {
            console::json(format_args!("{:#}", to_json(&links, &measured)));
        } else {
            print(&links, &measured);
        }
        let wrong = links.iter().zip(&measured).filter(|(link, measured)| {
            let mut rates = [measured.up, measured.down].into_iter().flatten();
            rates.any(|rate| !rate_check::is_right(rate, link.asked))
        });
        let wrong: Vec<&str> = wrong.map(|(link, _)| link.link.name.as_str()).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let text = format!("wrong rates: {}", wrong.join(", "));
        let hint = "other traffic on the link, or a machine that is busy, lowers what is measured; repeat it at rest";
        Err(Failure::new(FAILED, text).hint(hint).into())
    }
}

fn print(links: &[LinkReport], measured: &[MeasuredLink]) {
    let header = ["LINK", "ASKED", "UP", "DOWN"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let shown = |rate: Option<f64>| match rate {
        Some(rate) => format!("{:.1}mbit", rate / 1e6),
        None => "cut".to_owned(),
    };
    for (report, measured) in links.iter().zip(measured) {
        rows.push(vec![
            report.link.name.clone(),
            report.asked.to_string(),
            shown(measured.up),
            shown(measured.down),
        ]);
    }
    console::table(&rows);
}

fn to_json(links: &[LinkReport], measured: &[MeasuredLink]) -> Value {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is positive, and far below 2^53"
    )]
    let bits = |rate: Option<f64>| rate.map(|rate| rate.round() as u64);
    let links = links.iter().zip(measured).map(|(report, measured)| {
        json!({
            "name": report.link.name,
            "cut": report.is_cut,
            "asked_bits_per_second": report.asked.0,
            "up_bits_per_second": bits(measured.up),
            "down_bits_per_second": bits(measured.down),
        })
    });
    json!({"links": links.collect::<Vec<_>>()})
}
